"""Record iterations with torch.profiler for the timeline report.

A process has only one profiler, and the program takes precedence: iterations that the program
profiles itself are missing from the timeline. If a program marks no iterations, the timeline
contains the whole run, up to a limit.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

from unified_prof.base.text import NS_PER_MS
from unified_prof.tracking.driver import Instrument
from unified_prof.tracking.torch_names import Patches, instances

# Details that can be recorded in addition to times.
SHAPES, STACKS, MEMORY = DETAILS = ("shapes", "stacks", "memory")
# Details recorded by default. The others almost double the duration of a step, so that a device
# has to wait.
USUAL_DETAILS = (SHAPES,)


def make_profiler(device: str, details: tuple[str, ...]) -> Any:
    """Return a profiler of the CPU and of `device`, a torch device type, with `details`."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    activity = getattr(ProfilerActivity, device.upper(), None)
    if activity not in (None, *activities):
        activities.append(activity)
    return profile(
        activities=activities,
        record_shapes=SHAPES in details,
        profile_memory=MEMORY in details,
        with_stack=STACKS in details,
        # A profiler of all threads reports no memory.
        experimental_config=_all_threads_config() if MEMORY not in details else None,
    )


_is_silent = False
"""True once the profiler has been used, which reads its log level then."""


def without_log_messages(action: Callable[[], Any]) -> Any:
    """Run `action`; if it is the first use of the profiler, its log messages are off from then on.

    A level that the user has chosen remains. Levels up to 6 still print two lines per recording.
    The environment is changed only once: other threads may read it meanwhile.
    """
    global _is_silent
    name = "KINETO_LOG_LEVEL"
    if _is_silent or name in os.environ:
        return action()
    _is_silent = True
    os.environ[name] = "99"
    try:
        return action()
    finally:
        os.environ.pop(name, None)


def is_beyond_stacks() -> bool:
    """Return True if a file of the program has a name that torch cannot record in stacks."""
    modules = list(sys.modules.values())
    files = [getattr(module, "__file__", None) for module in modules]
    return any("\ud800" <= one <= "\udfff" for file in (*files, *sys.path) for one in file or "")


def _all_threads_config() -> Any:
    """Return the profiler options to record all threads and waits; None if not supported."""
    import torch

    config = getattr(torch.profiler, "_ExperimentalConfig", None)
    for options in (
        {"profile_all_threads": True, "enable_cuda_sync_events": True},
        {"enable_cuda_sync_events": True},
    ):
        with suppress(TypeError):
            return None if config is None else config(**options)
    return None


# Runtime calls that enqueue device work; names of operators contain `::`.
_LAUNCH = re.compile(r"[a-z]+(LaunchKernel|LaunchCooperative|Memcpy|Memset|GraphLaunch)")


def check_device_records(events: Any) -> tuple[dict[str, str], str | None]:
    """Check that launches have device records, and count the device time by stream.

    Returns facts, and a sentence for the report or None.
    """
    from torch.autograd import DeviceType

    launches: set[int] = set()
    records: set[int] = set()
    busy_ns: dict[tuple[int, int], int] = {}
    kernels: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event.device_type() == DeviceType.CPU:
            if _LAUNCH.match(event.name()):
                launches.add(event.correlation_id())
            continue
        if event.is_user_annotation() or event.device_resource_id() < 0:
            continue  # a range around work, or a wait for all streams
        records.add(event.correlation_id())
        place = (event.device_index(), event.device_resource_id())
        busy_ns[place] = busy_ns.get(place, 0) + event.duration_ns()
        kernels[place] += 1
    lost = len(launches - records)
    facts = {"timeline_launches": str(len(launches)), "timeline_launches_without_record": str(lost)}
    note = None
    if launches and not records:
        note = (
            f"the timeline has no device work, although {lost:,} kernels and copies were launched: "
            "another profiler may be active (nsys, ncu, DCGM), or profiling may require "
            "permission (NVreg_RestrictProfilingToAdminUsers, CAP_SYS_ADMIN)"
        )
    elif lost:
        note = (
            f"the timeline lacks {lost:,} of {len(launches):,} device tasks: the profiler's "
            "buffers were full, or the tasks failed"
        )
    main = {max((p for p in kernels if p[0] == d), key=kernels.__getitem__) for d, _ in kernels}
    beside = {place: ns for place, ns in busy_ns.items() if place not in main}
    if beside:
        facts["timeline_work_beside_main_streams"] = ", ".join(
            f"device {device} stream {stream}: {ns / NS_PER_MS:.3f} ms"
            for (device, stream), ns in sorted(beside.items())
        )
    return facts, note


