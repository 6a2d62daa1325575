"""The host stops to collect garbage, to allocate memory or to compile, and the device waits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.explain.advice.case import Case, Ints
from unified_prof.analysis.explain.advice.limits import (
    LEAST_SHARE,
    ROWS,
    WARN_SHARE,
    duration,
    percent,
    times,
)
from unified_prof.analysis.finding import Evidence, Finding
from unified_prof.analysis.read.possible import possible

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
