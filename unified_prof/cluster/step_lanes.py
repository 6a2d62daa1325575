"""Timelines of some ranks in one step on the common clock, for HTML pages and merged traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.cluster import rank_partial
from unified_prof.cluster.clocks import CommonClock
from unified_prof.cluster.overview import Overview
from unified_prof.cluster.rank_partial import Partial
from unified_prof.cluster.stored_run import RankRecord, StoredRun
from unified_prof.errors import UprofError, UsageError
from unified_prof.explain.report_questions import OverTime
from unified_prof.recording.model import Series
from unified_prof.recording.timeline import Track

KERNEL_LANE = "kernels"  # Label of intervals with kernels; always the first label.
_MAX_LANES = 16  # Maximum number of lanes.
_MAX_BLOCKS = 5_000  # Maximum number of blocks per lane; the shortest are left out.


@dataclass(frozen=True, slots=True, eq=False)
class RankLane:
    """Timeline of one rank; on the common clock if it is aligned."""

    rank: int
    host: str | None
    aligned: bool  # True if it shares a clock with the first lane.
    step_start_ns: int
    step_end_ns: int
    start_ns: Ints
    end_ns: Ints
    label: Ints  # Index in `StepLanes.labels`.
    left_out: int


@dataclass(frozen=True, slots=True, eq=False)
class StepLanes:
    """Timelines of ranks in one step."""

    step: int
    start_ns: int
    end_ns: int
    error_ns: int  # The largest clock error of the ranks.
    labels: tuple[str, ...]
    lanes: tuple[RankLane, ...]


def select_lanes(
    overview: Overview, *, step: int | None = None, ranks: Iterable[int] | None = None
) -> StepLanes | None:
    """Return the lanes of some ranks in a step; by default the ranks and step with findings.

    Returns:
        None if the run has no steps, or its partials are missing or unreadable.
    """
    run = overview.run
    if step is None:
        step = _step_of_interest(overview)
    if step is None:
        return None
    chosen = list(ranks) if ranks is not None else ranks_of_interest(overview)
    by_number = {rank.rank: rank for rank in run.ranks}
    result = [
        (by_number[number], columns)
        for number in chosen
        if number in by_number and (columns := _partial(run, by_number[number])) is not None
    ]
    return _lanes(run, result, step) if result else None


def ranks_of_interest(overview: Overview, *, most: int = _MAX_LANES) -> list[int]:
    """Return up to `most` ranks to show: ranks with findings, ranks that wait, one per stage."""
    run = overview.run
    named: list[int] = []
    for one in run.findings:
        named += one.ranks[:4]
        named += [rank for pair in one.links[:2] for rank in pair]
    culprit = named[0] if named else None
    for group in run.groups:
        if culprit is not None and culprit in group.ranks and group.size <= most:
            named += group.ranks[:4]
    stages: dict[int | None, int] = {}
    for rank in run.read:
        stages.setdefault(rank.pp, rank.rank)
    known = {one.rank for one in run.read}
    ordered = dict.fromkeys((*named, *stages.values(), *sorted(known)))
    return sorted([rank for rank in ordered if rank in known][:most])


def _step_of_interest(overview: Overview) -> int | None:
    steps = overview.steps
    for finding in overview.run.findings:
        if finding.steps:
            named = [row for row in steps if row.step in finding.steps]
            if named:
                return max(named, key=lambda row: row.longest_ns).step
    return max(steps, key=lambda row: row.longest_ns).step if steps else None


def _partial(run: StoredRun, rank: RankRecord) -> Partial | None:
    """Return the partial of a rank; None if missing or unreadable."""
    if rank.partial is None:
        return None
    path = run.file.parent / rank_partial.PARTIALS_DIRECTORY / Path(rank.partial).name
    try:
        return rank_partial.partial_from_parquet(path.read_bytes(), str(path))
    except (OSError, UprofError):  # the summary does not need it
        return None


def _lanes(run: StoredRun, found: list[tuple[RankRecord, Partial]], step: int) -> StepLanes | None:
    labels: dict[str, int] = {KERNEL_LANE: 0}
    lanes = []
    island = found[0][0].clock_island
    for rank, columns in found:
        rows = np.flatnonzero(columns.steps["step"] == step)
        if not len(rows):
            continue
        begin, end = (int(columns.steps[name][rows[0]]) for name in ("start", "end"))
        aligned = rank.clock_island is not None and rank.clock_island == island
        clock = run.clock(rank) if aligned else CommonClock()
        lanes.append(_lane(rank, columns, (begin, end), clock, aligned, labels))
    if not lanes:
        return None
    return StepLanes(
        step,
        min(min(lane.step_start_ns, *lane.start_ns[:1].tolist()) for lane in lanes),
        max(max(lane.step_end_ns, *lane.end_ns.tolist()[-1:]) for lane in lanes),
        max((rank.clock_error_ns or 0 for rank, _ in found), default=0),
        tuple(labels),
        tuple(lanes),
    )


def _lane(
    rank: RankRecord,
    columns: Partial,
    step: tuple[int, int],
    clock: CommonClock,
    aligned: bool,
    labels: dict[str, int],
) -> RankLane:
    begin, end = step
    marks, calls = columns.marks, columns.communication
    until = np.r_[marks["time"][1:], marks["time"][-1:]]
    first, last = marks["time"] + marks["lead"], until - marks["tail"]
    kernels = (marks["kernels"] > 0) & (last > first) & (first < end) & (last > begin)
    called = (calls["start"] < end) & (calls["end"] > begin)
    numbers = np.array([labels.setdefault(kind, len(labels)) for kind in columns.kinds], np.int64)
    start_ns = np.r_[first[kernels], calls["start"][called]]
    end_ns = np.r_[last[kernels], calls["end"][called]]
    label = np.r_[
        np.zeros(int(kernels.sum()), np.int64),
        numbers[calls["kind"][called]] if len(numbers) else np.zeros(0, np.int64),
    ]
    kept = np.argsort(start_ns - end_ns, kind="stable")[:_MAX_BLOCKS]
    order = kept[np.argsort(start_ns[kept], kind="stable")]
    return RankLane(
        rank.rank,
        rank.host,
        aligned,
        clock.common_at(begin),
        clock.common_at(end),
        clock.common(start_ns[order]),
        clock.common(end_ns[order]),
        label[order],
        max(0, len(start_ns) - _MAX_BLOCKS),
    )


TimeWindow = tuple[int, int]  # Start and end of a window on the rank's own clock, ns.


class ShiftedTimeline:
    """A report whose times are converted to another clock and limited to a window.

    Slices that overlap the window are kept whole, because a shortened slice would show a wrong
    duration.
    """

    def __init__(
        self, timeline: OverTime, clock: CommonClock, window: TimeWindow | None = None
    ) -> None:
        self._timeline = timeline
        self._clock = clock
        self._window = window

    @property
    def path(self) -> str:
        """Path of the report."""
        return self._timeline.path

    def tracks(self) -> Iterator[Track]:
        """Yield the streams and threads with slices in the window."""
        for track in self._timeline.tracks():
            kept = self._kept(track.start_ns, track.end_ns)
            if kept.any():
                shown = track.take(kept)
                yield replace(
                    shown,
                    start_ns=self._clock.common(shown.start_ns),
                    end_ns=self._clock.common(shown.end_ns),
                )

    def memory_series(self) -> tuple[Series, ...]:
        """Return the memory over time within the window."""
        return self._series(self._timeline.memory_series())

    def counter_series(self) -> tuple[Series, ...]:
        """Return the counters within the window."""
        return self._series(self._timeline.counter_series())

    def _series(self, found: tuple[Series, ...]) -> tuple[Series, ...]:
        moved = []
        for one in found:
            kept = self._kept(one.time_ns, one.time_ns)
            if kept.any():
                time_ns = self._clock.common(one.time_ns[kept])
                moved.append(replace(one, time_ns=time_ns, value=one.value[kept]))
        return tuple(moved)

    def _kept(self, start_ns: Ints, end_ns: Ints) -> Bools:
        if self._window is None:
            return np.ones(len(start_ns), bool)
        begin, end = self._window
        return np.asarray((end_ns >= begin) & (start_ns < end))


def step_window(
    run: StoredRun, rank: RankRecord, step: int | None, host_steps: Sequence[tuple[str, int, int]]
) -> TimeWindow | None:
    """Return the start and end of a step on the rank's own clock; None if `step` is None.

    The run holds the time of a step on the device. The host starts earlier, and often finishes
    before the device starts; `host_steps` are name, start and end of the steps there.

    Raises:
        UsageError: The rank has no such step.
    """
    if step is None:
        return None
    table = run.steps
    rows = np.flatnonzero((table.step == step) & (table.rank == rank.rank))
    if not len(rows):
        known = np.unique(table.step[table.rank == rank.rank]).tolist()
        hint = f"its steps: {known[0]} to {known[-1]}" if known else rank.why or "it has none"
        raise UsageError(
            f"rank {rank.rank} of {run.path} has no step {step}", hint=hint, slug="no-such-step"
        )
    times = [int(table.start_ns[rows[0]]), int(table.end_ns[rows[0]])]
    for name, start_ns, end_ns in host_steps:
        if name == str(step):
            times += [start_ns, end_ns]
    return min(times), max(times)


def ranks_by_clock(ranks: list[RankRecord]) -> dict[int | None, list[int]]:
    """Group the ranks by the island of their clock; the key is None if it is unknown."""
    result: dict[int | None, list[int]] = {}
    for rank in ranks:
        result.setdefault(rank.clock_island, []).append(rank.rank)
    return result