# Functions called by every way to start a profiler, by their names in the modules that use them.
_STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")


class ProfilersHere:
    """The program's profilers and ranges at a moment.

    Args:
        entered: Gets the ranges that begin from now on; if None, all objects are searched for them.
    """

    def __init__(self, entered: weakref.WeakSet[Any] | None = None) -> None:
        import torch
        from torch.autograd.profiler import profile, record_function

        is_enabled = bool(torch.autograd._profiler_enabled())
        found = [] if is_enabled else instances(profile, torch.profiler.profile, record_function)
        self.is_active = is_enabled or any(
            one.entered and one.kineto_results is None for one in found if isinstance(one, profile)
        )
        """True if a profiler records in this thread, or is warming up by its schedule.

        A profiler that is warming up does not count as enabled; another one would end that.
        """
        self.marks_steps = any(
            one.step_rec_fn is not None for one in found if isinstance(one, torch.profiler.profile)
        )
        """True if a profiler marks steps, also between its cycles: marks of ours would be added."""
        self._ranges = weakref.WeakSet(one for one in found if isinstance(one, record_function))
        self._entered = entered

    def end_later_ranges(self) -> None:
        """End the ranges that began since then and are open; call it after a recording.

        torch frees their events with the recording, such as that of the optimizer step that ends an
        iteration. A range that ended within another recording would write to its freed event.
        Ending a range twice has no effect.
        """
        import torch
        from torch.autograd.profiler import record_function

        for one in instances(record_function) if self._entered is None else list(self._entered):
            if getattr(one, "record", None) is not None and one not in self._ranges:
                with suppress(RuntimeError):
                    torch.ops.profiler._record_function_exit._RecordFunction(one.record)


# Maximum number of recorded operations for a program that marks no iterations.
_MAX_OPERATIONS = 20_000


class WholeProgram(Instrument):
    """Records a program from its first module call on, in case it never marks an iteration.

    It runs together with the instruments of the program's first iteration, and is called for every
    operation in it. If that iteration ends with an optimizer step, its recording is discarded,
    because the next iterations are recorded.
    """

    def __init__(self, timeline: TimelineInstrument) -> None:
        self.is_all = False
        """True if the program ended without marking an iteration."""
        self._timeline = timeline
        self._open = False
        self._operations = 0
        self._module_call: Any = None

    def start(self) -> None:
        """Prepare recording, which begins with the first module call."""
        from torch.nn import Module

        self._module_call = Module._call_impl.__code__
        self._open = True

    def end_iteration(self, index: int) -> None:
        """Close the only step."""
        self._timeline.close_step()

    def stop(self, complete: bool) -> None:
        """Stop recording; write the trace if the program marked no iterations."""
        self._open = False
        if self.is_all:
            self._timeline.end_recording(keep=True)
        else:  # kept until later iterations are recorded, or the program turns out to have none
            self._timeline.halt()
            self._timeline.skipped = 0

    def program_ended(self) -> None:
        """Note that the program has ended, so that its first iteration is the only one."""
        self.is_all = True
        if not self._open:
            self._timeline.end_recording(keep=True)

    def count_operation(self, frame: FrameType | None) -> None:
        """Count an operation called in `frame`; start recording at the first in a module."""
        if not self._open:
            return
        if self._operations:
            self._operations += 1
            if self._operations > _MAX_OPERATIONS and self._timeline.is_recording:
                self._open = False
                self._timeline.close_step()
                self._timeline.halt()
            return
        while frame is not None and frame.f_code is not self._module_call:
            frame = frame.f_back
        if frame is not None:
            self._operations = 1
            self._timeline.begin_to_record()
            if self._timeline.is_recording:
                self._timeline.open_step()
            else:
                self._timeline.skipped += 1

    @property
    def remark(self) -> str | None:
        """Return a remark on the trace of a program that marked no iterations, or None."""
        if not self.is_all or not self._timeline.written:
            return None
        held = "the program from its first module call on"
        if self._operations > _MAX_OPERATIONS:
            held = f"its first {_MAX_OPERATIONS} operations"
        return (
            f"the program marked no iterations (unified_prof.step()): the timeline contains {held}"
        )


