"""The questions that can be asked of any report.

What people ask of a recording run again: what some changes would gain, and what would at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unified_prof.arrays.types import Ints
from unified_prof.errors import UsageError
from unified_prof.explain import critical_path
from unified_prof.explain.critical_path import limits
from unified_prof.explain.what_if import CLASSES, WITHOUT, Gain, gain, schedule_of, select, without
from unified_prof.recording import breakdowns
from unified_prof.recording.breakdown_kinds import By, Place
from unified_prof.recording.calls import Calls, SomeCalls
from unified_prof.recording.model import (
    Advice,
    Breakdown,
    Distribution,
    Gaps,
    ModelUse,
    PmuFigure,
    Row,
    Samples,
    Series,
    Step,
    Summary,
)
from unified_prof.recording.recording import Recording

if TYPE_CHECKING:
    from unified_prof.recording.collectives import Group
    from unified_prof.recording.host_lanes import HostThreads, IdleLane
    from unified_prof.recording.idle import IdleReasons
    from unified_prof.recording.stacks import Stacks
    from unified_prof.recording.steps import StepTrace
    from unified_prof.recording.timeline import Timeline
    from unified_prof.recording.tracks import Track


class OverTime(Protocol):
    """What has points in time: all that a trace for a viewer is written from."""

    @property
    def path(self) -> str:
        """The file, or the files."""

    def tracks(self) -> Iterator[Track]:
        """Yield the streams and threads, of devices first."""

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""

    def counter_series(self) -> tuple[Series, ...]:
        """Return other counters over time."""


class Analysis(ABC):
    """One report (or the two Skyline reports of one run), read once, asked many times.

    Nothing is read before it is asked for, and nothing is read twice.
    """

    @property
    @abstractmethod
    def path(self) -> str:
        """The file, or the files; known without reading them."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Family of the report, as in `Summary`."""

    @property
    @abstractmethod
    def summary(self) -> Summary:
        """The headline figures, what was odd, and what was not measured."""

    @property
    @abstractmethod
    def calls(self) -> Calls:
        """One row per operation call, in program order."""

    @property
    def held_calls(self) -> SomeCalls:
        """The same, to be looked at some at a time: of a long recording all take much memory."""
        return self.calls

    @abstractmethod
    def breakdown(self, by: By) -> Breakdown:
        """Divide time and memory by one key.

        Raises:
            UsageError: the report does not have what that needs; `summary.available` lists what
                it has.
        """

    def steps(self) -> tuple[Step, ...]:
        """Return the measured iterations or recorded steps in order; empty: there are none."""
        return ()

    def step_spans(self) -> tuple[tuple[str, int, int], ...]:
        """Return name, begin and end of each recorded step in order, Unix time in ns."""
        return ()

    def step_traces(self) -> tuple[StepTrace, ...]:
        """Return the steps as the vendor's own analysis counts them, beside ours; Ascend only."""
        return ()

    def why_idle(self) -> tuple[IdleReasons, ...]:
        """Return the idle time of each device by reason, in all and in each step."""
        return ()

    def advice(self, *, quick: bool = False) -> Advice:
        """Return what could be better, the costliest first.

        Args:
            quick: whether to take no longer than a report can wait: of a large recording only
                rules are asked then that need what it reads anyway.
        """
        return Advice(())

    def model_use(self) -> tuple[ModelUse, ...]:
        """Return what each device calculated of what it could have, where shapes were recorded."""
        return ()

    def path_track(self) -> Track | None:
        """Return the critical path of the steps as a track; None: there is none."""
        return None

    def what_if(self, changes: Sequence[Change], *, top: int = 10) -> Supposed:
        """Return what changes would gain; without any, what is worth one.

        Args:
            changes: what is to be faster, all at once.
            top: how many things to try where there is no change.

        Raises:
            UsageError: nothing of a name was recorded, or the report is no timeline.
        """
        raise UsageError(
            f"no timeline in {self.path}: who waited for whom was not recorded",
            hint="uprof run --report timeline, or uprof convert a recording",
            slug="no-timeline",
        )

    def groups(self) -> dict[str, Group]:
        """Return what is known of the groups that collectives ran in, by what they are called."""
        return {}

    def statistics(self, by: By) -> dict[tuple[str, str], Mapping[str, float | None]]:
        """Return how the single times of each row are distributed, by its name and kind.

        Of operations and kernels; empty: there are none of this breakdown. It costs a pass over
        all of them in order of time, so it is made where it is asked for only.
        """
        return breakdowns.of_operations(self.calls) if by == "operation" else {}

    def kernels_of_operations(self) -> list[tuple[str, Row]]:
        """Return one row for each pair of operation and kernel under it, as (operation, row).

        Where the recording has steps, only what was launched in them counts.
        """
        return []

    @property
    def has_places(self) -> bool:
        """Whether calls may have a module or a line, sizes, or passes."""
        return True

    def summed_calls(self, *, above: int) -> Calls | None:
        """Return one call for each operation, in order of their first calls, instead of `calls`.

        None where there are no more than `above` calls, or where there is more to tell of single
        calls than their names and times.
        """
        return None

    @property
    def measures(self) -> tuple[str, ...]:
        """What `stacks` can be weighted with, see `views.stacks.MEASURES`."""
        return ()

    def stacks(self, measure: str, by: Place | None = None) -> Stacks:
        """Return the call stacks with what was measured at the end of each.

        Args:
            measure: one of `measures`.
            by: what stands above operations; None: modules, else lines, else nothing.

        Raises:
            UsageError: that was not recorded.
        """
        raise UsageError(f"{self.path} has no stacks of {measure}", slug="no-stacks")

    def steps_of_calls(self) -> tuple[int, Callable[[Calls], Ints]] | None:
        """Return the number of steps, and what tells the step of calls, numbered from 0.

        A call that began in no step is UNKNOWN. None where calls have no place among steps: one
        call is then one operation of a step already, or there are no steps.
        """
        return None

    def launch_delay(self) -> Distribution | None:
        """Return the time from the start of a host call that launched work to that work's start.

        Work is what computes, communicates or copies. Of several tasks that one call launched the
        first counts; queueing is included.
        """
        return None

    def samples(self) -> Samples | None:
        """Return the single measurements behind the calls, None where the report keeps none."""
        return None

    def gaps(self) -> Gaps | None:
        """Return the time between operations, None where the report keeps none."""
        return None

    def timeline(self, limit: int | None = None) -> Timeline | None:
        """Return the device's work over time, None where the report has no device tasks.

        Args:
            limit: at most about this many blocks, neighbours being merged; None is no limit.
        """
        return None

    def host_threads(self, work: Timeline | None, limit: int) -> HostThreads | None:
        """Return what threads of the host did over time, None where that was not recorded.

        Args:
            work: the timeline of the devices.
            limit: at most so many ranges.
        """
        return None

    def idle_lanes(self, limit: int) -> tuple[IdleLane, ...]:
        """Return when devices were idle and why; none where no reason can be told.

        Args:
            limit: at most so many gaps.
        """
        return ()

    def tracks(self) -> Iterator[Track]:
        """Yield the recording as tracks of slices, of devices first; none has no points in time."""
        return iter(())

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time, one series a counter."""
        return ()

    def counter_series(self) -> tuple[Series, ...]:
        """Return bandwidths, frequencies and other counters over time."""
        return ()

    def pmu(self) -> tuple[PmuFigure, ...]:
        """Return hardware counters by operator type."""
        return ()


_TWICE = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is to take less time."""

    name: str
    """As `what_if.select` takes it."""
    factor: float
    """How much faster; WITHOUT: it is not done at all."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What would be gained if one thing were twice as fast (of a call that waits: without it)."""

    name: str
    kind: str
    """A class of the critical path."""
    on_path_ns: int
    """Its time on the path of all steps; of a range on the host with all that it calls."""
    gain_ns: int
    """What all steps would gain."""


