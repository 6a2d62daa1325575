"""Track regions that a program marks with `record_function` or NVTX.

Operations are not assigned to regions while they run. Instead, the number of calls so far is
recorded whenever a region opens or closes. Programs without regions have no overhead.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any

from msgspec import Struct

from unified_prof.tracking.raw_calls import NO_REGION, Iteration
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches

# Maximum number of regions, counted by name and enclosing region; further regions are ignored.
_MAX_REGIONS = 10_000
_MAX_CHANGES = 1_000_000  # Maximum number of times that regions open or close in one iteration.
_STEP = "ProfilerStep#"
_NVTX = "nvtx"


class _Open(Struct):
    """An open region."""

    key: object
    """Identifies the call that closes it."""
    name: str
    of_program: bool
    """True if the program opened it, False if torch did."""
    ends: object
    """Weak reference; its callback closes the region when the owner is deleted."""
    region: int = NO_REGION
    """Number of the region; set only on the followed thread."""


class Regions:
    """Tree of regions; a region is identified by its name and the region around it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.around: list[int] = []
        self.of_program: list[bool] = []
        """True if the program opened the region itself; torch also marks optimizer steps."""
        self.dropped = 0
        """Number of times that a region was not recorded because there are too many."""
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, around: int, name: str, *, of_program: bool) -> int:
        """Return the number of a region within another one, or `around` if there are too many."""
        number = self._numbers.get((around, name))
        if number is None:
            if len(self.names) >= _MAX_REGIONS:
                self.dropped += 1
                return around
            number = self._numbers[around, name] = len(self.names)
            self.names.append(name)
            self.around.append(around)
            self.of_program.append(False)
        self.of_program[number] |= of_program
        return number

    def including_inner(self, highest: Mapping[int, int]) -> dict[int, int]:
        """Return the highest value in each region, including the regions within it."""
        found: dict[int, int] = {}
        for innermost, value in highest.items():
            region = innermost
            while region != NO_REGION:
                found[region] = max(found.get(region, value), value)
                region = self.around[region]
        return found


