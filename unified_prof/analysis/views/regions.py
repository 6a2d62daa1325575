"""Regions that a program marks on the host: of record_function, NVTX and mstx, where no device ran.

A region inside another is part of both; what a region took itself is without those inside it. What
profilers mark of their own accord, steps and modules, is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import sort_rows
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.analysis.views.annotated import STEP
from unified_prof.arrays import intervals, nesting
from unified_prof.arrays.nesting import NONE

Ints = NDArray[np.int64]

_OF_OTHERS = frozenset({"Module", "communication"})
"""Domains of mstx in which torch_npu marks what it does itself."""


class Regions:
    """Named ranges of host threads, nested: those around come first."""

    def __init__(self, source: Source, strings: Strings) -> None:
        columns = {
            "thread": "globalTid",
            "start": "startNs",
            "end": "endNs",
            "name": "message",
            "domain": "domainId",
        }
        found = source.integers("MSTX_EVENTS", columns)
        with np.errstate(over="ignore"):
            good = possible(found["start"], found["end"] - found["start"])
        good &= (found["start"] > 0) & (found["end"] > found["start"])
        for number in np.unique(found["name"]).tolist():
            text = strings.get(number)
            if text is None or STEP.match(text):
                good &= found["name"] != number
        for number in np.unique(found["domain"]).tolist():
            if strings.get(number) in _OF_OTHERS:
                good &= found["domain"] != number
        thread, start, end, name = (
            found[one][good].astype(np.int64) for one in ("thread", "start", "end", "name")
        )
        order = nesting.call_order(thread, start, end)
        self.thread, self.start_ns, self.end_ns = thread[order], start[order], end[order]
        self.name = name[order]
        self.parent: Ints = nesting.parents(self.thread, self.start_ns, self.end_ns)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def self_ns(self) -> Ints:
        """Time of each region without those inside it."""
        inside = self.parent != NONE
        around = self.parent[inside]
        # Regions of one thread may end after the one around them: only what is within is taken.
        within = np.minimum(self.end_ns[inside], self.end_ns[around]) - self.start_ns[inside]
        taken = np.bincount(around, within, minlength=len(self))
        result: Ints = np.maximum(self.end_ns - self.start_ns - taken.astype(np.int64), 0)
        return result


def breakdown(regions: Regions, strings: Strings) -> Breakdown:
    """Divide the host's time by region; one inside another of its name counts once."""
    own = regions.self_ns
    rows = []
    for name in np.unique(regions.name).tolist():
        mine = np.flatnonzero(regions.name == name)
        total = sum(
            intervals.merge(regions.start_ns[some], regions.end_ns[some]).total_ns
            for some in _by_thread(regions, mine)
        )
        rows.append(
            Row(
                name=strings.get(name) or "?",
                kind="annotation",
                count=len(mine),
                total_ns=total,
                detail=_around(regions, mine, strings),
                extra={"self_ns": int(own[mine].sum())},
            )
        )
    whole = sum(
        intervals.merge(regions.start_ns[some], regions.end_ns[some]).total_ns
        for some in _by_thread(regions, np.arange(len(regions)))
    )
    return Breakdown("annotation", tuple(sort_rows(rows)), whole or None, None)


def _by_thread(regions: Regions, some: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    threads = regions.thread[some]
    return [some[threads == thread] for thread in np.unique(threads)]


def _around(regions: Regions, mine: NDArray[np.intp], strings: Strings) -> str | None:
    """Return the regions around the first one of a name, outermost first."""
    names: list[str] = []
    at = int(regions.parent[mine[0]])
    while at != NONE:
        names.append(strings.get(int(regions.name[at])) or "?")
        at = int(regions.parent[at])
    return f"in {' / '.join(names[::-1])}" if names else None
