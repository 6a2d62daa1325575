"""Advice rules about device memory, and about steps that differ or grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import codes
from unified_prof.arrays.types import Ints
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import ROWS, duration, percent, times
from unified_prof.explain.advice.registry import FEW_STEPS
from unified_prof.recording.counters import MAX_BYTES, TORCH
from unified_prof.recording.idle import IN_WORDS, REASONS, meet
from unified_prof.recording.model import Evidence, Finding

MEMORY_PRESSURE = "memory_pressure"
MEMORY_FRAGMENTATION = "memory_fragmentation"
ALLOCATION_RETRIES = "allocation_retries"

# Minimum share of the device's memory (TraceML's threshold).
PRESSURE = 0.92
# Minimum variation; servers fill the memory on purpose, with a constant amount.
VARIES_SHARE = 0.05
# TraceML's thresholds: reserved is twice the allocated memory, and 30 % of the device.
TIMES_ALLOCATED, RESERVED_SHARE = 2.0, 0.30
# Lines are named if this many hold this share of the peak.
FEW_LINES, MOST_OF_PEAK = 3, 0.5
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """States of torch's allocator on one device, by time."""

    at_ns: Ints
    allocated: Ints
    reserved: Ints


def _memory(case: Case) -> _Memory:
    found = case.recording.source.integers(
        "MEMORY_RECORD",
        {
            "component": "component",
            "at": "timestamp",
            "allocated": "coalesce(totalAllocated, 0)",
            "reserved": "coalesce(totalReserved, 0)",
            "device": "coalesce(deviceId, -1)",
        },
    )
    ids, number = codes(found["component"])
    torch = np.array([text == TORCH for text in case.recording.strings.texts(ids)] or [False])
    good = torch[number] if len(ids) else np.zeros(0, bool)
    if case.number is not None:
        good &= found["device"] == case.number
    for name in ("allocated", "reserved"):
        good &= (found[name] >= 0) & (found[name] < MAX_BYTES)
    rows = np.flatnonzero(good)
    rows = rows[np.argsort(found["at"][rows], kind="stable")]
    return _Memory(found["at"][rows], found["allocated"][rows], found["reserved"][rows])


def _whole(case: Case) -> int | None:
    """Return the memory of the device in bytes, or None if not recorded."""
    if "UPROF_GPU_DEVICES" not in case.recording.source.tables:
        return None
    told = "CASE name WHEN 'totalGlobalMem' THEN CAST(value AS INTEGER) ELSE 0 END"
    found = case.recording.source.integers(
        "UPROF_GPU_DEVICES", {"device": "deviceId", "bytes": told}
    )
    sizes = found["bytes"][(found["bytes"] > 0) & (found["bytes"] < MAX_BYTES)]
    if case.number is not None:
        mine = (found["bytes"] > 0) & (found["device"] == case.number)
        sizes = found["bytes"][mine]
    return int(sizes[0]) if len(sizes) else None


def memory_pressure(case: Case) -> Iterator[Finding]:
    """Find a device whose memory is nearly full, and the lines that hold most of it."""
    memory, whole = _memory(case), _whole(case)
    assert whole is not None
    if not len(memory.at_ns):
        return
    held = np.maximum(memory.reserved, memory.allocated)
    peak = int(held.max())
    varies = int(memory.allocated.max() - memory.allocated.min())
    if peak < PRESSURE * whole or varies < VARIES_SHARE * whole:
        return
    rows = _lines(case, int(memory.at_ns[int(memory.allocated.argmax())]))
    most = sum(row["total_bytes"] for row in rows[:FEW_LINES]) / max(int(memory.allocated.max()), 1)
    lines = "1 line holds" if len(rows) == 1 else f"{len(rows[:FEW_LINES])} lines hold"
    where = f"; {lines} {percent(most)} of it" if most >= MOST_OF_PEAK else ""
    yield case.finding(
        MEMORY_PRESSURE,
        0,
        f"memory nearly full: torch reserves {peak / _GIB:.1f} of {whole / _GIB:.1f} GiB "
        f"at the peak{where}",
        advice="use a smaller batch, activation checkpointing around these lines, or lower "
        "precision, before allocations are retried or fail",
        sure="certain",
        figures={"peak_bytes": peak, "memory_bytes": whole, "share": round(peak / whole, 4)},
        evidence=rows,
    )


