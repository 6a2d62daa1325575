"""The regions that a tracked program marked, from the tables that uprof adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import Labels, region_text
from unified_prof.analysis.read.source import Findings, Source

_MAX_BYTES = 1 << 53


@dataclass(frozen=True, slots=True)
class Regions:
    """What is known of regions beyond the operations in them, by their paths.

    A path is the names of a region and of those around it, the outermost first.
    """

    counts: Mapping[tuple[str, ...], Mapping[int, int]]
    """How often each was opened, by iteration."""
    peaks: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Highest memory in use while it was open, where that was measured."""


def read(source: Source, findings: Findings) -> Regions:
    """Return the regions of a report; none where it has no table of them."""
    paths, peaks = _paths(source, findings)
    counts: dict[tuple[str, ...], dict[int, int]] = {path: {} for path in paths.values()}
    if paths and "UPROF_REGION_COUNTS" in source.tables:
        rows = source.rows("SELECT region_id, iteration, count FROM UPROF_REGION_COUNTS")
        for region, iteration, count in rows:
            if region in paths and isinstance(count, int) and count >= 0:
                counts[paths[region]][iteration] = count
    return Regions(counts, peaks)


def of_entries(
    source: Source, kind: str, ids: Iterable[int], labels: Labels, findings: Findings
) -> NDArray[np.int32] | None:
    """Return the region of each entry as a number in `labels`; None: the report has none."""
    if "UPROF_REGION_ENTRIES" not in source.tables:
        return None
    paths, _ = _paths(source, findings)
    rows = source.rows(
        "SELECT entry_id, region_id FROM UPROF_REGION_ENTRIES WHERE kind = ?", (kind,)
    )
    texts = {region: region_text(path) for region, path in paths.items()}
    found = {entry: texts[region] for entry, region in rows if region in texts}
    return labels.numbers(map(found.get, ids)) if found else None


def _paths(
    source: Source, findings: Findings
) -> tuple[dict[int, tuple[str, ...]], dict[tuple[str, ...], int]]:
    """Return the path of each region, and the peaks of paths."""
    paths: dict[int, tuple[str, ...]] = {}
    peaks: dict[tuple[str, ...], int] = {}
    if "UPROF_REGIONS" not in source.tables:
        return paths, peaks
    rows = source.rows(
        "SELECT region_id, name, around, peak_usage_bytes FROM UPROF_REGIONS ORDER BY region_id"
    )
    for region, name, around, peak in rows:
        if around is not None and around not in paths:
            findings.add("impossible_region", f"region {region!r} is in {around!r}, which is none")
        path = (*paths.get(around, ()), name if isinstance(name, str) else f"{name!r}")
        paths[region] = path
        if isinstance(peak, int) and 0 <= peak <= _MAX_BYTES:
            peaks[path] = max(peak, peaks.get(path, 0))
    return paths, peaks
