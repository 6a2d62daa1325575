"""Copies between host and device: with nothing beside them, or from memory that is not pinned.

The host stops to collect garbage, to allocate memory or to compile, and the device waits.

Calls that wait for the device until it runs dry; and a mode in which every launch waits.
"""

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


GARBAGE_COLLECTION = "garbage_collection"
ALLOCATION_STALLS = "allocation_stalls"
COMPILE_STALLS = "compile_stalls"

LONG_PAUSE_NS = 1_000_000
"""One collection; the advisor's."""
ALLOCATING_NS = 10_000_000
"""In all; the advisor's."""

_ALLOCATES = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)(?:Host|Managed|3D|Pitch|Array)?$|^(?:cuda|hip)Host(?:Alloc|Free)$"
    r"|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|SetAccess)|^aclrt(?:Malloc|Free)|^aclMallocMem"
    r"|^rt(?:Malloc|Free)$",
)
_COMPILES = re.compile(
    r"opCompile$|aclopCompile$|^cu(?:Module|Library)Load|^hipModuleLoad|nvrtcCompile|hiprtcCompile"
    r"|compile_inner|entire_frame_compile|inductor_compile|compile_fx|triton.*compile|codegen",
    re.IGNORECASE,
)


def garbage_collection(case: Case) -> Iterator[Finding]:
    """Collections of a millisecond or more in which the device had nothing to do."""
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
        f"Python collects garbage {times(len(pauses))}, up to {duration(longest)} at once, "
        f"while nothing else runs {percent(case.share(cost))} of the time",
        advice="gc.freeze() after the first steps and a higher gc.set_threshold(), or gc.disable() "
        "and gc.collect() every n steps, on all ranks together",
        sure="certain",
        figures={"pauses": len(pauses), "longest_ns": longest, "idle_ns": cost},
    )


def allocation_stalls(case: Case) -> Iterator[Finding]:
    """Memory asked of, or given back to, the device's driver while the device has no work."""
    yield from _stalls(
        case,
        ALLOCATION_STALLS,
        _ALLOCATES,
        least_ns=ALLOCATING_NS,
        share=LEAST_SHARE,
        text="the program allocates or frees memory of the device {often}, and nothing runs "
        "meanwhile {share} of the time",
        advice="keep the allocator's cache: no empty_cache() in the loop, "
        "expandable_segments:True, shapes that do not change, a batch that leaves some memory",
    )


def compile_stalls(case: Case) -> Iterator[Finding]:
    """Kernels or graphs compiled or loaded in steps that are no warm-up."""
    yield from _stalls(
        case,
        COMPILE_STALLS,
        _COMPILES,
        least_ns=0,
        share=WARN_SHARE,
        text="code is compiled or loaded {often} after the first steps, and nothing runs meanwhile "
        "{share} of the time",
        advice="keep shapes static or in buckets (torch.compile(dynamic=True), mark_dynamic), look "
        "for recompilations with TORCH_LOGS=recompiles, ship operators compiled",
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
    # Without steps nobody knows what is warm-up: what the program begins with is.
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
    """Return the calls of the runtime and ranges of the framework that a pattern names."""
    calls = case.recording.host_calls
    ids, number = calls.names
    said = [text or "" for text in case.recording.strings.texts(ids)]
    wanted = np.array([bool(names.search(text)) for text in said] or [False])
    rows = np.flatnonzero(wanted[number.whole()]) if len(ids) else np.zeros(0, np.int64)
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

STRONG_SHARE, STRONG_OF_IDLE = 0.15, 0.5
"""Of all time, or of the idle time: nsys-ai calls that severe."""
BLOCKING_SHARE = 0.5
"""Of launches that a synchronising call follows at once: the advisor's sign of a blocking mode."""
FEW_LAUNCHES = 20
"""Fewer launches tell no mode."""


def synchronising_calls(case: Case) -> Iterator[Finding]:
    """Idle time from the return of a synchronising call to the next work."""
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
        f"the host waits for the device {times(len(mine))}, which then idles {percent(share)} of "
        f"the time{where}",
        advice="keep values on the device (no .item(), .cpu(), nonzero or boolean indexing in the "
        "step), or read them once every n steps",
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
    """Return the first stretch of each gap of some, and its time from the call's return on."""
    idle, host = case.synchronised, case.recording.idle_time.host
    begins = case.recording.work.start_ns[idle.piece[mine]]
    returned = np.maximum(host.sync.end_ns[idle.sync[mine]], idle.start_ns[mine])
    lost = np.maximum(begins - returned, 0)
    # A gap may have several stretches due to the same calls: it is lost once.
    _, first = np.unique(idle.piece[mine], return_index=True)
    return mine[first], lost[first]


def _ends_a_step(case: Case, mine: Ints) -> NDArray[np.bool_]:
    """Tell which gaps follow the one call that ends or begins a step, as profilers and timers do.

    Nothing is launched in the step behind it, or nothing was before it.
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
    """A program in which a synchronising call follows most launches: a mode for finding errors."""
    calls = case.recording.host_calls
    launching = np.zeros(len(calls), bool)
    row = calls.launching(case.recording.work.connection[case.pieces.row])
    launching[row[row >= 0]] = True
    ids, number = calls.names
    names = case.recording.strings.texts(ids)
    syncs = np.array([is_synchronising(text) for text in names], bool)[number.whole()]
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
        f"a synchronising call follows {percent(share)} of the launches: the program runs in a "
        "blocking mode, host and device never work side by side",
        advice="unset CUDA_LAUNCH_BLOCKING, ASCEND_LAUNCH_BLOCKING and the like, or take the "
        "synchronize() out of the loop",
        sure="likely",
        figures={"launches": int(launching.sum()), "followed": followed, "idle_ns": cost},
        evidence=_calls(case, idle.sync[mine], lost),
    )
