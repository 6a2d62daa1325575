"""Comparison of device recordings, and the public function `unified_prof.diff`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Literal, TypeAlias

import numpy as np

from unified_prof.compare import diff as by_sample
from unified_prof.compare import runs
from unified_prof.compare.comparable import PEAK, TOTAL
from unified_prof.compare.confidence import Noise, NoiseModel, Sample
from unified_prof.compare.device_leaves import Naming
from unified_prof.compare.device_side import UNKNOWN_DEVICE, Side, has_framework, models, read
from unified_prof.compare.device_tables import DeviceDifference, Tables
from unified_prof.compare.diff import Difference, differences, left_out
from unified_prof.compare.operation_changes import By as ComparedBy
from unified_prof.compare.statistics import Comparison, compare
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.recording.calls import UNKNOWN, Labels
from unified_prof.recording.names import COLLECTIVES
from unified_prof.recording.recording import Recording

_FACTS_OF_DEVICES: Final = re.compile(
    r"the runs differ in (?:device|backend|cuda|cann|driver|torch)"
)

WAITS: Final = 1.1  # Minimum ratio of times of collectives from which waits are mentioned.


def _warnings(tables: Tables, *, same: bool, by_framework: bool) -> list[str]:
    """Return sentences about why the two sides may not be comparable."""
    base, new = tables.base, tables.new
    result = [
        sentence
        for sentence in differences(base.facts, new.facts)
        if same or not _FACTS_OF_DEVICES.match(sentence)
    ]
    if (base.steps is None) != (new.steps is None):
        stepped, whole = (base, new) if new.steps is None else (new, base)
        result.append(
            f"the times of {stepped.label} are per step, those of {whole.label} for the "
            f"whole recording, which has no steps{_call_ratio(tables, stepped, whole)}"
        )
    elif base.steps is None:
        result.append(
            "the recordings have no steps (`profiler.step()`) and are compared as a whole, "
            f"regardless of their number of iterations{_call_ratio(tables, base, new)}"
        )
    if not by_framework:
        lacking = [
            name
            for name, side in (("base", base), ("new", new))
            if not (side.leaves.columns["called"] != UNKNOWN).any()
        ]
        who = f"{lacking[0]} has no" if len(lacking) == 1 else "neither side has"
        result.append(
            f"{who} framework operations: tasks are compared by class, kind of kernel and shape"
        )
    for line in tables.by("class"):
        if line.name != COLLECTIVES or line.base is None or line.new is None:
            continue
        if base.steps is None or new.steps is None:
            continue  # The numbers of iterations may differ.
        before, after = base.per_share(line.base.total_ns), new.per_share(line.new.total_ns)
        if base.recordings == new.recordings == 1 and after > WAITS * before:
            result.append(
                "collectives take longer in new, perhaps because they wait for a slower rank: "
                "`uprof cluster diff` compares all ranks"
            )
    return [*result, *base.remarks, *new.remarks]


def _call_ratio(tables: Tables, one: Side, other: Side) -> str:
    """Return a clause with the median ratio of calls (other side over first side)."""
    first, second = (
        (tables.pairing.base, tables.pairing.new)
        if one is tables.base
        else (tables.pairing.new, tables.pairing.base)
    )
    size = len(tables.pairing.keys)
    calls = np.bincount(first, weights=one.leaves.calls, minlength=size) / one.shares
    other_calls = np.bincount(second, weights=other.leaves.calls, minlength=size) / other.shares
    both, either = (calls > 0) & (other_calls > 0), (calls > 0) | (other_calls > 0)
    if not either.any():
        return ""
    if 2 * both.sum() < either.sum():
        return "; most of their operations differ"
    times = float(np.median(other_calls[both] / calls[both]))
    if times == 1:
        return "; their operations occur equally often"
    return f"; its operations occur {times:.3g} times as often as those of {one.label}"


By = Literal["operation", "shape", "module", "line", "kernel", "class"]


def diff_devices(
    base: Sequence[Recording],
    new: Sequence[Recording],
    *,
    labels: tuple[str, str],
    noise: Noise | None = None,
) -> DeviceDifference:
    """Compare device recordings: of each side one, several runs, or one per rank."""
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
        warnings=tuple(_warnings(tables, same=same, by_framework=naming.by_framework)),
        left_out=left_out(*((side.label, side.outside_ns) for side in (before, after))),
        totals=_totals(before, after, NoiseModel.for_clock("device", noise)),
        identical=before.same_figures(after),
        tables=tables,
    )


def _totals(base: Side, new: Side, model: NoiseModel) -> dict[str, Comparison]:
    """Return the comparison of step times and of peak memory."""
    result = {}
    for metric, before, after in (
        (TOTAL, base.step_ns, new.step_ns),
        (PEAK, Sample.from_values(base.peak_bytes), Sample.from_values(new.peak_bytes)),
    ):
        if len(before) and len(after):
            result[metric] = compare(before, after, model)
    return result


Report: TypeAlias = str | os.PathLike[str]
# Report with the captured graphs that each side replays, or None.
Captures: TypeAlias = tuple[Report | None, Report | None]


def diff(
    base: Report | Sequence[Report],
    new: Report | Sequence[Report],
    *,
    by: ComparedBy = "operation",
    captures: Report | Captures | None = None,
) -> Difference | DeviceDifference:
    """Compare two runs, given as reports or directories of reports.

    Args:
        base: The baseline; several reports of the same workload give more samples.
        new: The candidate.
        by: Grouping of the changes of tracked workloads; device recordings are always compared by
            all groupings.
        captures: Report with the capture of the graphs that both sides replay, or one report per
            side; replayed kernels count for the operations recorded there.

    Returns:
        A `DeviceDifference` if both sides are device recordings (msprof databases), else a
        `Difference` with statistics for each operation.

    Raises:
        StoreError: A file is not a report or is unreadable.
        UsageError: The two cannot be compared.
    """
    sides = _paths(base), _paths(new)
    given = captures if isinstance(captures, tuple) else (captures, captures)
    result = diff_recordings(*sides, captures=given)
    if result is not None:
        return result
    if any(one is not None for one in given):
        raise without_replays()
    return by_sample.diff(*(runs.load(side) for side in sides), by=by)


def diff_recordings(
    base: Sequence[Report],
    new: Sequence[Report],
    labels: tuple[str, str] | None = None,
    noise: Noise | None = None,
    captures: Captures = (None, None),
) -> DeviceDifference | None:
    """Compare device recordings; return None unless both sides have device tasks.

    Args:
        base: Reports of the baseline; those of a directory are its ranks.
        new: Reports of the candidate.
        labels: Names of the sides; their paths by default.
        noise: Run-to-run variation learned on this machine.
        captures: For each side, the report with the captured graphs that it replays.

    Raises:
        StoreError: A file is not a report or is unreadable.
        UsageError: A capture has no graphs, or is given for several recordings.
    """
    labels = labels or (_label(base), _label(new))
    with _opened(base, captures[0]) as before, _opened(new, captures[1]) as after:
        if not before or not after:
            return None
        result = diff_devices(before, after, labels=labels, noise=noise)
        return result if len(result.base.leaves) and len(result.new.leaves) else None


@contextmanager
def _opened(paths: Sequence[Report], capture: Report | None) -> Iterator[list[Recording] | None]:
    """Yield the recordings of one side, or None if any is another kind of report."""
    if capture is not None and len(paths) > 1:
        raise UsageError(
            f"a capture applies to one timeline, but {_label(paths)} are {len(paths)} reports",
            hint="name the report of one process",
            slug="not-a-capture",
        )
    with ExitStack() as stack:
        analyses = [
            one
            for path in paths
            for one in stack.enter_context(open_analyses(path, capture=capture))
        ]
        recordings = [one.recording for one in analyses if isinstance(one, MsprofAnalysis)]
        yield recordings if len(recordings) == len(analyses) else None


def without_replays() -> UsageError:
    """Return the error for a capture given with reports that have no device tasks."""
    return UsageError(
        "a capture applies to device recordings, but these reports have host work only",
        slug="not-a-capture",
    )


def _paths(side: Report | Sequence[Report]) -> Sequence[Report]:
    return [side] if isinstance(side, str | os.PathLike) else side


def _label(paths: Sequence[Report]) -> str:
    return ", ".join(map(str, paths))