class RegionWatch:
    """Tracks the open regions of each thread, and records changes on the followed thread."""

    def __init__(self, internals: TorchInternals) -> None:
        self.regions = Regions()
        self._internals = internals
        self._patches = Patches()
        self._open: dict[int, list[_Open]] = {}
        """Open regions by thread, outermost first."""
        self._thread: int | None = None
        """Identifier of the followed thread."""
        self._iteration: Iteration | None = None
        self._on_change: Callable[[int], None] | None = None
        self._entered: weakref.WeakSet[Any] | None = None

    def install(self) -> None:
        """Patch torch; `remove` undoes it."""
        replace = self._internals.replace
        replace(self._patches, "region_enter", self._wrap_enter)
        replace(self._patches, "region_exit", self._wrap_exit)
        # The functions behind torch.cuda.nvtx; the compiler puts those of torch.cuda.nvtx in its
        # graphs.
        nvtx = self._internals.find("nvtx")
        if not hasattr(nvtx, "rangeStartA"):
            # A torch without CUDA has only the old functions, which raise.
            if nvtx is not None and not hasattr(nvtx, "rangePushA"):
                self._internals.note("nvtx", AttributeError("it has no rangePushA"))
            return
        with self._fenced():
            self._patches.replace(nvtx, "rangePushA", self._wrap_push(nvtx.rangePushA))
            self._patches.replace(nvtx, "rangePop", self._wrap_pop(nvtx.rangePop))
            self._patches.replace(nvtx, "rangeStartA", self._wrap_start(nvtx.rangeStartA))
            self._patches.replace(nvtx, "rangeEnd", self._wrap_end(nvtx.rangeEnd))

    def remove(self) -> None:
        """Undo all patches."""
        self._patches.restore()
        self.stop_following()
        self._entered = None
        self._open.clear()

    def follow(self, iteration: Iteration) -> None:
        """Record in `iteration` which regions open and close on this thread from now on."""
        self._thread, self._iteration = get_ident(), iteration
        iteration.first_region = self._begin()

    def notify(self, on_change: Callable[[int], None]) -> None:
        """Call `on_change` with this thread's innermost region before it changes."""
        self._thread, self._on_change = get_ident(), on_change
        self._begin()

    def stop_following(self) -> None:
        """Stop recording and reporting changes."""
        self._thread = self._iteration = self._on_change = None

    def note_entered(self) -> weakref.WeakSet[Any] | None:
        """Return a set that gets each `record_function` entered from now on; None if unknown."""
        self._entered = weakref.WeakSet() if self._internals.has("region_enter") else None
        return self._entered

    @property
    def innermost(self) -> int:
        """Innermost open region of the followed thread."""
        stack = self._open.get(self._thread or 0)
        return stack[-1].region if stack else NO_REGION

    def _begin(self) -> int:
        self._renumber(self._open.get(self._thread or 0, []), 0)
        return self.innermost

    def _renumber(self, stack: list[_Open], first: int) -> None:
        """Assign numbers to the regions of a stack from position `first` on."""
        around = stack[first - 1].region if first else NO_REGION
        for one in stack[first:]:
            one.region = self.regions.number(around, one.name, of_program=one.of_program)
            around = one.region

    def _opens(self, key: object, name: object, frame: FrameType | None, owner: Any = None) -> None:
        """Record that a frame (None: the program) opens a region.

        The call with `key`, or the deletion of `owner`, closes it.
        """
        package = _package_of(frame)
        text = str(name)
        if package == "unified_prof" or text.startswith(_STEP):
            return
        ends = None if owner is None else weakref.ref(owner, lambda _: self._gone(key))
        opened = _Open(key, text, package != "torch", ends)
        thread = get_ident()
        stack = self._open.setdefault(thread, [])
        followed = thread == self._thread
        if followed:
            self._changes()
        stack.append(opened)
        if followed:
            self._renumber(stack, len(stack) - 1)
            self._note(opened.region)

    def _closes(self, key: object) -> None:
        """Record that the region with `key` closes, on any thread and in any order."""
        here = get_ident()
        if self._closes_on(here, key):
            return
        for thread in list(self._open):
            if thread != here and self._closes_on(thread, key):
                return

    def _closes_on(self, thread: int, key: object) -> bool:
        stack = self._open.get(thread, [])
        for position in range(len(stack) - 1, -1, -1):
            if stack[position].key == key:
                self._take_out(thread, stack, position)
                return True
        return False

    def _take_out(self, thread: int, stack: list[_Open], position: int) -> None:
        followed = thread == self._thread
        if followed:
            self._changes()
        del stack[position]
        if followed:
            self._renumber(stack, position)
            self._note(NO_REGION)

    def _gone(self, key: object) -> None:
        """Close a region whose object was deleted while it was open."""
        with self._fenced():
            self._closes(key)

    def _changes(self) -> None:
        if self._on_change is not None:
            self._on_change(self.innermost)

    def _note(self, opened: int) -> None:
        iteration = self._iteration
        if iteration is None:
            return
        if len(iteration.regions) < 3 * _MAX_CHANGES:
            iteration.regions.extend((iteration.count, self.innermost, opened))
        else:
            self.regions.dropped += 1

    def _failed(self, error: Exception) -> None:
        with self._fenced():
            raise error

    def _fenced(self) -> AbstractContextManager[None]:
        return self._internals.anomalies.recording_failures(
            "regions_not_seen", "some regions of the program"
        )

    def _wrap_enter(self, enter: Any) -> Any:
        opens, failed, frame_of = self._opens, self._failed, sys._getframe

        def __enter__(region: Any) -> Any:  # noqa: N807
            result = enter(region)
            try:
                if (entered := self._entered) is not None:
                    entered.add(region)
                opens(id(region), region.name, frame_of(1), region)
            except Exception as error:
                failed(error)
            return result

        return _in_place_of(enter, __enter__)

    def _wrap_exit(self, leave: Any) -> Any:
        closes, failed = self._closes, self._failed

        def __exit__(region: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:  # noqa: N807
            try:
                return leave(region, exc_type, exc_value, traceback)
            finally:
                try:
                    closes(id(region))
                except Exception as error:
                    failed(error)

        return _in_place_of(leave, __exit__)

    def _wrap_push(self, push: Any) -> Any:
        @functools.wraps(push)
        def noted_push(name: Any, *more: Any) -> Any:
            depth = push(name, *more)
            with self._fenced():
                self._opens(_NVTX, name, None)
            return depth

        return noted_push

    def _wrap_pop(self, pop: Any) -> Any:
        @functools.wraps(pop)
        def noted_pop(*more: Any) -> Any:
            depth = pop(*more)
            with self._fenced():
                self._closes_on(get_ident(), _NVTX)
            return depth

        return noted_pop

    def _wrap_start(self, start: Any) -> Any:
        @functools.wraps(start)
        def noted_start(name: Any, *more: Any) -> Any:
            handle = start(name, *more)
            with self._fenced():
                self._opens((_NVTX, handle), name, None)
            return handle

        return noted_start

    def _wrap_end(self, end: Any) -> Any:
        @functools.wraps(end)
        def noted_end(handle: Any, *more: Any) -> Any:
            result = end(handle, *more)
            with self._fenced():
                self._closes((_NVTX, handle))
            return result

        return noted_end


def _in_place_of(original: Any, stands_in: Any) -> Any:
    """Return a function with the globals of the original's module.

    TorchScript compiles a class from the source of its methods, which is the original's, and looks
    up names in the globals of the function.
    """
    made = FunctionType(
        stands_in.__code__, original.__globals__, original.__name__, None, stands_in.__closure__
    )
    return functools.update_wrapper(made, original)


def _package_of(frame: FrameType | None) -> str:
    """Return the package that opens a region in `frame`, skipping context managers."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "contextlib":
            return package
        frame = frame.f_back
    return ""