def _lines(case: Case, at_ns: int) -> list[Evidence]:
    """Return the lines that had allocated the memory in use at a time."""
    framework = case.recording.framework
    found = case.recording.source.integers(
        "OP_MEMORY",
        {"name": "name", "size": "size", "at": "allocationTime", "until": "releaseTime"},
    )
    alive = (found["at"] > 0) & (found["at"] <= at_ns) & (found["size"] > 0)
    alive &= (found["until"] <= 0) | (found["until"] > at_ns)
    if framework is None or not alive.any():
        return []
    names = [case.recording.strings.get(one) or "" for one in found["name"][alive].tolist()]
    calls = framework.calls_at(names, found["at"][alive])
    stacks, number = framework.stacks(calls)
    sums: dict[str, list[int]] = {}
    for stack, size in zip(number.tolist(), found["size"][alive].tolist(), strict=True):
        frames = stacks[stack]
        if frames is not None:
            own = sums.setdefault(frames.rpartition("\n")[2], [0, 0])
            own[0] += 1
            own[1] += size
    heaviest = sorted(sums.items(), key=lambda item: -item[1][1])[:ROWS]
    return [
        {"name": line, "line": line, "count": count, "total_bytes": size}
        for line, (count, size) in heaviest
    ]


def memory_fragmentation(case: Case) -> Iterator[Finding]:
    """Find memory that the allocator reserves but never uses."""
    memory, whole = _memory(case), _whole(case)
    assert whole is not None
    if not len(memory.at_ns) or not memory.allocated.any():
        return
    held, used = int(memory.reserved.max()), int(memory.allocated.max())
    if held < TIMES_ALLOCATED * used or held < RESERVED_SHARE * whole:
        return
    yield case.finding(
        MEMORY_FRAGMENTATION,
        0,
        f"fragmentation: torch reserves {held / _GIB:.1f} GiB but allocates at most "
        f"{used / _GIB:.1f} GiB",
        advice="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_NPU_ALLOC_CONF), "
        "keep shapes static",
        sure="certain",
        figures={"reserved_bytes": held, "allocated_bytes": used, "memory_bytes": whole},
    )


def allocation_retries(case: Case) -> Iterator[Finding]:
    """Find failed allocations after which the allocator empties its cache and retries."""
    calls = case.recording.host_calls
    ids, number = calls.names
    texts = [text or "" for text in case.recording.strings.texts(ids)]
    kind = np.array([_retrying(text) for text in texts] or [0])[number.to_array()]
    launching = calls.launching(case.recording.work.connection[case.pieces.row])
    kind[launching[launching >= 0]] = _LAUNCH
    order = np.lexsort((calls.start_ns, calls.thread))
    order = order[(kind[order] > 0) & case.inside(calls.start_ns[order])]
    begins, ends = [], []
    asked: int | None = None
    freed = False
    for row in order.tolist():
        if kind[row] == _MALLOC:
            if freed and asked is not None:
                begins.append(asked)
                ends.append(int(calls.end_ns[row]))
            asked, freed = int(calls.start_ns[row]), False
        elif kind[row] == _FREE:
            freed = asked is not None
        else:
            # A thread that launches has its memory: a free there is a normal one.
            asked, freed = None, False
    if not begins or not case.steps:
        return
    retries = case.within(np.array(begins, np.int64), np.array(ends, np.int64))
    cost = case.idle_in(retries)
    yield case.finding(
        ALLOCATION_RETRIES,
        cost,
        f"allocation retries: {times(len(begins))} in the steps, the allocator empties its "
        "cache and allocates again",
        advice="reduce memory use: smaller batch, activation checkpointing, "
        "expandable_segments:True",
        sure="likely",
        figures={"retries": len(begins), "idle_ns": cost},
    )


_MALLOC, _FREE, _LAUNCH = 1, 2, 3


def _retrying(name: str) -> int:
    if name in ("cudaMalloc", "hipMalloc") or name.startswith("aclrtMallocAlign"):
        return _MALLOC
    return _FREE if name in ("cudaFree", "hipFree", "aclrtFree") else 0


def lacks_size(case: Case) -> str | None:
    """Return a reason if the memory size of the device is unknown."""
    return None if _whole(case) else "memory size of the device not recorded"


SLOW_STEPS = "slow_steps"
STEPS_GROW = "steps_grow"

# A step is slow above this many medians.
SLOW = 1.5
# TraceML's thresholds: 8 % from first to last quarter, over 100 steps or more.
TREND, LONG_RUN = 0.08, 100
_ON_PURPOSE = re.compile(r"eval|valid|checkpoint|save|test", re.IGNORECASE)


