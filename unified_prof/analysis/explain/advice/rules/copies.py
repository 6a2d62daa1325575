"""Copies between host and device: with nothing beside them, or from memory that is not pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import COPY
from unified_prof.analysis.explain.advice.case import Case, Flags, Ints
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, WARN_SHARE, percent
from unified_prof.analysis.finding import Finding
from unified_prof.arrays import intervals
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING

EXPOSED_COPIES = "exposed_copies"
PAGEABLE_COPIES = "pageable_copies"

SET_UP_SHARE, SET_UP_NS, SET_UP_PART = 0.8, 2_000_000_000, 0.2
"""Most bytes in the first two seconds (a fifth of a short recording): the model is loaded."""
LARGE_BYTES = 1 << 20
"""A pageable copy that is smaller costs its call, not its bytes."""
PINNED_GB_PER_S = 20.0
"""What pinned copies reach over PCIe 4.0 x16, where the run itself has none to compare with."""

_WITH_HOST = re.compile(r"host to device|device to host|h2d|d2h|htod|dtoh", re.IGNORECASE)
_TO_DEVICE = re.compile(r"host to device|h2d|htod", re.IGNORECASE)
_PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
_PINNED = re.compile(r"pinned", re.IGNORECASE)


def _sizes(case: Case) -> Ints:
    """Return the bytes of each piece that is a copy, 0 of all else."""
    recording = case.recording
    found = recording.source.integers("MEMCPY_INFO", {"id": "globalTaskId", "size": "size"})
    task = recording.work.task[case.pieces.row]
    row = Lookup(found["id"]).rows(np.append(recording.tasks.identity, MISSING)[task])
    size = np.append(found["size"], 0)[row]
    return np.where((row >= 0) & (size > 0), size, 0)


def _of_loop(case: Case, chosen: Flags, size: Ints) -> Flags:
    """Return the copies without those of setting up."""
    if case.steps or not chosen.any():
        return chosen
    start = case.pieces.start_ns
    begin, end = int(case.window.start_ns[0]), int(case.window.end_ns[-1])
    early = chosen & (start < begin + min(SET_UP_NS, SET_UP_PART * (end - begin)))
    if size[early].sum() > SET_UP_SHARE * size[chosen].sum():
        return chosen & ~early
    return chosen


def exposed_copies(case: Case) -> Iterator[Finding]:
    """Copies between host and device that run alone."""
    pieces = case.pieces
    size = _sizes(case)
    chosen = (pieces.kind == COPY) & case.named(case.operator, _WITH_HOST)
    chosen = _of_loop(case, chosen, size)
    own = intervals.merge(pieces.start_ns[chosen], pieces.end_ns[chosen])
    others = intervals.merge(pieces.start_ns[~chosen], pieces.end_ns[~chosen])
    cost = intervals.intersect(intervals.subtract(own, others), case.window).total_ns
    if case.share(cost) < WARN_SHARE:
        return
    moved = int(size[chosen].sum())
    yield case.finding(
        EXPOSED_COPIES,
        cost,
        f"{int(chosen.sum()):,} copies between host and device run alone "
        f"{percent(case.share(cost))} of the time",
        advice="copy ahead, beside the computation: pin_memory=True, non_blocking=True, a stream "
        "of its own; or keep the data on the device",
        sure="certain",
        figures={
            "exposed_ns": cost,
            "exposed_share": round(case.share(cost), 4),
            "copies": int(chosen.sum()),
            "moved_bytes": moved,
        },
        evidence=case.rows(np.flatnonzero(chosen)),
    )


def pageable_copies(case: Case) -> Iterator[Finding]:
    """Large copies to the device from memory that is not pinned."""
    recording, pieces = case.recording, case.pieces
    found = recording.source.integers("UPROF_GPU_TASKS", {"id": "globalTaskId", "name": "name"})
    task = recording.work.task[pieces.row]
    row = Lookup(found["id"]).rows(np.append(recording.tasks.identity, MISSING)[task])
    name = np.append(found["name"], MISSING)[row]
    ids = np.unique(name)
    texts = [recording.strings.get(one) or "" for one in ids.tolist()]
    size = _sizes(case)
    copies = (pieces.kind == COPY) & (size > LARGE_BYTES) & case.named(case.operator, _TO_DEVICE)

    def called(pattern: re.Pattern[str]) -> Flags:
        wanted = ids[[bool(pattern.search(text)) for text in texts]]
        found: Flags = copies & np.isin(name, wanted)
        return found

    pageable, pinned = _of_loop(case, called(_PAGEABLE), size), called(_PINNED)
    length = np.maximum(pieces.length_ns, 1)
    measured = bool(pinned.any())
    rate = float(np.median(size[pinned] / length[pinned])) if measured else PINNED_GB_PER_S
    chosen = np.flatnonzero(pageable)
    cost = case.gains(chosen, length[chosen] - size[chosen] / rate)
    if not len(chosen) or case.share(cost) < LEAST_SHARE:
        return
    moved = int(size[chosen].sum())
    own = moved / int(length[chosen].sum())
    than = "pinned ones of this run" if measured else "PCIe 4.0 gives pinned ones"
    yield case.finding(
        PAGEABLE_COPIES,
        cost,
        f"{len(chosen):,} large copies to the device come from memory that is not pinned, at "
        f"{own:.1f} GB/s against {rate:.1f} ({than})",
        advice="pin the memory (DataLoader(pin_memory=True), tensor.pin_memory()) and copy with "
        "non_blocking=True",
        sure="likely" if measured else "possible",
        figures={
            "copies": len(chosen),
            "moved_bytes": moved,
            "gb_per_s": round(own, 3),
            "pinned_gb_per_s": round(rate, 3),
        },
        evidence=case.rows(chosen),
    )
