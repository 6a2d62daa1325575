"""The time and memory of a tracked workload by the regions that its program marks.

An operation belongs to the innermost region around it and to all around that, its backward pass
with it. A region is what has a name: one within another of the same name counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from unified_prof.analysis.calls import (
    OPERATION,
    UNKNOWN,
    Calls,
    known_sum,
    region_names,
    sums_by,
)
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.read.skyline_regions import Regions

Path = tuple[str, ...]
_SUMMED = ("total_ns", "forward_ns", "backward_ns", "activation_bytes")


def breakdown(calls: Calls, regions: Regions, iterations: Sequence[int]) -> Breakdown:
    """Divide operations by region; percentages refer to all operations.

    Args:
        calls: operations, weights and activations.
        regions: what else is known of them.
        iterations: those that were averaged.
    """
    names = dict.fromkeys(name for path in regions.counts for name in path)
    column = np.full(len(calls), UNKNOWN) if calls.region is None else calls.region
    inside = np.flatnonzero((column != UNKNOWN) & (calls.kind == OPERATION))
    texts = {number: region_names(calls.labels.texts[number]) for number in set(column[inside])}
    names |= dict.fromkeys(name for path in texts.values() for name in path)
    number_of = {name: number for number, name in enumerate(names)}
    pairs = [
        (call, number_of[name])
        for call, path in zip(inside.tolist(), column[inside].tolist(), strict=True)
        for name in dict.fromkeys(texts[path])
    ]
    call, name = np.array(pairs, np.int64).reshape(-1, 2).T
    sums = {
        what: sums_by(name, len(names), None if values is None else values[call])
        for what in _SUMMED
        for values in (getattr(calls, what),)
    }
    own_ns = sums_by(
        np.array([number_of[texts[one][-1]] for one in column[inside].tolist()], np.int64),
        len(names),
        None if calls.total_ns is None else calls.total_ns[inside],
    )
    of_name: dict[str, list[Path]] = {}
    for path in regions.counts:
        of_name.setdefault(path[-1], []).append(path)
    rows = [
        Row(
            name=one,
            kind="annotation",
            count=_count(regions, of_name.get(one, ()), iterations),
            total_ns=sums["total_ns"][number],
            forward_ns=sums["forward_ns"][number],
            backward_ns=sums["backward_ns"][number],
            activation_bytes=sums["activation_bytes"][number],
            detail=_around(of_name.get(one, ())),
            extra={
                "self_ns": own_ns[number],
                "peak_bytes": max(
                    (regions.peaks[path] for path in of_name.get(one, ()) if path in regions.peaks),
                    default=None,
                ),
            },
        )
        for one, number in number_of.items()
    ]
    return Breakdown(
        "annotation",
        tuple(sorted(rows, key=lambda row: _order(row, of_name.get(row.name, ((),))[0]))),
        known_sum(calls.total_ns),
        known_sum(calls.activation_bytes),
    )


def _order(row: Row, path: Path) -> tuple[int, int, int, str]:
    """Return what rows stand in the order of: time, size, and what is around before what is in."""
    return -(row.total_ns or 0), -(row.size_bytes or 0), len(path), row.name


def _count(regions: Regions, paths: Sequence[Path], iterations: Sequence[int]) -> int:
    """Return how often regions are opened in an iteration; 0: they were open before."""
    opened = [sum(regions.counts[path].get(one, 0) for path in paths) for one in iterations]
    return round(median(opened)) if opened else 0


def _around(paths: Sequence[Path]) -> str | None:
    """Return the regions around the first one of a name, the outermost first."""
    around = paths[0][:-1] if paths else ()
    return f"in {' / '.join(around)}" if around else None