def slow_steps(case: Case) -> Iterator[Finding]:
    """Find single steps that are much longer than the median."""
    begin, end = _windows(case)
    length = end - begin
    if len(length) < FEW_STEPS:
        return
    usual = float(np.median(length))
    slow = np.flatnonzero((length > SLOW * usual) & ~_on_purpose(case, begin, end))
    if not len(slow):
        return
    cost = float((length[slow] - usual).sum())
    worst = int(slow[int(length[slow].argmax())])
    names = [name for name, _, _ in case.recording.steps][1:]
    grown, by = _grown(case, begin, end, worst, usual)
    more = "" if len(slow) == 1 else f" ({len(slow)} slow steps)"
    yield case.finding(
        SLOW_STEPS,
        cost * case.step_count / len(length),
        f"step {names[worst]} takes {duration(int(length[worst]))}, median "
        f"{duration(usual)}{more}; {grown} grows most, by {duration(by)}",
        advice="look at this step in `uprof export`",
        sure="certain",
        figures={"slow": len(slow), "steps": len(length), "median_ns": round(usual), "grew": grown},
        evidence=[
            {"name": f"step {names[at]}", "count": 1, "total_ns": int(length[at])}
            for at in slow[np.argsort(-length[slow], kind="stable")][:5].tolist()
        ],
        steps=[int(names[at]) if names[at].isdecimal() else at + 1 for at in slow.tolist()],
    )


def steps_grow(case: Case) -> Iterator[Finding]:
    """Find steps that become longer over time."""
    begin, end = _windows(case)
    length = end - begin
    if len(length) < LONG_RUN:
        return
    quarter = len(length) // 4
    first, last = (float(np.median(part)) for part in (length[:quarter], length[-quarter:]))
    if last <= (1 + TREND) * first:
        return
    cost = float(np.maximum(length - first, 0).sum()) * case.step_count / len(length)
    yield case.finding(
        STEPS_GROW,
        cost,
        f"steps become longer: {duration(first)} in the first quarter, {duration(last)} in "
        f"the last ({percent(last / first - 1)} more)",
        advice="look for accumulation: lists of tensors, retained graphs, longer inputs, "
        "fragmentation, thermal throttling",
        sure="certain",
        figures={"first_ns": round(first), "last_ns": round(last), "steps": len(length)},
    )


def _windows(case: Case) -> tuple[Ints, Ints]:
    """Return begin and end of each step except the first."""
    if case.device is not None:
        windows = case.recording.step_windows[case.device]
        return windows.start_ns[1:], windows.end_ns[1:]
    times = np.array([step[1:] for step in case.recording.steps[1:]], np.int64).reshape(-1, 2)
    return times[:, 0], times[:, 1]


def _on_purpose(case: Case, begin: Ints, end: Ints) -> Flags:
    """Return a mask of steps with an evaluation or a checkpoint, by the names of their ranges."""
    framework = case.recording.framework
    result = np.zeros(len(begin), bool)
    if framework is not None:
        named = framework.matching(lambda name: "::" not in name and bool(_ON_PURPOSE.search(name)))
        for at in named.tolist():
            result |= (framework.start_ns[at] < end) & (framework.end_ns[at] > begin)
    return result


def _grown(case: Case, begin: Ints, end: Ints, worst: int, usual: float) -> tuple[str, float]:
    """Return the part of a step that grew most against the median, and by how much."""
    if case.device is None:
        return "host time", float(end[worst] - begin[worst]) - usual
    steps = IntervalSet(begin, end)
    each = {
        name: np.zeros(len(begin), np.int64)
        for name in (
            *("computation", "communication", "copies"),
            *(f"idle time {IN_WORDS[reason]}" for reason in REASONS),
        )
    }
    for stretch in case.recording.devices[case.device].stretches():
        for name, part in (
            ("computation", stretch.compute),
            ("communication", stretch.communication),
            ("copies", stretch.copies),
        ):
            start, stop, _, step = meet(part, steps)
            np.add.at(each[name], step, stop - start)
    for segments in case.recording.idle_time.parts(case.device):
        idle = IntervalSet(segments.start_ns, segments.end_ns)
        start, stop, which, step = meet(idle, steps)
        for number, reason in enumerate(REASONS):
            own = segments.reason[which] == number
            np.add.at(each[f"idle time {IN_WORDS[reason]}"], step[own], (stop - start)[own])
    grown = {name: float(times[worst] - np.median(times)) for name, times in each.items()}
    most = max(grown, key=lambda name: grown[name])
    return most, grown[most]