@dataclass(frozen=True, slots=True)
class Supposed:
    """The answer."""

    before_ns: int
    """Length of the steps as recorded."""
    steps: int
    stepped: bool
    """Whether any step was recorded; else the whole recording counts as one."""
    gain: Gain | None
    """What the changes would gain; None: no change was asked for."""
    worth: tuple[Worth, ...]
    """Without a change: what is worth one, the best first."""
    limits: tuple[str, ...]
    """What the recording cannot tell, in sentences."""


def suppose(recording: Recording, changes: Sequence[Change], *, top: int) -> Supposed:
    """Return what changes would gain; without any, what is worth one.

    Args:
        recording: the recording.
        changes: all of them at once.
        top: how many things to look at where there is no change.

    Raises:
        UsageError: nothing was recorded that a name stands for, or nothing at all.
    """
    scheduled = schedule_of(recording)
    if scheduled is None:
        raise UsageError(
            f"{recording.source.path} has neither device work nor host ranges: nothing can be "
            "said of what would be faster",
            slug="no-device-work",
        )
    chosen = [
        (
            without(recording, one.name) if one.factor == WITHOUT else select(recording, one.name),
            one.factor,
        )
        for one in changes
    ]
    lengths = scheduled.steps_ns()
    return Supposed(
        before_ns=int(lengths.sum()),
        steps=len(lengths),
        stepped=any(scheduled.step_names),
        gain=gain(recording, chosen) if chosen else None,
        worth=() if chosen else tuple(_worth(recording, top)),
        limits=tuple(sentence for _, sentence in limits(recording, scheduled)),
    )


def _worth(recording: Recording, top: int) -> list[Worth]:
    """Return what would gain most: each class of time, and the costliest things on the path."""
    critical = critical_path.of_recording(recording)
    assert critical is not None
    rows = [row for row in critical.rows() if row.total_ns]
    of_class: dict[str, int] = {}
    for row in rows:
        of_class[row.kind] = of_class.get(row.kind, 0) + (row.total_ns or 0)
    asked = [(kind, kind, total) for kind, total in of_class.items() if kind in CLASSES]
    named = 0
    for row in rows:
        if named == top:
            break
        name = f"host:{row.name}" if row.kind in ("host", "synchronising") else row.name
        if row.kind in ("kernel", "communication", "copy", "host", "synchronising"):
            asked.append((name, row.kind, row.total_ns or 0))
            named += 1
    found = []
    for name, kind, total in asked:
        try:
            selection = select(recording, name)
        except UsageError:  # a line between operations is no name of anything
            continue
        factor = WITHOUT if kind == "synchronising" else _TWICE
        if kind == "host" and name not in CLASSES:
            # A row of the path is what was innermost; who speeds a range up means all within it.
            total = critical.on_host_ns(selection)
        gained = gain(recording, [(selection, factor)])
        assert gained is not None
        found.append(Worth(name, kind, total, gained.gain_ns))
    return sorted(found, key=lambda one: (-one.gain_ns, one.name))
