"""Advice rules about stalls: copies, garbage collection, allocation, compilation, syncs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Lookup
from unified_prof.arrays.types import Ints
from unified_prof.explain.advice.device_context import Case, Flags
from unified_prof.explain.advice.idle_rows import (
    LEAST_SHARE,
    ROWS,
    WARN_SHARE,
    duration,
    percent,
    times,
)
from unified_prof.recording.calls import COPY
from unified_prof.recording.idle import SYNCHRONISING, is_synchronising
from unified_prof.recording.model import Evidence, Finding
from unified_prof.recording.source import possible
from unified_prof.sqlite.integer_columns import MISSING

EXPOSED_COPIES = "exposed_copies"
PAGEABLE_COPIES = "pageable_copies"

# If this share of the bytes is copied in the first 2 s (a fifth of a short recording), it is model
# loading.
SET_UP_SHARE, SET_UP_NS, SET_UP_PART = 0.8, 2_000_000_000, 0.2
# Smaller pageable copies cost their call, not their bytes.
LARGE_BYTES = 1 << 20
# Rate of pinned copies over PCIe 4.0 x16, if the run has none to compare with.
PINNED_GB_PER_S = 20.0

_WITH_HOST = re.compile(r"host to device|device to host|h2d|d2h|htod|dtoh", re.IGNORECASE)
_TO_DEVICE = re.compile(r"host to device|h2d|htod", re.IGNORECASE)
_PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
_PINNED = re.compile(r"pinned", re.IGNORECASE)


def _sizes(case: Case) -> Ints:
    """Return the bytes of each task that is a copy, 0 for others."""
    recording = case.recording
    found = recording.source.integers("MEMCPY_INFO", {"id": "globalTaskId", "size": "size"})
    task = recording.work.task[case.pieces.row]
    row = Lookup(found["id"]).rows(np.append(recording.tasks.identity, MISSING)[task])
    size = np.append(found["size"], 0)[row]
    return np.where((row >= 0) & (size > 0), size, 0)


def _of_loop(case: Case, chosen: Flags, size: Ints) -> Flags:
    """Return the copies without those of model loading."""
    if case.steps or not chosen.any():
        return chosen
    start = case.pieces.start_ns
    begin, end = int(case.window.start_ns[0]), int(case.window.end_ns[-1])
    early = chosen & (start < begin + min(SET_UP_NS, SET_UP_PART * (end - begin)))
    if size[early].sum() > SET_UP_SHARE * size[chosen].sum():
        return chosen & ~early
    return chosen


def exposed_copies(case: Case) -> Iterator[Finding]:
    """Find copies between host and device without overlap."""
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
        f"exposed copies: {int(chosen.sum()):,} copies between host and device, "
        f"{percent(case.share(cost))} of the time without overlap",
        advice="overlap the copies: pin_memory=True, non_blocking=True, a separate stream; or "
        "keep the data on the device",
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
    """Find large copies to the device from pageable memory."""
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
    than = "pinned copies of this run" if measured else "pinned copies over PCIe 4.0"
    yield case.finding(
        PAGEABLE_COPIES,
        cost,
        f"pageable copies: {len(chosen):,} large copies to the device reach {own:.1f} "
        f"GB/s, {than} {rate:.1f} GB/s",
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


GARBAGE_COLLECTION = "garbage_collection"
ALLOCATION_STALLS = "allocation_stalls"
COMPILE_STALLS = "compile_stalls"

# Minimum length of one collection (MindStudio advisor's threshold).
LONG_PAUSE_NS = 1_000_000
# Minimum total time (MindStudio advisor's threshold).
ALLOCATING_NS = 10_000_000

_ALLOCATES = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Host|Managed|3D|Pitch|Array)?$|^(?:cuda|hip)Host(?:Alloc|Free)$"
    r"|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess)|^aclrt(?:Malloc|Free)|^aclMallocMem"
    r"|^rt(?:Malloc|Free)$",
)
_COMPILES = re.compile(
    r"opCompile$|aclopCompile$|^cu(?:Module|Library)Load|^hipModuleLoad|nvrtcCompile|hiprtcCompile"
    r"|compile_inner|entire_frame_compile|inductor_compile|compile_fx"
    # Names of operators (`namespace::name`) may contain these words.
    r"|^(?!.*::).*(?:triton.*compile|(?:GraphLowering|Scheduler|Kernel)\.codegen)",
    re.IGNORECASE,
)


def garbage_collection(case: Case) -> Iterator[Finding]:
    """Find garbage collections of a millisecond or more during idle time."""
    found = case.recording.source.integers(
        "GC_RECORD", {"start": "startNs", "duration": "endNs - startNs"}
    )
    good = possible(found["start"], found["duration"]) & (found["duration"] >= LONG_PAUSE_NS)
    start, length = found["start"][good], found["duration"][good]
    pauses = case.within(start, start + length)
    if case.share(pauses.total_ns) < LEAST_SHARE:
        return
    cost = case.idle_in(pauses)
    if not len(pauses) or case.share(cost) < LEAST_SHARE:
        return
    longest = int((pauses.end_ns - pauses.start_ns).max())
    yield case.finding(
        GARBAGE_COLLECTION,
        cost,
        f"garbage collection: {times(len(pauses))}, up to {duration(longest)} each; the "
        f"device is idle meanwhile for {percent(case.share(cost))} of the time",
        advice="call gc.freeze() after the first steps and raise gc.set_threshold(), or "
        "gc.disable() and gc.collect() every n steps on all ranks",
        sure="certain",
        figures={"pauses": len(pauses), "longest_ns": longest, "idle_ns": cost},
    )


def allocation_stalls(case: Case) -> Iterator[Finding]:
    """Find device memory allocations and frees through the driver during idle time."""
    yield from _stalls(
        case,
        ALLOCATION_STALLS,
        _ALLOCATES,
        least_ns=ALLOCATING_NS,
        share=LEAST_SHARE,
        text="driver allocations: device memory is allocated or freed {often}; the device is "
        "idle meanwhile for {share} of the time",
        advice="keep the allocator's cache: no empty_cache() in the loop, "
        "expandable_segments:True, static shapes, a smaller batch",
    )


def compile_stalls(case: Case) -> Iterator[Finding]:
    """Find compilation or loading of kernels and graphs after warm-up."""
    yield from _stalls(
        case,
        COMPILE_STALLS,
        _COMPILES,
        least_ns=0,
        share=WARN_SHARE,
        text="compilation: code is compiled or loaded {often}"
        + (" after the first step" if len(case.steps) > 1 else "")
        + "; the device is idle meanwhile for {share} of the time",
        advice="use static or bucketed shapes (torch.compile(dynamic=True), mark_dynamic), check "
        "TORCH_LOGS=recompiles, precompile operators",
    )


def _stalls(
    case: Case,
    kind: str,
    names: re.Pattern[str],
    *,
    least_ns: int,
    share: float,
    text: str,
    advice: str,
) -> Iterator[Finding]:
    start, end, number, texts = _called(case, names)
    stalls = case.within(start, end)
    if case.share(stalls.total_ns) < share:
        return
    cost = case.idle_in(stalls)
    # Without steps, the beginning of the program counts as warm-up.
    if not case.steps or stalls.total_ns < least_ns or not cost or case.share(cost) < share:
        return
    inside = np.flatnonzero(case.inside(start))
    yield case.finding(
        kind,
        cost,
        text.format(often=times(len(inside)), share=percent(case.share(cost))),
        advice=advice,
        sure="certain",
        figures={"calls": len(inside), "calls_ns": stalls.total_ns, "idle_ns": cost},
        evidence=_evidence(texts, number[inside], (end - start)[inside], start[inside]),
    )


def _called(case: Case, names: re.Pattern[str]) -> tuple[Ints, Ints, Ints, list[str]]:
    """Return the runtime calls and framework ranges that match a pattern."""
    calls = case.recording.host_calls
    ids, number = calls.names
    said = [text or "" for text in case.recording.strings.texts(ids)]
    wanted = np.array([bool(names.search(text)) for text in said] or [False])
    rows = np.flatnonzero(wanted[number.to_array()]) if len(ids) else np.zeros(0, np.int64)
    start, end, which, texts = calls.start_ns[rows], calls.end_ns[rows], number[rows], said
    framework = case.recording.framework
    if framework is not None:
        ranges = framework.matching(lambda name: bool(names.search(name)))
        own, own_number = framework.names(ranges)
        start = np.concatenate((start, framework.start_ns[ranges]))
        end = np.concatenate((end, framework.end_ns[ranges]))
        which = np.concatenate((which, own_number + len(said)))
        texts = [*said, *own]
    with np.errstate(over="ignore"):
        good = possible(start, end - start)
    return start[good], end[good], which[good].astype(np.int64), texts


def _evidence(texts: list[str], number: Ints, length: Ints, start: Ints) -> list[Evidence]:
    kinds, which = np.unique(number, return_inverse=True)
    total = np.bincount(which, weights=length)
    return [
        {
            "name": texts[int(kinds[at])],
            "count": int((which == at).sum()),
            "total_ns": int(total[at]),
            "start_ns": int(start[which == at][0]),
        }
        for at in np.argsort(-total, kind="stable")[:ROWS].tolist()
    ]


SYNCHRONISING_CALLS = "synchronising_calls"
BLOCKING_LAUNCHES = "blocking_launches"

# Severe above these shares of the time and of the idle time (nsys-ai's thresholds).
STRONG_SHARE, STRONG_OF_IDLE = 0.15, 0.5
# Share of launches followed by a synchronization from which the mode is blocking (MindStudio
# advisor's threshold).
BLOCKING_SHARE = 0.5
# Minimum number of launches to detect the mode.
FEW_LAUNCHES = 20


def synchronising_calls(case: Case) -> Iterator[Finding]:
    """Find idle time between the return of a synchronization and the next task."""
    if not case.at_most(SYNCHRONISING):
        return
    idle = case.synchronised
    mine = np.flatnonzero((idle.reason == SYNCHRONISING) & (idle.sync >= 0) & (idle.piece >= 0))
    mine = mine[~_ends_a_step(case, mine)]
    if not len(mine):
        return
    mine, lost = _lost(case, mine)
    cost = int(lost.sum())
    share = case.share(cost)
    if share < WARN_SHARE:
        return
    of_idle = cost / max(case.idle_ns, 1)
    strong = share > STRONG_SHARE or of_idle > STRONG_OF_IDLE
    rows = _calls(case, idle.sync[mine], lost)
    first_row = rows[0]
    where = f", {'most ' if len(mine) > 1 else ''}after {first_row['name'].partition(' (')[0]}"
    where += f" at {first_row['line']}" if "line" in first_row else ""
    yield case.finding(
        SYNCHRONISING_CALLS,
        cost,
        f"synchronization: the host waits for the device {times(len(mine))}, after which "
        f"the device is idle for {percent(share)} of the time{where}",
        advice="keep values on the device (avoid .item(), .cpu(), nonzero, boolean indexing in "
        "the step), or read them every n steps",
        sure="certain",
        figures={
            "idle_ns": cost,
            "idle_share": round(share, 4),
            "share_of_idle": round(of_idle, 4),
            "calls": len(mine),
            "strong": strong,
        },
        evidence=rows,
    )


def _lost(case: Case, mine: Ints) -> tuple[Ints, Ints]:
    """Return the first segment of each gap, and its time after the return of the call."""
    idle, host = case.synchronised, case.recording.idle_time.host
    begins = case.recording.work.start_ns[idle.piece[mine]]
    returned = np.maximum(host.sync.end_ns[idle.sync[mine]], idle.start_ns[mine])
    lost = np.maximum(begins - returned, 0)
    # A gap with several segments of the same calls counts once.
    _, first = np.unique(idle.piece[mine], return_index=True)
    return mine[first], lost[first]


def _ends_a_step(case: Case, mine: Ints) -> NDArray[np.bool_]:
    """Return a mask of gaps after the call that ends or begins a step, as profilers and timers do.

    Nothing is launched in the step after it, or before it.
    """
    idle, steps = case.synchronised, case.recording.steps
    result = np.zeros(len(mine), bool)
    if not steps:
        return result
    calls, work = case.recording.host_calls, case.recording.work
    host = case.recording.idle_time.host
    ends = np.array(sorted(end for _, _, end in steps), np.int64)
    row = calls.launching(work.connection[idle.piece[mine]])
    launched = np.append(calls.start_ns, -1)[row]
    returned = host.sync.end_ns[idle.sync[mine]]
    begun = host.sync.start_ns[idle.sync[mine]]
    at_end = np.searchsorted(ends, launched, side="right") > np.searchsorted(ends, begun)
    at_end &= returned <= launched
    begins = np.array(sorted(begin for _, begin, _ in steps), np.int64)
    step = np.searchsorted(begins, begun, side="right") - 1
    launching = calls.launching(work.connection[case.pieces.row])
    launches = np.sort(calls.start_ns[launching[launching >= 0]])
    before = np.searchsorted(launches, begun) - np.searchsorted(launches, begins[step])
    at_begin = (step >= 0) & (before == 0)
    for at in np.flatnonzero(at_end | at_begin).tolist():
        called, _ = case.recording.idle_time.called(int(idle.sync[mine[at]]))
        result[at] = "(" not in called  # an operation that synchronises is the program's own
    return result


def _calls(case: Case, sync: NDArray[np.integer], lost: Ints) -> list[Evidence]:
    found: dict[tuple[str, str | None], list[int]] = {}
    for call, time in zip(sync.tolist(), lost.tolist(), strict=True):
        sums = found.setdefault(case.recording.idle_time.called(call), [0, 0])
        sums[0] += 1
        sums[1] += time
    heaviest = sorted(found.items(), key=lambda item: -item[1][1])[:ROWS]
    return [
        {"name": name, "count": count, "total_ns": time, **({} if line is None else {"line": line})}
        for (name, line), (count, time) in heaviest
    ]


def blocking_launches(case: Case) -> Iterator[Finding]:
    """Find programs in which a synchronization follows most launches: a debugging mode."""
    calls = case.recording.host_calls
    launching = np.zeros(len(calls), bool)
    row = calls.launching(case.recording.work.connection[case.pieces.row])
    launching[row[row >= 0]] = True
    ids, number = calls.names
    names = case.recording.strings.texts(ids)
    syncs = np.array([is_synchronising(text) for text in names], bool)[number.to_array()]
    order = np.lexsort((calls.start_ns, calls.thread))
    order = order[launching[order] | syncs[order]]
    if len(order) < 2 or int(launching.sum()) < FEW_LAUNCHES:
        return
    same = calls.thread[order[1:]] == calls.thread[order[:-1]]
    followed = int((launching[order[:-1]] & syncs[order[1:]] & same).sum())
    share = followed / int(launching.sum())
    if share <= BLOCKING_SHARE:
        return
    idle = case.synchronised
    known = (idle.reason == SYNCHRONISING) & (idle.sync >= 0) & (idle.piece >= 0)
    mine, lost = _lost(case, np.flatnonzero(known))
    cost = int(lost.sum())
    yield case.finding(
        BLOCKING_LAUNCHES,
        cost,
        f"blocking launches: {percent(share)} of the launches are followed by a "
        "synchronization, so host and device never overlap",
        advice="unset CUDA_LAUNCH_BLOCKING, ASCEND_LAUNCH_BLOCKING and similar, or remove "
        "synchronize() from the loop",
        sure="likely",
        figures={"launches": int(launching.sum()), "followed": followed, "idle_ns": cost},
        evidence=_calls(case, idle.sync[mine], lost),
    )
