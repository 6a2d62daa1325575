"""Why two runs of devices may not be comparable, in words.

What two devices (or one, before and after) took for the same work, from the step downwards.

Two runs compared, whatever they were recorded by: the public `unified_prof.diff`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np

from unified_prof.base.display import Displayed
from unified_prof.base.text import NS_PER_MS
from unified_prof.compare import diff as by_sample
from unified_prof.compare import runs
from unified_prof.compare.comparable import PEAK, TOTAL
from unified_prof.compare.confidence import Noise, NoiseModel, Sample
from unified_prof.compare.device_leaves import Naming
from unified_prof.compare.device_side import UNKNOWN_DEVICE, Side, has_framework, models, read
from unified_prof.compare.device_tables import Allowed, Line, Tables
from unified_prof.compare.diff import Difference, differences
from unified_prof.compare.operation_changes import By as ComparedBy
from unified_prof.compare.statistics import Comparison, compare
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.recording.calls import UNKNOWN, Labels

_FACTS_OF_DEVICES: Final = re.compile(
    r"the runs differ in (?:device|backend|cuda|cann|driver|torch)"
)


def doubts_of(tables: Tables, *, same: bool, by_framework: bool) -> list[str]:
    """Return why the two sides may not be comparable."""
    base, new = tables.base, tables.new
    found = [
        said
        for said in differences(base.facts, new.facts)
        if same or not _FACTS_OF_DEVICES.match(said)
    ]
    if (base.steps is None) != (new.steps is None):
        stepped, whole = (base, new) if new.steps is None else (new, base)
        found.append(
            f"the times of {stepped.label} are of one step, those of {whole.label} of the "
            f"whole recording, which has no steps{_guess(tables, stepped, whole)}"
        )
    elif base.steps is None:
        found.append(
            "the recordings have no steps (`profiler.step()`): they are compared as a whole, "
            f"whatever number of iterations each is of{_guess(tables, base, new)}"
        )
    if not by_framework:
        bare = [
            name
            for name, side in (("base", base), ("new", new))
            if not (side.leaves.columns["called"] != UNKNOWN).any()
        ]
        who = f"{bare[0]} has no" if len(bare) == 1 else "neither side has"
        found.append(
            f"{who} framework operations: work is compared by class, kind of kernel and shape"
        )
    return [*found, *base.remarks, *new.remarks]


def _guess(tables: Tables, one: Side, other: Side) -> str:
    """Say how many times as often as in the one the operations of both occur in the other."""
    first, second = (
        (tables.pairing.base, tables.pairing.new)
        if one is tables.base
        else (tables.pairing.new, tables.pairing.base)
    )
    size = len(tables.pairing.keys)
    mine = np.bincount(first, weights=one.leaves.calls, minlength=size) / one.shares
    theirs = np.bincount(second, weights=other.leaves.calls, minlength=size) / other.shares
    both = (mine > 0) & (theirs > 0)
    if not both.any():
        return ""
    times = float(np.median(theirs[both] / mine[both]))
    if times == 1:
        return "; their operations occur equally often"
    return f"; its operations occur {times:.3g} times as often as those of {one.label}"


By = Literal["operation", "shape", "module", "line", "kernel", "class"]


@dataclass(frozen=True, eq=False)
class DeviceDifference(Displayed):
    """Two runs of devices compared, in totals; `Side.per_share` makes them figures of a step.

    The rows of `classes`, `operations`, `modules`, `lines` and `kernels` each add up to
    `Side.work_ns` of both sides, to the nanosecond; PARTS add up to `Side.window_ns`. Each table is
    made when it is first asked for.
    """

    base: Side
    new: Side
    same_devices: bool
    """Whether both sides are of the same model of device."""
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]
    totals: dict[str, Comparison]
    """Steps and peak memory with their statistics, by metric."""
    identical: bool
    """Whether both sides hold the same figures throughout: one recording, given twice."""
    tables: Tables = field(repr=False)
    """The work of both sides, to be summed up."""

    @cached_property
    def allowed(self) -> Mapping[str, Allowed]:
        """What limits each class of work on two models of device, where their peaks are known."""
        return {} if self.same_devices or self.identical else self.tables.allowed()

    @cached_property
    def classes(self) -> tuple[Line, ...]:
        """Work by class, in the order of CLASSES."""
        return self.tables.classes()

    @cached_property
    def operations(self) -> tuple[Line, ...]:
        """Work by class and operation, the greatest loss first, as in all that follow."""
        return self.tables.operations()

    @cached_property
    def modules(self) -> tuple[Line, ...]:
        """Work by module."""
        return self.tables.by("module", "(outside any module)")

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Work by source line."""
        return self.tables.by("line", "(no source line)")

    @cached_property
    def kernels(self) -> tuple[Line, ...]:
        """Work by class and kernel."""
        return self.tables.kernels()

    def kernels_of(self, operation: Line) -> tuple[Line, ...]:
        """Return the kernels under one of `operations`."""
        return self._kernels_of.get(operation.number, ())

    @cached_property
    def _kernels_of(self) -> dict[int, tuple[Line, ...]]:
        return self.tables.kernels_of_operations()

    def change_ns(self, line: Line) -> float:
        """Return how much longer a step of the new side takes for a row."""
        before = 0.0 if line.base is None else self.base.per_share(line.base.total_ns)
        return (0.0 if line.new is None else self.new.per_share(line.new.total_ns)) - before

    def ratio(self, line: Line) -> float | None:
        """Return new over base of a row, None where a side has none of it."""
        if line.base is None or line.new is None or not line.base.total_ns:
            return None
        before = self.base.per_share(line.base.total_ns)
        return self.new.per_share(line.new.total_ns) / before

    def part_ns(self, name: str) -> tuple[float, float]:
        """Return one of PARTS of a step, on both sides."""
        return (
            self.base.per_share(self.base.parts_ns[name]),
            self.new.per_share(self.new.parts_ns[name]),
        )