class TimelineInstrument(Instrument):
    """Runs torch.profiler over the iterations and writes its trace to a file.

    Each iteration is marked as torch.profiler marks its steps, without the time in which the
    profiler starts and stops. On a device it is prepared one iteration earlier (`lead_in`), because
    the first iteration that it records there is longer than the others.

    Args:
        path: Trace file to write, compressed if it ends in `.gz`. It is written only if an
            iteration is complete; if another process has written it, another name is used.
        device: torch device type whose activities are recorded in addition to those of the CPU.
        details: Members of DETAILS; each slows down the recording.
    """

    def __init__(self, path: Path, device: str, details: tuple[str, ...] = USUAL_DETAILS) -> None:
        self.path = path
        self.lead_in = 0 if device == "cpu" else 1
        """Number of iterations that it needs before the recorded ones."""
        self.facts: dict[str, str] = {}
        """Settings, and completeness of the recording."""
        self.iterations = 0
        """Number of complete iterations."""
        self.skipped = 0
        """Number of iterations that the program profiled itself, completely or in part."""
        self.written = False
        """True if `path` has been written."""
        self.failure: str | None = None
        """Reason why there is no trace even though iterations were complete."""
        self.whole_program = WholeProgram(self)
        """Recorder of the whole program, for programs that mark no iterations."""
        self._notes: list[str] = []
        self._made_ns = time.time_ns()
        self._device = device
        self._details = details
        self._profiler: Any = None
        self._prepared: Any = None
        """Profiler that is ready to record."""
        self._step: Any = None
        self._in_step = False
        self._marks_steps = True
        self._before: ProfilersHere | None = None
        """The profilers and ranges of the program before the recording."""
        self._halted = False
        self._thread = 0
        self._patches = Patches()

    @property
    def remarks(self) -> str | None:
        """Remarks on the trace for the report; None if there are none."""
        notes = [*filter(None, (self.whole_program.remark, self.failure)), *self._notes]
        if self.skipped:
            left = "the timeline lacks" if self.written else "there is no timeline:"
            notes.append(
                f"{left} {self.skipped} iterations in which the program itself used torch.profiler"
            )
        return "; ".join(notes) or None

    def begin_iteration(self, index: int) -> None:
        """Mark the beginning of a step; start recording if that was not possible before."""
        if index < self.lead_in:
            self._make_ready()
            return
        if not self.is_recording and not self.written:
            self.begin_to_record()
        if self.is_recording:
            self.open_step()
        else:
            self.skipped += 1

    def end_iteration(self, index: int) -> None:
        """Mark the end of the step."""
        self.close_step()

    def stop(self, complete: bool) -> None:
        """Stop recording and write the trace of the complete iterations."""
        self.end_recording(keep=True)

    def begin_to_record(self) -> None:
        """Start torch.profiler, unless the program uses it now."""
        if self._prepared is None:
            self._make_ready()
        self._patches.restore()
        profiler, self._prepared = self._prepared, None
        if profiler is not None:
            self._profiler = self._call("start_trace", profiler)
        if self._profiler is not None:
            self._watch_starts()

    def _make_ready(self) -> None:
        """Prepare torch.profiler, unless the program uses it now."""
        if self._halted:
            self.end_recording(keep=False)
        self._before = ProfilersHere()
        if self._before.is_active:
            return
        self._thread = get_ident()
        self._marks_steps = not self._before.marks_steps
        details = self._details
        if STACKS in details and is_beyond_stacks():
            details = tuple(detail for detail in details if detail != STACKS)
            self._notes = ["the timeline has no stacks: torch supports only file names in UTF-8"]
        self.facts["timeline_details"] = ", ".join(details) or "none"
        if details:
            self.facts["timeline_overhead"] = (
                "details slow down the host, especially stacks and memory, so that devices are "
                "idle for longer"
            )
        self._prepared = self._call("prepare_trace", make_profiler(self._device, details))
        if self._prepared is not None:
            self._watch_starts()

    def _watch_starts(self) -> None:
        """Give way before the program starts a profiler in this thread."""
        from torch.autograd import profiler, profiler_legacy

        def after_ours(start: Any) -> Any:
            def start_after_ours(*arguments: Any, **options: Any) -> Any:
                if get_ident() == self._thread:
                    self._give_way()
                return start(*arguments, **options)

            return start_after_ours

        for module in (profiler, profiler_legacy):
            for name in _STARTS:
                if (start := vars(module).get(name)) is not None:
                    self._patches.replace(module, name, after_ours(start))

    def open_step(self) -> None:
        """Mark the beginning of a step, unless the program marks its steps itself."""
        from torch.profiler import record_function

        self._in_step = True
        if self._marks_steps:
            self._step = record_function(f"ProfilerStep#{self.iterations}")
            self._step.__enter__()

    def close_step(self) -> None:
        """Mark the end of a complete step."""
        if self._in_step:
            self._close_mark()
            self.iterations += 1

    def end_recording(self, *, keep: bool) -> None:
        """Stop recording; if `keep` is True, write the trace of the complete iterations."""
        self.halt()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:  # it never recorded
            with suppress(RuntimeError):
                prepared.start_trace()
                prepared.stop_trace()
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None and self.iterations and keep:
                self._export(profiler)
        except (RuntimeError, OSError) as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
        self._halted = False
        if not keep:
            self.iterations = 0

    def halt(self) -> None:
        """Stop recording; the recording is kept until `end_recording`."""
        self._patches.restore()
        if self._profiler is None or self._halted:
            return
        self._halted = True
        try:
            self._profiler.stop()
        except RuntimeError as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
            self._profiler = None
        self._close_mark()  # The profiler has stopped, so it marks this step as unfinished.
        if self._before is not None:
            self._before.end_later_ranges()

    @property
    def is_recording(self) -> bool:
        """True if our torch.profiler is recording."""
        return self._profiler is not None and not self._halted

    def _call(self, action: str, profiler: Any) -> Any:
        """Call the method `action` of `profiler`; return `profiler`, or None if the call failed."""
        try:
            without_log_messages(getattr(profiler, action))
        except RuntimeError as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
            return None
        return profiler

    def _give_way(self) -> None:
        if self._profiler is not None or self._prepared is not None:
            self.skipped += self._in_step
            self.end_recording(keep=True)

    def _close_mark(self) -> None:
        step, self._step, self._in_step = self._step, None, False
        if step is not None:
            step.__exit__(None, None, None)

    def _export(self, profiler: Any) -> None:
        # Another process may use the same directory at the same time.
        partial = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        if self.path.suffix == ".gz":
            partial = partial.with_suffix(".partial.gz")
        if self._device != "cpu":
            facts, note = check_device_records(profiler.profiler.kineto_results.events())
            self.facts |= facts
            self._notes += [note] if note else []
        try:
            profiler.export_chrome_trace(str(partial))
            if _changed_since(self._made_ns, self.path):
                stem, _, suffix = self.path.name.partition(".")
                mark = f"{platform.node() or 'host'}_{os.getpid()}"
                self.path = self.path.with_name(f"{stem}_{mark}.{suffix}")
            partial.replace(self.path)
            self._made_ns = time.time_ns()
            self.written = True
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _changed_since(moment_ns: int, path: Path) -> bool:
    """Return True if another process has written `path` since then."""
    try:
        return path.stat().st_mtime_ns >= moment_ns
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
