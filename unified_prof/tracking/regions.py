"""Regions that a program marks on a thread, by `record_function` or NVTX, and which are open.

Operations are not asked which region they stand in: where regions open and close the number of
calls so far is noted, and the rest follows from that. A program without regions pays nothing.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any

from unified_prof.tracking.raw_calls import NO_REGION, Iteration
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import Patches

_MAX_REGIONS = 10_000
"""Regions with another name, or another one around them: there are no more rows."""
_MAX_CHANGES = 1_000_000
"""Of one iteration: how often a region opens or closes."""
_STEP = "ProfilerStep#"
_NVTX = "nvtx"


@dataclass(slots=True)
class _Open:
    """A region that is open."""

    key: object
    """What closes it."""
    name: str
    of_program: bool
    """Whether it is the program's own, not one of torch's."""
    ends: object
    """Keeps what notes the end of its object."""
    region: int = NO_REGION
    """Its number; known where its thread is followed."""


class Regions:
    """The tree of regions: one is told from another by its name and by the one around it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.around: list[int] = []
        self.of_program: list[bool] = []
        """Whether the program ever opened it itself: torch marks the steps of optimizers too."""
        self.dropped = 0
        """How many times there was no room for one more."""
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, around: int, name: str, *, of_program: bool) -> int:
        """Return the number of a region within another; that one's own where there is no room."""
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

    def with_those_around(self, highest: Mapping[int, int]) -> dict[int, int]:
        """Return the highest value in each region, those within it counted."""
        found: dict[int, int] = {}
        for innermost, value in highest.items():
            region = innermost
            while region != NO_REGION:
                found[region] = max(found.get(region, value), value)
                region = self.around[region]
        return found


class RegionWatch:
    """Knows at any time which regions are open on each thread, and notes changes on one of them."""

    def __init__(self, internals: TorchInternals) -> None:
        self.regions = Regions()
        self._internals = internals
        self._patches = Patches()
        self._open: dict[int, list[_Open]] = {}
        """By thread, the outermost first."""
        self._thread: int | None = None
        """The one that is followed."""
        self._iteration: Iteration | None = None
        self._on_change: Callable[[int], None] | None = None

    def install(self) -> None:
        """Take the places in torch; `remove` gives them back."""
        replace = self._internals.replace
        replace(self._patches, "region_enter", self._wrap_enter)
        replace(self._patches, "region_exit", self._wrap_exit)
        # What torch.cuda.nvtx calls, as a compiler has the functions of that in its graphs.
        nvtx = self._internals.find("nvtx")
        if not hasattr(nvtx, "rangeStartA"):
            # A torch without CUDA has the calls of before, to refuse them.
            if nvtx is not None and not hasattr(nvtx, "rangePushA"):
                self._internals.note("nvtx", AttributeError("it has no rangePushA"))
            return
        with self._fenced():
            self._patches.replace(nvtx, "rangePushA", self._wrap_push(nvtx.rangePushA))
            self._patches.replace(nvtx, "rangePop", self._wrap_pop(nvtx.rangePop))
            self._patches.replace(nvtx, "rangeStartA", self._wrap_start(nvtx.rangeStartA))
            self._patches.replace(nvtx, "rangeEnd", self._wrap_end(nvtx.rangeEnd))

    def remove(self) -> None:
        """Leave torch as it was found."""
        self._patches.restore()
        self.follow_no_more()
        self._open.clear()

    def follow(self, iteration: Iteration) -> None:
        """Note in `iteration`, from now on, what opens and closes on this thread."""
        self._thread, self._iteration = get_ident(), iteration
        iteration.first_region = self._begin()

    def tell(self, on_change: Callable[[int], None]) -> None:
        """Tell the innermost region of this thread whenever that is about to change."""
        self._thread, self._on_change = get_ident(), on_change
        self._begin()

    def follow_no_more(self) -> None:
        """Note and tell nothing any more."""
        self._thread = self._iteration = self._on_change = None

    @property
    def innermost(self) -> int:
        """The innermost region that is open on the thread that is followed."""
        stack = self._open.get(self._thread or 0)
        return stack[-1].region if stack else NO_REGION

    def _begin(self) -> int:
        self._renumber(self._open.get(self._thread or 0, []), 0)
        return self.innermost

    def _renumber(self, stack: list[_Open], first: int) -> None:
        """Give numbers to the regions of a stack from one of them on."""
        around = stack[first - 1].region if first else NO_REGION
        for one in stack[first:]:
            one.region = self.regions.number(around, one.name, of_program=one.of_program)
            around = one.region

    def _opens(self, key: object, name: object, frame: FrameType | None, owner: Any = None) -> None:
        """Note that a region opens, by what is called in `frame`.

        Args:
            key: What closes it.
            name: Its name.
            frame: Who opens it; None: the program.
            owner: The object whose end is the region's, if nothing else ends it.
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
        """Note that the region under `key` closes, whoever opened it, and in whatever order."""
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
        """Note that a region was dropped while it was open: that closes it."""
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
        return self._internals.anomalies.fenced("regions_not_seen", "some regions of the program")

    def _wrap_enter(self, enter: Any) -> Any:
        opens, failed, frame_of = self._opens, self._failed, sys._getframe

        def __enter__(region: Any) -> Any:  # noqa: N807
            result = enter(region)
            try:
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
    """Return a function with the names of the module that the original is of.

    TorchScript compiles the class from the source of its methods, which is the original's, and
    looks up the names in it where the function has its own.
    """
    made = FunctionType(
        stands_in.__code__, original.__globals__, original.__name__, None, stands_in.__closure__
    )
    return functools.update_wrapper(made, original)


def _package_of(frame: FrameType | None) -> str:
    """Return the package that opens a region in `frame`; context managers only pass it on."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "contextlib":
            return package
        frame = frame.f_back
    return ""