def diff_devices(
    base: Sequence[MsprofAnalysis],
    new: Sequence[MsprofAnalysis],
    *,
    labels: tuple[str, str],
    noise: Noise | None = None,
) -> DeviceDifference:
    """Compare recordings of device work, one side against the other.

    Args:
        base: The recordings of one run: one, several of it, or one of each rank.
        new: Those of the other.
        labels: What to call the sides.
        noise: How much runs of such a workload differ on this machine, where it was learned.
    """
    texts = Labels()
    naming = Naming(
        by_framework=has_framework(base) and has_framework(new),
        by_kernel=models(base) == models(new),
    )
    before, after = (
        read(label, side, texts, naming) for label, side in zip(labels, (base, new), strict=True)
    )
    tables = Tables(before, after, texts)
    same = set(before.devices) == set(after.devices) and UNKNOWN_DEVICE not in before.devices
    return DeviceDifference(
        base=before,
        new=after,
        same_devices=same,
        warnings=tuple(doubts_of(tables, same=same, by_framework=naming.by_framework)),
        left_out=tuple(_left_out(before, after)),
        totals=_totals(before, after, NoiseModel.for_clock("device", noise)),
        identical=before.same_figures(after),
        tables=tables,
    )


def _left_out(base: Side, new: Side) -> list[str]:
    return [
        f"{side.label} has {side.outside_ns / NS_PER_MS:,.6g} ms of work outside its steps, "
        "which is not compared"
        for side in (base, new)
        if side.outside_ns > 0
    ]


def _totals(base: Side, new: Side, between: NoiseModel) -> dict[str, Comparison]:
    """Compare how long steps took, and peak memory."""
    found = {}
    for metric, before, after in (
        (TOTAL, base.step_ns, new.step_ns),
        (PEAK, Sample.of(base.peak_bytes), Sample.of(new.peak_bytes)),
    ):
        if len(before) and len(after):
            found[metric] = compare(before, after, between)
    return found


Report: TypeAlias = str | os.PathLike[str]
Captures: TypeAlias = tuple[Report | None, Report | None]
"""Where the graphs were captured that each side replays; None: it is not known."""


def diff(
    base: Report | Sequence[Report],
    new: Report | Sequence[Report],
    *,
    by: ComparedBy = "operation",
    captures: Report | Captures | None = None,
) -> Difference | DeviceDifference:
    """Compare two runs: reports, or folders of them; several of one run give more samples.

    Args:
        base: The run before, or on the one device.
        new: The run after, or on the other device.
        by: What the changes of tracked workloads are summed up by; recordings of devices are
            always summed up in every way.
        captures: The report in which the graphs were captured that both sides replay, or one for
            each side: their kernels count for the operations recorded there.

    Returns:
        A `DeviceDifference` where both are recordings of device work (msprof databases), else a
        `Difference` with the statistics of each operation.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: the two cannot be compared.
    """
    sides = _paths(base), _paths(new)
    given = captures if isinstance(captures, tuple) else (captures, captures)
    found = of_devices(*sides, captures=given)
    if found is not None:
        return found
    if any(one is not None for one in given):
        raise without_replays()
    return by_sample.diff(*(runs.load(side) for side in sides), by=by)


def of_devices(
    base: Sequence[Report],
    new: Sequence[Report],
    labels: tuple[str, str] | None = None,
    noise: Noise | None = None,
    captures: Captures = (None, None),
) -> DeviceDifference | None:
    """Compare recordings of devices; None: not both sides are recordings with device work.

    Args:
        base: Reports of the run before; those of a folder are its ranks.
        new: Those of the run after.
        labels: What to call the sides, if not by their paths.
        noise: How much runs of such a workload differ on this machine, where it is known.
        captures: Where the graphs were captured that each side replays.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: a capture is none, or is given for several recordings.
    """
    named = labels or (_label(base), _label(new))
    with _opened(base, captures[0]) as before, _opened(new, captures[1]) as after:
        if not before or not after:
            return None
        found = diff_devices(before, after, labels=named, noise=noise)
        return found if len(found.base.leaves) and len(found.new.leaves) else None


@contextmanager
def _opened(
    paths: Sequence[Report], capture: Report | None
) -> Iterator[list[MsprofAnalysis] | None]:
    """Yield the recordings of one side, None where it has reports of another kind."""
    if capture is not None and len(paths) > 1:
        raise UsageError(
            f"{_label(paths)} are {len(paths)} reports: a capture belongs to one timeline",
            hint="name the report of one process",
            slug="not-a-capture",
        )
    with ExitStack() as stack:
        analyses = [
            one
            for path in paths
            for one in stack.enter_context(open_analyses(path, capture=capture))
        ]
        recordings = [one for one in analyses if isinstance(one, MsprofAnalysis)]
        yield recordings if len(recordings) == len(analyses) else None


def without_replays() -> UsageError:
    """Return the error of a capture that is given for what replays none."""
    return UsageError(
        "a capture of graphs is of two recordings of device work, which these reports are not",
        slug="not-a-capture",
    )


def _paths(side: Report | Sequence[Report]) -> Sequence[Report]:
    return [side] if isinstance(side, str | os.PathLike) else side


def _label(paths: Sequence[Report]) -> str:
    return ", ".join(map(str, paths))
