"""The `Analysis` interface of reports, and the types of what-if estimates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unified_prof.arrays.grouping import Ints
from unified_prof.errors import UsageError
from unified_prof.recording.calls import AnyCalls, Calls, operation_statistics
from unified_prof.recording.model import (
    Advice,
    Breakdown,
    By,
    Distribution,
    Gaps,
    ModelUse,
    Place,
    PmuFigure,
    Row,
    Samples,
    Series,
    Step,
    Summary,
)

if TYPE_CHECKING:
    from unified_prof.explain.what_if import DeviceEstimate, Gain
    from unified_prof.recording.breakdowns import Stacks
    from unified_prof.recording.collectives import Group
    from unified_prof.recording.host_lanes import HostThreads, IdleLane
    from unified_prof.recording.idle import IdleReasons
    from unified_prof.recording.steps import StepTrace
    from unified_prof.recording.timeline import Timeline, Track


class OverTime(Protocol):
    """Source of tracks and counters for trace export."""

    @property
    def path(self) -> str:
        """Path of the report, or of both reports."""

    def tracks(self) -> Iterator[Track]:
        """Yield the streams and threads, those of devices first."""

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""

    def counter_series(self) -> tuple[Series, ...]:
        """Return counters other than memory over time."""


class Analysis(ABC):
    """One report (or the two Skyline reports of one run); data are read once, when needed."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Path of the report, or of both reports; available without reading them."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Family of the report, as in `Summary`."""

    @property
    @abstractmethod
    def summary(self) -> Summary:
        """The headline figures, anomalies, and what was not measured."""

    @property
    @abstractmethod
    def calls(self) -> Calls:
        """One row per operation call, in program order."""

    @property
    def packed_calls(self) -> AnyCalls:
        """The same calls in windows, because a long recording has many."""
        return self.calls

    @abstractmethod
    def breakdown(self, by: By) -> Breakdown:
        """Return time and memory by one key.

        Raises:
            UsageError: The report lacks the data; `summary.available` lists its breakdowns.
        """

    def steps(self) -> tuple[Step, ...]:
        """Return the measured iterations or recorded steps in order, if any."""
        return ()

    def step_spans(self, *, on_device: bool = False) -> tuple[tuple[str, int, int], ...]:
        """Return name, begin and end of each recorded step in order, Unix time in ns.

        Times are those of the host; if `on_device` and there is one device, those of the device.
        """
        return ()

    def step_traces(self) -> tuple[StepTrace, ...]:
        """Return the steps as measured by the vendor's own analysis (Ascend only)."""
        return ()

    def why_idle(self) -> tuple[IdleReasons, ...]:
        """Return the idle time of each device by reason, in total and per step."""
        return ()

    def advice(self, *, quick: bool = False) -> Advice:
        """Return the findings, most expensive first; if `quick`, only those of cheap rules."""
        return Advice(())

    def model_use(self) -> tuple[ModelUse, ...]:
        """Return the FLOPs and MFU of each device, if shapes were recorded."""
        return ()

    def path_track(self) -> Track | None:
        """Return the critical path of the steps as a track, or None."""
        return None

    def what_if(
        self, changes: Sequence[Change], *, top: int = 10, device: str | None = None
    ) -> WhatIfResult:
        """Estimate the gain of all changes at once; without changes, of the best candidates.

        `device` is the name of another device on which the kernels run.

        Raises:
            UsageError: No recorded item has one of the names, or the report is not a timeline.
        """
        raise UsageError(
            f"no timeline in {self.path}: dependencies were not recorded",
            hint="uprof run --report timeline, or uprof convert a recording",
            slug="no-timeline",
        )

    def groups(self) -> dict[str, Group]:
        """Return the groups of collectives, by display name."""
        return {}

    def statistics(self, by: By) -> dict[tuple[str, str], Mapping[str, float | None]]:
        """Return the distribution of times of each operation or kernel, by name and kind.

        Empty for other breakdowns. It needs another pass over all of them.
        """
        return operation_statistics(self.calls) if by == "operation" else {}

    def kernels_of_operations(self, *, in_steps: bool = True) -> list[tuple[str, Row]]:
        """Return a row for each pair of operation and kernel launched by it, as (operation, row).

        If `in_steps` and the recording has steps, only kernels launched in them count.
        """
        return []

    @property
    def has_places(self) -> bool:
        """True if calls may have a module, a line, sizes, or passes."""
        return True

    def summed_calls(self, *, above: int) -> Calls | None:
        """Return one call per operation, in order of first calls, instead of `calls`.

        None if there are at most `above` calls, or if single calls have more than names and times.
        """
        return None

    @property
    def measures(self) -> tuple[str, ...]:
        """Weights that `stacks` accepts."""
        return ()

    def stacks(self, measure: str, by: Place | None = None) -> Stacks:
        """Return the call stacks weighted with one of `measures`.

        `by` says what calls operations; None: modules if known, else lines if known.

        Raises:
            UsageError: The data were not recorded.
        """
        raise UsageError(f"{self.path} has no stacks of {measure}", slug="no-stacks")

    def steps_of_calls(self) -> tuple[int, Callable[[Calls], Ints]] | None:
        """Return the number of steps, and a function from calls to the index of their step.

        The step of a call outside all steps is UNKNOWN. None if there are no steps, or if calls are
        already operations of one step.
        """
        return None

    def launch_latency(self) -> Distribution | None:
        """Return the launch latency: from the start of a launch to its first task, with queueing.

        Device tasks are kernels, collectives and copies.
        """
        return None

    def samples(self) -> Samples | None:
        """Return the single measurements of the calls, or None."""
        return None

    def input_types(self) -> dict[str, tuple[str, ...]]:
        """Return the dtypes of the inputs of each operation by name, if recorded on the host."""
        return {}

    def gaps(self) -> Gaps | None:
        """Return the time between operations, or None."""
        return None

    def timeline(self, limit: int | None = None) -> Timeline | None:
        """Return the device tasks over time, merged to about `limit` blocks, or None."""
        return None

    def host_threads(self, work: Timeline | None, limit: int) -> HostThreads | None:
        """Return at most `limit` ranges of host threads, or None; `work` is the device timeline."""
        return None

    def idle_lanes(self, limit: int) -> tuple[IdleLane, ...]:
        """Return at most `limit` gaps of the devices with their reasons, if known."""
        return ()

    def tracks(self) -> Iterator[Track]:
        """Yield the recording as tracks of slices, those of devices first."""
        return iter(())

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time, one series per counter."""
        return ()

    def counter_series(self) -> tuple[Series, ...]:
        """Return bandwidths, frequencies and other counters over time."""
        return ()

    def pmu(self) -> tuple[PmuFigure, ...]:
        """Return hardware counters by operator type."""
        return ()


@dataclass(frozen=True, slots=True)
class Change:
    """Assumed change: a name for `what_if.select`, and the factor by which it is faster."""

    name: str
    factor: float  # 2 is half the time; WITHOUT removes the part.


@dataclass(frozen=True, slots=True)
class Candidate:
    """Time saved if one item were twice as fast, or a synchronizing call were removed."""

    name: str
    kind: str  # A class of the critical path.
    on_path_ns: int  # Its time on the path of all steps; of a host range with all that it calls.
    gain_ns: int  # Time saved in all steps together.


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """Estimated time saved by changes, or the best candidates for a change."""

    # Length of the steps as recorded, their number, and whether any was recorded: otherwise the
    # whole recording counts as one.
    before_ns: int
    steps: int
    stepped: bool
    gain: Gain | None  # Gain of the changes; None if there is no change.
    candidates: tuple[Candidate, ...]  # Without changes, what is worth one, best first.
    limits: tuple[str, ...]  # Limits of the estimate, as sentences.
    device: DeviceEstimate | None = None  # The other device, if one was named.
