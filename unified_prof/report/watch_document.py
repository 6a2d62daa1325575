"""Figures of a watched run, as text, Markdown, JSON, and tables of steps.

Steps that a capture slowed are counted, and left out of all other figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base import arrow_files
from unified_prof.compare.step_changes import RECENT, WARM_UP, grown
from unified_prof.errors import INTERRUPTED, UsageError
from unified_prof.report.document import Column, Document, csv_text, dump_json, fill_page
from unified_prof.report.formats import ReportRequest
from unified_prof.report.names import format_duration, format_number, format_share, format_size
from unified_prof.report.terminal import render_document
from unified_prof.sqlite.watch_file import STEP_COLUMNS, UNKNOWN, RankSteps, WatchEvent, read_folder

WATCH_FORMAT_VERSION = 1
_ON_HOST = {"data_ns": "data loading", "wait_ns": "host wait"}
_ON_DEVICE = {"forward_ns": "forward", "backward_ns": "backward", "optimizer_ns": "optimizer"}
_MAX_EVENTS, _MAX_SLOW = 10, 5
_TYPICAL = 0.1  # A mean that differs from the median by less than this share is not mentioned.
_SLOW = 1.5  # A slow step takes this many times the median of the steps around it.
# Blocks whose minima of memory give its growth, and the steps of the shortest one.
_BLOCKS, _MIN_BLOCK = 20, 10
_MIN_CHANGE = 0.05  # Change over the whole run from which steps or memory are said to grow.
# The live view: latest steps, width and characters of its charts, and latest events.
RECENT_STEPS = 240
_CHART_WIDTH = 60
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MAX_LIVE_EVENTS = 3
_INTERVALS = 300  # Intervals of a line on the page, each drawn by its minimum and maximum.
# Captures of these events show a problem; the latest one is tried first.
_PROBLEMS = ("slow_step", "drift", "memory_growth")
_LASTING = ("drift", "memory_growth")
_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Lengths of the steps; `first_ns` and `last_ns` are medians of a tenth of the run each."""

    median_ns: float
    p90_ns: float
    max_ns: float
    first_ns: float | None
    last_ns: float | None

    @property
    def drift(self) -> float | None:
        """Change from the first to the last tenth; None if there are too few steps."""
        return (
            None if not self.first_ns or self.last_ns is None else self.last_ns / self.first_ns - 1
        )


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Allocated memory; growth is the median slope between the minima of blocks of steps."""

    last_bytes: int
    max_bytes: int
    growth_per_1000_steps_bytes: float | None


@dataclass(frozen=True, slots=True)
class ClockParts:
    """Mean step by one clock, host or device; its parts add up to it."""

    clock: str
    step_ns: float
    parts_ns: dict[str, float]


@dataclass(frozen=True, slots=True)
class SlowStep:
    """Step that took longer than the median of the steps around it, and the part that grew."""

    step: int
    length_ns: int
    ratio: float
    part: str | None
    excess_ns: float | None
    capture: str | None


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Figures of the steps of one rank."""

    rank: int
    device: str
    is_running: bool
    exit_code: int | None
    steps: int
    captured_steps: int
    length: StepLengths | None
    memory: StepMemory | None
    samples_per_second: float | None
    garbage_collection_percent: float
    clocks: list[ClockParts]
    slow_steps: list[SlowStep]
    events: list[WatchEvent]

    @property
    def largest(self) -> str:
        """The largest part and its share of the step; on devices, `other` and waiting are none."""
        hidden = ("host wait", "other") if len(self.clocks) > 1 else ()
        shares = [
            (part_ns / max(clock.step_ns, 1), name)
            for clock in self.clocks
            for name, part_ns in clock.parts_ns.items()
            if name not in hidden
        ]
        return "{1} {0:.0%}".format(*max(shares)).replace("%", " %") if shares else "-"

    @property
    def memory_text(self) -> str:
        """Latest and largest memory, and its growth if there are enough steps."""
        if self.memory is None:
            return "-"
        last, most = map(format_size, (self.memory.last_bytes, self.memory.max_bytes))
        end = "" if self.is_running else " at the end"
        return ", ".join(filter(None, (f"{last}{end}", f"max {most}", self.memory_change)))

    @property
    def memory_change(self) -> str | None:
        """Growth of memory in words; None if there are too few steps."""
        if self.memory is None or (growth := self.memory.growth_per_1000_steps_bytes) is None:
            return None
        if abs(growth * self.steps) < 1_000 * _MIN_CHANGE * self.memory.max_bytes:
            return "steady"
        change = "grows" if growth > 0 else "shrinks"
        return f"{change} by {format_size(abs(growth))} per 1,000 steps"


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of a watched run; `try_first` is the first finding of `capture`, or a command."""

    path: str
    headline: str
    slowest_rank: int | None
    capture: str | None
    try_first: str
    ranks: list[RankFigures]


def run_figures(
    ranks: Mapping[int, RankSteps], folder: Path, recent: int | None = None
) -> RunFigures:
    """Return the figures of a run from its latest `recent` steps (None: all).

    `folder` is the directory of the run, for commands.
    """
    found = [_rank_figures(ranks[rank], recent) for rank in sorted(ranks)]
    medians_ns = {one.rank: one.length.median_ns for one in found if one.length is not None}
    headline, slowest = "no complete step", None
    if medians_ns:
        slowest = max(medians_ns, key=medians_ns.__getitem__)
        (one,) = (one for one in found if one.rank == slowest)
        headline = (
            f"a step takes {format_duration(medians_ns[slowest])}{_mean_text(one)}; "
            f"largest part: {one.largest}"
        )
        if len(medians_ns) > 1:
            ratio = medians_ns[slowest] / max(np.median([*medians_ns.values()]), 1)
            headline = f"rank {slowest} is slowest ({ratio:.2f} of the median rank): {headline}"
        if one.length is not None and (drift := one.length.drift) is not None:
            change = f"{100 * abs(drift):.1f} % {'slower' if drift > 0 else 'faster'} than"
            headline += f"; {'as fast as' if abs(drift) < _MIN_CHANGE else change} at the beginning"
        if (growth := one.memory_change) is not None and growth.startswith("grows"):
            headline += f"; memory {growth}"
    return RunFigures(
        str(folder), headline, slowest if len(found) > 1 else None, *_advice(found, folder), found
    )


def _advice(found: Sequence[RankFigures], folder: Path) -> tuple[str | None, str]:
    """Return the capture that matters most and its first finding, or what else to try first."""
    events = [event for one in found for event in one.events]
    ready = [event for event in events if event.status == "ready"]
    unknown = [event.text for event in events if event.kind in _LASTING and not event.capture]
    if ready and not (unknown and all(event.kind not in _PROBLEMS for event in ready)):
        best = max(
            ready,
            key=lambda event: (
                *(event.finding != "no findings", event.kind in _PROBLEMS),
                *(event.kind != "healthy", event.time_ns),
            ),
        )
        return best.capture, best.finding or "no findings"
    command = (
        f"capture {folder}" if any(one.is_running for one in found) else "watch --every 60 SCRIPT"
    )
    return None, ": ".join([f"record a timeline with uprof {command}", *unknown[-1:]])


def _rank_figures(one: RankSteps, recent: int | None) -> RankFigures:
    places = np.flatnonzero(one.columns["event"] == UNKNOWN)
    memory = _memory(places, one.values("allocated_bytes")[places])
    count, places = len(places), places[-recent:] if recent else places
    values = {name: one.values(name)[places] for name in STEP_COLUMNS}
    length, samples = values["length_ns"], values["samples"]
    sampled, device = np.isfinite(samples), one.facts.get("device", "cpu")
    total_ns = max(float(length.sum()), 1.0)
    exit_code = one.facts.get("exit_code")
    rate = float(np.nansum(samples) / max(length[sampled].sum(), 1) * 1e9)
    return RankFigures(
        *(one.rank, device, one.is_running, None if exit_code is None else int(exit_code)),
        *(count, len(one) - count),
        length=_lengths(length, has_drift=recent is None),
        memory=memory,
        samples_per_second=rate if sampled.any() else None,
        garbage_collection_percent=100 * float(values["gc_ns"].sum()) / total_ns,
        clocks=list(_clocks(values, on_device=not device.startswith("cpu"))),
        slow_steps=_slow_steps(one, places, length),
        events=one.events,
    )


def _lengths(length: _Values, *, has_drift: bool) -> StepLengths | None:
    if not len(length):
        return None
    settled, tenth = length[WARM_UP:], (len(length) - WARM_UP) // 10
    ends = settled[:tenth], settled[-tenth:]
    has_drift = has_drift and tenth >= _MIN_BLOCK
    return StepLengths(
        *map(float, np.percentile(length, (50, 90, 100))),
        *(float(np.median(part)) if has_drift else None for part in ends),
    )


def _memory(steps: NDArray[np.int64], sizes: _Values) -> StepMemory | None:
    known = np.isfinite(sizes)
    steps, sizes = steps[known], sizes[known]
    if not len(sizes):
        return None
    growth = None
    if len(sizes) >= WARM_UP + _BLOCKS * _MIN_BLOCK:
        first = np.linspace(WARM_UP, len(sizes), _BLOCKS, endpoint=False).astype(np.int64)
        least, begin = np.minimum.reduceat(sizes, first), steps[first]
        later, earlier = np.tril_indices(_BLOCKS, -1)
        slopes = (least[later] - least[earlier]) / (begin[later] - begin[earlier])
        growth = float(np.median(slopes)) * 1_000
    return StepMemory(int(sizes[-1]), int(sizes.max()), growth)


def _clocks(values: Mapping[str, _Values], *, on_device: bool) -> Iterator[ClockParts]:
    clocks = {"host": _ON_HOST, "device": _ON_DEVICE}
    for clock, titles in clocks.items() if on_device else [("host", _ON_HOST | _ON_DEVICE)]:
        known = np.isfinite(np.sum([values[name] for name in titles], axis=0))
        if not known.any():  # the device has not completed a step
            continue
        parts_ns = {title: float(values[name][known].mean()) for name, title in titles.items()}
        total_ns = sum(parts_ns.values())
        # By the clock of the device, passes can exceed the step of the host that launched them.
        step_ns = max(float(values["length_ns"][known].mean()), total_ns)
        yield ClockParts(clock, step_ns, parts_ns | {"other": step_ns - total_ns})


def _slow_steps(one: RankSteps, places: NDArray[np.int64], length: _Values) -> list[SlowStep]:
    """Return the steps that exceed the median of their block of 100 steps most."""
    if len(length) < 2 * WARM_UP:
        return []
    blocks, size = max(1, len(length) // RECENT), min(RECENT, len(length))
    medians = np.median(length[: blocks * size].reshape(blocks, size), axis=1)
    usual = medians[np.minimum(np.arange(len(length)) // size, blocks - 1)]
    captures = {event.step: event.capture for event in one.events if event.kind == "slow_step"}
    found = []
    for place in WARM_UP + np.argsort(usual[WARM_UP:] - length[WARM_UP:])[:_MAX_SLOW]:
        ratio = float(length[place] / max(usual[place], 1))
        if ratio < _SLOW:
            break
        *before, row = one.rows(places[max(0, place - RECENT) : place + 1])
        part, excess_ns = grown(before, [row]) or (None, None)
        found.append(
            SlowStep(row.step, row.length_ns, ratio, part, excess_ns, captures.get(row.step))
        )
    return found


def watch_document(run: RunFigures) -> Document:
    """Return the summary of a watched run; of several ranks, the slowest one has details."""
    document = Document()
    document.title(f"{run.path}: steps of a watched run")
    document.line(run.headline)
    source = "" if run.capture is None else f" (uprof advise {run.path}/{run.capture})"
    document.fact("try first", f"{run.try_first}{source}")
    if run.slowest_rank is not None:
        _add_ranks(document, run.ranks)
        document.heading(f"rank {run.slowest_rank}, the slowest")
    for one in run.ranks:
        if run.slowest_rank in (None, one.rank):
            _add_rank(document, one)
    return document


def _columns(*rows: Sequence[str]) -> list[Column]:
    """Return rows as columns; the first row has the headings."""
    texts = ("part", "clock", "mostly", "cause", "capture")
    return [
        Column(heading, tuple(cells), is_name=heading in texts, is_prose=heading in texts)
        for heading, *cells in zip(*rows, strict=True)
    ]


def _add_ranks(document: Document, ranks: Sequence[RankFigures]) -> None:
    medians_ns = [one.length.median_ns for one in ranks if one.length is not None]
    usual_ns = max(float(np.median(medians_ns)), 1)
    rows = [
        (str(one.rank), format_duration(median_ns), f"{median_ns / usual_ns:.2f}", one.largest)
        for one in ranks
        if one.length is not None and (median_ns := one.length.median_ns)
    ]
    document.table(_columns(("rank", "median", "ratio", "mostly"), *rows))


def _add_rank(document: Document, one: RankFigures) -> None:
    if one.length is None:
        document.line("no complete step: no optimizer stepped twice, no model was called twice")
        return
    _add_facts(document, one)
    parts = [
        (name, clock.clock, format_duration(part_ns), format_share(part_ns, clock.step_ns))
        for clock in one.clocks
        for name, part_ns in clock.parts_ns.items()
    ]
    document.table(_columns(("part", "clock", "per step", "share"), *parts))
    if one.garbage_collection_percent > 0.1:
        document.note(f"garbage collection took {one.garbage_collection_percent:.1f} % of the time")
    _add_slow_steps(document, one)


def _mean_text(one: RankFigures) -> str:
    """Return the mean step, which its parts divide, if it is not about the median."""
    mean_ns = next((clock.step_ns for clock in one.clocks if clock.clock == "host"), None)
    if mean_ns is None or one.length is None:
        return ""
    is_typical = abs(mean_ns - one.length.median_ns) <= _TYPICAL * one.length.median_ns
    return "" if is_typical else f", mean {format_duration(mean_ns)}"


def _add_facts(document: Document, one: RankFigures) -> None:
    """Add the figures of a rank that has steps, without tables."""
    length = one.length
    assert length is not None
    note = f", {one.captured_steps:,} more slowed by captures" if one.captured_steps else ""
    if one.is_running:
        note += ", running"
    elif one.exit_code != 0:
        ended = {None: "killed", INTERRUPTED: "interrupted"}
        note += f", {ended.get(one.exit_code, f'exit code {one.exit_code}')}"
    document.fact("steps", f"{one.steps:,}{note}")
    median, p90, longest = map(format_duration, (length.median_ns, length.p90_ns, length.max_ns))
    document.fact("step", f"median {median}{_mean_text(one)}, p90 {p90}, max {longest}")
    if one.samples_per_second is not None:
        document.fact("samples per second", format_number(round(one.samples_per_second)))
    if length.drift is not None:
        first, last = map(format_duration, (length.first_ns, length.last_ns))
        document.fact(
            "drift",
            f"median {first} in the first tenth, {last} in the last ({100 * length.drift:+.1f} %)",
        )
    if one.memory is not None:
        document.fact("memory", one.memory_text)


def _add_slow_steps(document: Document, one: RankFigures) -> None:
    rows = [
        (
            *(f"{slow.step:,}", format_duration(slow.length_ns), f"{slow.ratio:.1f}"),
            f"{slow.part or 'unknown'} +{format_duration(slow.excess_ns)}",
            slow.capture or "-",
        )
        for slow in one.slow_steps
    ]
    if rows:
        headings = ("slow step", "time", "ratio", "cause", "capture")
        document.table(_columns(headings, *rows), caption="slow steps")
    shown = [event for event in one.events if event.kind != "healthy"]
    if shown:
        document.heading("events")
    for event in shown[-_MAX_EVENTS:]:
        document.line(f"- {event.text}")
        if event.capture is not None:
            document.line(f"  {event.capture}: {event.finding or event.status}")
    if len(shown) > _MAX_EVENTS:
        document.note(f"and {len(shown) - _MAX_EVENTS:,} earlier events")


def live_document(ranks: Mapping[int, RankSteps], folder: Path) -> Document:
    """Return the latest steps and events; of several ranks, the parts of the slowest one."""
    document, run = Document(), run_figures(ranks, folder, recent=RECENT_STEPS)
    document.title(f"{folder}: {run.headline}")
    known = [(one, one.length.median_ns) for one in run.ranks if one.length is not None]
    for one, _ in known:
        if run.slowest_rank in (None, one.rank):
            _add_facts(document, one)
            document.fact(
                "step time", _sparkline(ranks[one.rank].values("length_ns")[-RECENT_STEPS:])
            )
            clock = one.clocks[-1]
            parts = [part for part in clock.parts_ns.items() if part[1]]
            texts = (f"{name} {format_share(part_ns, clock.step_ns)}" for name, part_ns in parts)
            document.fact("parts", ", ".join(texts), parts)
    if len(known) > 1:
        medians_ns = np.array([median_ns for _, median_ns in known])
        ends = f"median {format_duration(medians_ns.min())} to {format_duration(medians_ns.max())}"
        document.fact("ranks", f"{_sparkline(medians_ns)}  {ends}")
    events = [event for one in run.ranks for event in one.events if event.kind != "healthy"]
    for event in sorted(events, key=lambda event: event.time_ns)[-_MAX_LIVE_EVENTS:]:
        document.fact("event", event.text)
    return document


def _sparkline(values: _Values) -> str:
    """Return the maxima of up to 60 blocks as bars; a full bar is the overall maximum."""
    count = min(_CHART_WIDTH, len(values))
    most = np.maximum.reduceat(
        values, np.linspace(0, len(values), count, endpoint=False).astype(int)
    )
    return "".join(_HEIGHTS[min(int(8 * one / max(most.max(), 1)), 7)] for one in most)


def produce_watch(
    shape: str, ranks: Mapping[int, RankSteps], folder: Path, request: ReportRequest
) -> str | bytes:
    """Render a watched run in a format of reports; CSV, Parquet and Arrow have all steps.

    Raises UsageError if pyarrow is required, and not installed.
    """
    if shape == "csv":
        steps = ({"rank": rank} | row._asdict() for rank in ranks for row in ranks[rank].rows())
        return csv_text(steps, ("rank", *STEP_COLUMNS))
    if shape in arrow_files.KINDS:
        return _steps_file(ranks, shape)
    run = run_figures(ranks, folder)
    if shape == "html":
        return watch_page(ranks, folder)
    if shape == "json":
        head = {"format": "uprof-watch", "version": WATCH_FORMAT_VERSION}
        return dump_json(head | asdict(run))
    return render_document(watch_document(run), shape, request)


def render_watched(
    folder: Path, shape: str, rank: int | None, request: ReportRequest
) -> tuple[str | bytes, str]:
    """Render the watched run in a directory; return it, and which ranks cannot be read.

    Raises StoreError if no rank, or the given one, can be read, and UsageError if there is no such
    rank, or pyarrow is required, and not installed.
    """
    damaged: dict[int, str] = {}
    ranks = read_folder(folder, damaged=damaged)
    if not ranks or rank in damaged:
        ranks = read_folder(folder)  # raises what is wrong
    if rank is None:
        missing = (f"rank {number} cannot be read: {why}" for number, why in damaged.items())
        return produce_watch(shape, ranks, folder, request), "; ".join(missing)
    if rank not in ranks:
        raise UsageError(
            f"{folder} has no rank {rank}",
            hint=f"it has {', '.join(map(str, sorted(ranks)))}",
            slug="no-such-rank",
        )
    return produce_watch(shape, {rank: ranks[rank]}, folder, request), ""


def watch_page(ranks: Mapping[int, RankSteps], folder: Path, *, is_live: bool = False) -> str:
    """Render a run as a page; if `is_live`, it fetches itself again to get new data.

    Parts over time are those of the slowest rank.
    """
    run = run_figures(ranks, folder)
    known = {f"rank {rank}": one for rank, one in ranks.items() if len(one)}
    began_ns = min((int(one.columns["start_ns"][0]) for one in known.values()), default=0)
    chosen = ranks[min(ranks) if run.slowest_rank is None else run.slowest_rank]
    wanted = [("steps", name, "length_ns", one) for name, one in known.items()]
    wanted += [("memory", name, "allocated_bytes", one) for name, one in known.items()]
    wanted += [("parts", name, column, chosen) for column, name in (_ON_HOST | _ON_DEVICE).items()]
    lines = [
        {"chart": chart, "name": name, **_line(one, column, began_ns)}
        for chart, name, column, one in wanted
        # Memory is a line between samples, of which a short run has one.
        if np.isfinite(one.values(column)).sum() > (chart == "memory")
    ]
    span_ns = max((line["time_ns"][-1] for line in lines), default=0)
    return fill_page(
        f"{folder.name}: watched run",
        ("page.css",),
        ("base.js", "frame.js", "table.js", "timeline.js", "chart.js", "watch.js"),
        {"live": is_live, "run": asdict(run), "lines": lines, "span_ns": span_ns},
        allows_fetch=is_live,
    )


def _line(one: RankSteps, column: str, began_ns: int) -> dict[str, Any]:
    values = one.values(column)
    known = np.flatnonzero(np.isfinite(values))
    times, values = one.columns["start_ns"][known] - began_ns, values[known]
    parts = np.array_split(np.arange(len(values)), min(_INTERVALS, len(values)))
    places = sorted({part[find(values[part])] for part in parts for find in (np.argmin, np.argmax)})
    return {
        "unit": "B" if column == "allocated_bytes" else "ns",
        "max": values.max(),
        "time_ns": times[places].tolist(),
        "value": values[places].tolist(),
        "samples": len(values),
    }


def _steps_file(ranks: Mapping[int, RankSteps], kind: str) -> bytes:
    pyarrow = arrow_files.pyarrow()
    schema = pyarrow.schema([(name, pyarrow.int64()) for name in ("rank", *STEP_COLUMNS)])
    sink = pyarrow.BufferOutputStream()
    with arrow_files.opened(kind, sink, schema) as writer:
        for rank, one in ranks.items():
            columns = [np.full(len(one), rank), *one.columns.values()]
            arrays = [pyarrow.array(each, mask=each == UNKNOWN) for each in columns]
            writer.write(pyarrow.record_batch(arrays, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content
