"""Device and host time by annotation (record_function, NVTX, mstx, vLLM, SGLang).

GPU profilers record an annotation twice: on the host and, around the tasks launched in it, on the
device. Device time is taken from the device's ranges. If a recording has none, as with graph
replays, it is the time of the tasks launched while the host's range was open.

Without device tasks, host time is broken down by annotation. Steps and modules, which profilers
mark themselves, are left out. In a tracked workload, an operation and its backward pass count for
all regions that enclose the operation.

The time of a nested annotation counts for all enclosing annotations too, but only once per name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints, by_key
from unified_prof.arrays.intervals import NONE, IntervalSet
from unified_prof.recording.calls import (
    COMMUNICATION,
    COPY,
    KERNEL,
    OPERATION,
    UNKNOWN,
    Calls,
    known_sum,
    region_names,
    sort_rows,
    sums_by,
)
from unified_prof.recording.device import DeviceWork
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.source import Source, Strings, possible
from unified_prof.recording.tasks import Tasks

if TYPE_CHECKING:
    from unified_prof.recording.skyline_tables import Regions as TrackedRegions

STEP = re.compile(r"ProfilerStep\s*[#*]")
_ANY_DEVICE = -1
_KINDS = {
    "busy_ns": (KERNEL, COMMUNICATION, COPY),
    "compute_ns": (KERNEL,),
    "communication_ns": (COMMUNICATION,),
    "copy_ns": (COPY,),
}
# Tables with annotations and their columns; the first table that has rows is used.
_TABLES = {
    "UPROF_GPU_ANNOTATIONS": {"name": "name", "device": "deviceId"},
    "MSTX_EVENTS": {"name": "message", "device": str(_ANY_DEVICE)},
}
NOTE_OF_LAUNCHES = "tasks launched in the range"
# Names by which vLLM (number of requests, then of their tokens, `sq`) and SGLang mark a batch.
_BATCH = re.compile(
    r"execute_(?:\d+_)?context_\d+\((?:sq)?(?P<prefill>\d+)[^)]*\)"
    r"_generation_\d+\((?:sq)?(?P<decode>\d+)[^)]*\)"
)
_STEP_OF_SERVER = re.compile(
    r"step\[(?P<mode>\w+) bs=(?P<requests>\d+)(?: toks=(?P<tokens>\d+))?\]"
)


class Ranges(Struct, frozen=True, eq=False):
    """Annotations as columns, without those that mark steps."""

    name: Ints
    device: Ints
    start_ns: Ints
    end_ns: Ints
    on_device: bool  # True if the ranges are on devices, False if on the host.

    def __len__(self) -> int:
        return len(self.name)


def read(source: Source, strings: Strings, is_step: Callable[[str], object]) -> Ranges:
    """Read the annotations of a GPU recording; other recordings have none."""
    tables = _TABLES if "UPROF_GPU_TASKS" in source.tables else {}
    for table, columns in tables.items():
        times = {"start": "startNs", "duration": "endNs - startNs"}
        result = source.integers(table, columns | times)
        good = possible(result["start"], result["duration"])
        names = np.unique(result["name"]).tolist()
        wanted = [
            number
            for number, text in zip(names, strings.texts(names), strict=True)
            if text is not None and not is_step(text)
        ]
        good &= np.isin(result["name"], wanted)
        if good.any():
            start = result["start"][good]
            return Ranges(
                result["name"][good],
                result["device"][good],
                start,
                start + result["duration"][good],
                on_device=table != "MSTX_EVENTS",
            )
    nothing = np.empty(0, np.int64)
    return Ranges(nothing, nothing, nothing, nothing, on_device=True)


def breakdown(
    ranges: Ranges,
    devices: Mapping[int | None, DeviceWork],
    tasks: Tasks,
    launched_ns: Callable[[], Ints],
    strings: Strings,
) -> Breakdown:
    """Break down device time by annotation; the time of nested annotations is included."""
    within = _busy_within(devices) if ranges.on_device else _launched_within(tasks, launched_ns())
    rows = []
    for name, own in by_key(ranges.name):
        figures: Counter[str] = Counter()
        batches = 0  # Streams and devices have a range each.
        for device, here in by_key(ranges.device[own]):
            window = intervals.merge(ranges.start_ns[own[here]], ranges.end_ns[own[here]])
            figures["window_ns"] += window.total_ns
            batches = max(batches, len(window))
            figures.update(within(device, window))
        text, busy_ns = strings.get(name) or "?", figures.pop("busy_ns", 0)
        # A range of the host ends before its tasks, or includes waiting.
        time_ns = figures["window_ns"] if ranges.on_device else busy_ns
        rows.append(
            Row(
                name=text,
                kind="annotation",
                count=len(own),
                total_ns=busy_ns,
                detail=None if ranges.on_device else NOTE_OF_LAUNCHES,
                extra={**figures, **_tokens(text, batches, time_ns)},
            )
        )
    whole = sum(work.busy.total_ns for work in devices.values())
    return Breakdown("annotation", tuple(sort_rows(rows)), whole or None, None)


def _tokens(name: str, count: int, time_ns: int) -> dict[str, float]:
    """Return the tokens that a server processed in batches of this name, and the time of each.

    The tokens of a prompt are prefilled in one pass; decoding yields one token per request.
    """
    prefill = decode = 0
    if (match := _BATCH.search(name)) is not None:
        prefill, decode = int(match["prefill"]), int(match["decode"])
    elif (match := _STEP_OF_SERVER.fullmatch(name)) is not None:
        is_decode = match["mode"] == "DECODE"
        tokens = int(match["tokens"] or (match["requests"] if is_decode else 0))
        prefill, decode = (0, tokens) if is_decode else (tokens, 0)
    if not prefill + decode:
        return {}
    return {
        "prefill_tokens": prefill * count,
        "decode_tokens": decode * count,
        "time_ns_per_token": time_ns / (prefill + decode) / count,
    }


# Returns the device time within a window, or the time of the tasks launched in it.
TimeWithin = Callable[[int, IntervalSet], dict[str, int]]


def _busy_within(devices: Mapping[int | None, DeviceWork]) -> TimeWithin:
    def within(device: int, window: IntervalSet) -> dict[str, int]:
        work = devices.get(device, devices.get(None))
        if work is None:
            return {}
        parts = {
            "busy_ns": work.busy,
            "compute_ns": work.compute,
            "communication_ns": work.communication,
            "copy_ns": work.copies,
        }
        return {what: intervals.intersect(window, one).total_ns for what, one in parts.items()}

    return within


def _launched_within(tasks: Tasks, launched_ns: Ints) -> TimeWithin:
    order = np.argsort(launched_ns, kind="stable")
    launches = launched_ns[order]

    def within(_: int, window: IntervalSet) -> dict[str, int]:
        low = np.searchsorted(launches, window.start_ns)
        high = np.searchsorted(launches, window.end_ns)
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        # Marks have no length, and an empty window.
        selected = np.concatenate([order[:0], *(order[first:behind] for first, behind in pairs)])
        result: Counter[str] = Counter()
        for _device, rows in by_key(tasks.device[selected]):
            chosen = selected[rows]
            kind, start = tasks.kind[chosen], tasks.start_ns[chosen]
            end = start + tasks.duration_ns[chosen]
            for what, kinds in _KINDS.items():
                at = np.isin(kind, kinds)
                result[what] += intervals.merge(start[at], end[at]).total_ns
        return result

    return within


# mstx domains of the marks that torch_npu sets itself.
_OF_OTHERS = frozenset({"Module", "communication"})


class Regions:
    """Named ranges of host threads, without steps; outer ranges before those inside them."""

    def __init__(self, source: Source, strings: Strings, is_step: Callable[[str], object]) -> None:
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
            if text is None or is_step(text):
                good &= found["name"] != number
        for number in np.unique(found["domain"]).tolist():
            if strings.get(number) in _OF_OTHERS:
                good &= found["domain"] != number
        thread, start, end, name = (
            found[one][good].astype(np.int64) for one in ("thread", "start", "end", "name")
        )
        order = intervals.call_order(thread, start, end)
        self.thread, self.start_ns, self.end_ns = thread[order], start[order], end[order]
        self.name = name[order]
        self.parent: Ints = intervals.parents(self.thread, self.start_ns, self.end_ns)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def self_ns(self) -> Ints:
        """Self time of each region: its time without nested regions."""
        inside = self.parent != NONE
        around = self.parent[inside]
        # A region may end after its enclosing region: only the part inside is subtracted.
        within = np.minimum(self.end_ns[inside], self.end_ns[around]) - self.start_ns[inside]
        taken = np.bincount(around, within, minlength=len(self))
        result: Ints = np.maximum(self.end_ns - self.start_ns - taken.astype(np.int64), 0)
        return result


def breakdown_regions(regions: Regions, strings: Strings) -> Breakdown:
    """Break down host time by region; a region nested in one of the same name counts once."""
    own = regions.self_ns
    rows = []
    for name in np.unique(regions.name).tolist():
        selected = np.flatnonzero(regions.name == name)
        total = sum(
            intervals.merge(regions.start_ns[some], regions.end_ns[some]).total_ns
            for some in _by_thread(regions, selected)
        )
        # The names of the regions around the first region of a name, outermost first.
        names: list[str] = []
        at = int(regions.parent[selected[0]])
        while at != NONE:
            names.append(strings.get(int(regions.name[at])) or "?")
            at = int(regions.parent[at])
        rows.append(
            Row(
                name=strings.get(name) or "?",
                kind="annotation",
                count=len(selected),
                total_ns=total,
                detail=f"in {' / '.join(names[::-1])}" if names else None,
                extra={"self_ns": int(own[selected].sum())},
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


Path = tuple[str, ...]
_SUMMED = ("total_ns", "forward_ns", "backward_ns", "activation_bytes")


def breakdown_tracked_regions(
    calls: Calls, regions: TrackedRegions, iterations: Sequence[int]
) -> Breakdown:
    """Break down operations by region; percentages refer to all operations."""
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
            detail=_enclosing_tracked_names(of_name.get(one, ())),
            extra={
                "self_ns": own_ns[number],
                "peak_bytes": max(
                    (regions.peaks[path] for path in of_name.get(one, ()) if path in regions.peaks),
                    default=None,
                ),
            },
            **{what: values[number] for what, values in sums.items()},
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
    """Return the sort key of a row: time, size, outer regions before inner ones."""
    return -(row.total_ns or 0), -(row.size_bytes or 0), len(path), row.name


def _count(regions: TrackedRegions, paths: Sequence[Path], iterations: Sequence[int]) -> int:
    """Return how often a region is opened per iteration; 0 if opened before the iterations."""
    opened = [
        sum(regions.counts[path].get(iteration, 0) for path in paths) for iteration in iterations
    ]
    return round(median(opened)) if opened else 0


def _enclosing_tracked_names(paths: Sequence[Path]) -> str | None:
    """Return the names of the regions around the first region of a name, outermost first."""
    around = paths[0][:-1] if paths else ()
    return f"in {' / '.join(around)}" if around else None
