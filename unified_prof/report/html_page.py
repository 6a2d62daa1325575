"""The HTML page of reports, and the page that opens a trace in Perfetto."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import encode_varints
from unified_prof.base.text import CAPTURE_FACT, parsed_fact
from unified_prof.explain.api import Opened
from unified_prof.explain.critical_path import DISPLAY_NAMES
from unified_prof.explain.report_questions import Analysis
from unified_prof.explain.skyline import MEASURES, Tree
from unified_prof.explain.skyline import trees as analysis_trees
from unified_prof.recording.host_lanes import KINDS as HOST_KINDS
from unified_prof.recording.host_lanes import HostThreads, IdleLane
from unified_prof.recording.idle import IN_WORDS
from unified_prof.recording.model import KINDS, Series
from unified_prof.recording.source import Coverage
from unified_prof.recording.timeline import Timeline, Track
from unified_prof.report.composition import composition, unexplained
from unified_prof.report.document import fill_page, page_rows
from unified_prof.report.figures import (
    collect_figures,
    coverage_fields,
    figures_document,
    readable_answers,
)
from unified_prof.report.formats import ReportRequest
from unified_prof.report.names import (
    analysis_notes,
    anomaly_name,
    readable_names,
    recording_format,
    truncate_middle,
)

_SCRIPTS = (
    "base.js",
    "frame.js",
    "icicle.js",
    "table.js",
    "host.js",
    "timeline.js",
    "chart.js",
    "steps.js",
    "perfetto.js",
    "roofline.js",
    "main.js",
)
_FEWEST_BLOCKS = 10_000
_ROWS_HTML = 1000  # Maximum rows of a breakdown on the page, largest first.


def produce_page(opened: Opened, request: ReportRequest) -> str:
    """Render the reports as an HTML page, missing reports first."""
    reports = readable_answers(opened, lambda analysis: _report(analysis, request, _blocks(opened)))
    return _page(reports, opened.coverage)


def _blocks(opened: Opened) -> int:
    """Return the maximum number of timeline blocks per report: its share, or a minimum."""
    return max(MAX_TIMELINE_BLOCKS // max(1, len(opened.analyses)), _FEWEST_BLOCKS)


def _page(reports: Sequence[dict[str, Any]], coverage: Coverage) -> str:
    data = {
        "coverage": coverage_fields(coverage) | {"headline": coverage.headline},
        "reports": reports,
    }
    return fill_page(
        reports[0]["title"] if reports else "uprof report", ("page.css",), _SCRIPTS, data
    )


def _report(analysis: Analysis, request: ReportRequest, blocks: int) -> dict[str, Any]:
    """Return the page data of one report."""
    bys = None if request.by is None else [request.by]
    shown = collect_figures(
        analysis,
        bys,
        sort=request.sort,
        top=request.top or _ROWS_HTML,
        statistics=request.statistics,
    )
    (figures,) = figures_document([shown])["reports"]
    for breakdown in figures["breakdowns"].values():
        breakdown["rows"] = page_rows(breakdown["rows"])
    for anomaly, found in zip(figures["anomalies"], shown.summary.anomalies, strict=True):
        anomaly["words"] = anomaly_name(found.name)
    trees = [_tree(tree) for tree in analysis_trees(analysis)]
    over_time = page_timeline(analysis, blocks)
    words = {
        by: {"title": kind.title, "detail": kind.detailed, "count": kind.counted}
        for by, kind in KINDS.items()
    }
    for one in shown.selections:
        words[one.breakdown.by]["count"] = one.counted
    if shown.advice is None or shown.advice.capture is None:
        figures["facts"].pop(CAPTURE_FACT, None)  # a trace that nothing here needs
    report = {
        "figures": figures,
        "idle_words": dict(IN_WORDS),
        "title": page_title(figures, over_time["began"]),
        "format": recording_format(shown.summary),
        "words": words,
        "units": counter_units(one["counter"] for one in figures["pmu"]),
        "trees": trees,
        "composition": [],
        "advice_notes": [],
        **over_time,
    }
    if advice := shown.advice:
        breakdowns = [one.breakdown for one in shown.selections[:1]]
        report["composition"] = composition(shown.summary, breakdowns, advice)
        report["advice_notes"] = [
            *unexplained(shown.summary, breakdowns, advice),
            *analysis_notes(advice, shown.summary.path),
        ]
    if request.source_root is not None:
        lines = SourceLines(request.source_root)
        report["source"] = lines.texts(_source_lines(figures, trees))
    return report


def _source_lines(figures: dict[str, Any], trees: list[dict[str, Any]]) -> set[str]:
    shown = {row["name"] for row in figures["breakdowns"].get("line", {"rows": []})["rows"]}
    return shown.union(*(tree["names"] for tree in trees if tree["kind"] == "line"))


PERFETTO_URL = "https://ui.perfetto.dev"


def perfetto_opener_page(title: str, trace: str, size_bytes: int) -> str:
    """Return the page that opens a trace file in its directory in Perfetto."""
    return fill_page(
        f"{title} - uprof",
        ("page.css",),
        ("base.js", "frame.js", "perfetto.js", "opener.js"),
        {"trace": {"title": title, "name": trace, "bytes": size_bytes}},
        allows_fetch=True,
    )


MAX_TIMELINE_BLOCKS = 110_000  # Maximum blocks of a timeline; about nine bytes each.

MAX_HOST_RANGES = 30_000  # Maximum ranges of host threads; about nine bytes each.

MAX_IDLE_GAPS = 12_000  # Maximum idle gaps of all devices; about five bytes each.

# Maximum number of drawn segments of the critical path, and of tasks: of more, it takes too much
# memory.
MAX_PATH_SEGMENTS, MAX_PATH_TASKS = 12_000, 200_000

_LANES = 64

_STEPS = 5000

_LABEL_BYTES = 400_000

_LABEL_LENGTH = 240

# Tree nodes below this share of every measure are merged.
_MIN_NODE_SHARE = 0.0005

_MAX_POINTS = 1200

_SMALLER_UNITS = "(smaller items)"

_FIRST_DAY_NS = 978_307_200 * 1_000_000_000  # 2001-01-01; smaller times are not Unix times.

# (pattern of a counter's name, unit); first match wins, empty if the name contains the unit.
_UNITS_OF_COUNTERS = (
    (r"\([^()]+\)$|\[[^\[\]]+\]$|%$", ""),
    (r"ratio|hit_rate|utili[sz]ation", "share of 1"),
    (r"cyc(le)?s?(_|$)", "cycles"),
    (r"bytes?(_|$)", "bytes"),
    (r"fops$|flops?$", "FLOP"),
    (r"extra|num|count|cnt", "events"),
)


def page_title(figures: dict[str, Any], began: str | None) -> str:
    """Return the title of the page: workload, device, date.

    `figures` are those of one report, as in JSON; `began` is the date of the first event.
    """
    facts = figures["facts"]
    device = next((facts[one] for one in ("device", "device 0", "backend") if one in facts), None)
    device = device or next((value for name, value in facts.items() if "device " in name[:7]), None)
    if device is None and (vendor := facts.get("device_vendor")):
        device = f"{vendor} {facts.get('device_kind', '').upper()}".strip()
    day = facts.get("started", "")[:10] or began
    parts = [_workload(figures["path"], facts), device, day]
    return f"{', '.join(part for part in parts if part)} - uprof"


def counter_units(counters: Iterable[str]) -> dict[str, str]:
    """Return the units of hardware counters whose names do not contain them."""
    found = {}
    for counter in counters:
        for pattern, unit in _UNITS_OF_COUNTERS:
            if re.search(pattern, counter, re.IGNORECASE):
                if unit:
                    found[counter] = unit
                break
    return found


def _workload(path: str, facts: dict[str, str]) -> str:
    """Return the program that was run, the imported trace, or the name of the file."""
    for word in parsed_fact(facts, "command", list):
        if isinstance(word, str) and word.endswith((".py", ".ipynb")):
            return PurePath(word).name
    names = [PurePath(one.replace("\\", "/")).name for one in path.split(", ")]
    return facts.get("trace") or ", ".join(names)


def _date_of(time_ns: int) -> str | None:
    """Return the date of a Unix time; None for times since boot."""
    if time_ns < _FIRST_DAY_NS:
        return None
    return datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%d")


def _tree(tree: Tree) -> dict[str, Any]:
    """Return a breakdown tree as columns, without nodes too small to draw."""
    whole = tree.nodes[0].values
    names: list[str] = []
    parents: list[int] = []
    values: list[list[int]] = []
    counts: list[int] = []
    place: dict[int, int] = {}
    joined: dict[int, int] = {}

    def add(name: str, parent: int) -> int:
        names.append(name)
        parents.append(parent)
        values.append([0] * len(MEASURES))
        counts.append(0)
        return len(names) - 1

    for index, node in enumerate(tree.nodes):
        if node.parent >= 0 and node.parent not in place:
            continue  # below a node that was joined
        parent = place.get(node.parent, -1)
        if all(value <= _MIN_NODE_SHARE * of for value, of in zip(node.values, whole, strict=True)):
            if node.parent < 0:
                target = place[index] = add(node.name, parent)
            elif parent in joined:
                target = joined[parent]
            else:
                target = joined[parent] = add(_SMALLER_UNITS, parent)
        else:
            target = place[index] = add(node.name, parent)
        for number, value in enumerate(node.values):
            values[target][number] += value
        counts[target] += node.count
    return {
        "kind": tree.kind,
        "measures": list(tree.measures),
        "names": list(readable_names(names)) if tree.kind == "operation" else names,
        "parent": parents,
        "values": {
            measure: [value[MEASURES.index(measure)] for value in values]
            for measure in tree.measures
        },
        "count": counts,
    }


def page_timeline(analysis: Analysis, blocks: int) -> dict[str, Any]:
    """Return the timeline and all other timed data, relative to one origin.

    The origin is the first event of all: JavaScript numbers would round Unix times in ns.
    """
    lanes = analysis.timeline(limit=blocks)
    host = analysis.host_threads(
        lanes, limit=max(1, MAX_HOST_RANGES * blocks // MAX_TIMELINE_BLOCKS)
    )
    idle = (
        ()
        if lanes is None
        else analysis.idle_lanes(max(1, MAX_IDLE_GAPS * blocks // MAX_TIMELINE_BLOCKS))
    )
    memory, counters = analysis.memory_series(), analysis.counter_series()
    work = [
        (int(one.start_ns[0]), int(one.start_ns[-1] + one.duration_ns[-1]))
        for one in idle
        if len(one)
    ]
    if lanes is not None:
        work.append((lanes.start_ns, lanes.start_ns + lanes.duration_ns))
    if host is not None:
        work.append((host.start_ns, host.end_ns))
    spans = [
        *work,
        *((int(one.time_ns.min()), int(one.time_ns.max())) for one in (*memory, *counters)),
    ]
    origin_ns = min((begin for begin, _ in spans), default=0)
    return {
        "began": _date_of(origin_ns),
        "span_ns": max((end for _, end in spans), default=0) - origin_ns,
        # The time of the work; memory and counters may have been recorded long before and after.
        "work_ns": [
            min((begin for begin, _ in work), default=origin_ns) - origin_ns,
            max((end for _, end in work), default=origin_ns) - origin_ns,
        ],
        "timeline": None if lanes is None else _timeline(lanes, host, origin_ns),
        "idle": [_idle(one, origin_ns) for one in idle],
        "path": None
        if lanes is None or lanes.tasks > MAX_PATH_TASKS
        else _path(analysis.path_track(), origin_ns, blocks),
        "host": None if host is None else _host(host, origin_ns),
        "memory": page_series(memory, origin_ns),
        "counters": page_series(counters, origin_ns),
        "steps": [
            {"name": name, "start_ns": begin - origin_ns, "end_ns": end - origin_ns}
            for name, begin, end in analysis.step_spans(on_device=True)[:_STEPS]
        ],
    }


def _timeline(found: Timeline, host: HostThreads | None, origin_ns: int) -> dict[str, Any]:
    """Return the timeline with encoded columns."""
    offset = found.start_ns - origin_ns
    busiest = sorted(found.lanes, key=lambda lane: -int(lane.busy_ns.sum()))[:_LANES]
    kept = {id(lane) for lane in busiest}
    lanes = [lane for lane in found.lanes if id(lane) in kept]
    none: Sequence[None] = [None] * len(found.lanes)
    launched_by = {
        id(lane): place
        for lane, place in zip(found.lanes, none if host is None else host.launched_by, strict=True)
    }
    weights = [(lane.label, lane.busy_ns + 1) for lane in lanes]
    labels, renumber = _labels(found.labels, weights, _LABEL_BYTES)
    several = len({lane.device for lane in lanes}) > 1
    merged = found.merged_below_ns > 0
    return {
        "start_ns": offset,
        "duration_ns": found.duration_ns,
        "whole_ns": None if found.whole_ns is None else [at + offset for at in found.whole_ns],
        "merged_below_ns": found.merged_below_ns,
        "tasks": found.tasks,
        "lanes_left_out": len(found.lanes) - len(lanes),
        "labels": labels,
        "lanes": [
            {
                "title": f"{lane.device} {lane.name}" if several else lane.name,
                "count": len(lane),
                "start": encode_varints(np.diff(lane.start_ns + offset, prepend=0)),
                "duration": encode_varints(lane.duration_ns),
                "label": encode_varints(renumber[lane.label]),
                "kind": encode_varints(lane.kind),
                **(
                    {"tasks": encode_varints(lane.count), "busy": encode_varints(lane.busy_ns)}
                    if merged
                    else {}
                ),
                **_launches(launched_by[id(lane)]),
            }
            for lane in lanes
        ],
    }


def _launches(place: NDArray[np.int64] | None) -> dict[str, Any]:
    """Encode the blocks whose launch is drawn, and the indices of the launches, as differences."""
    linked = np.flatnonzero([] if place is None else place >= 0)
    if place is None or not len(linked):
        return {}
    step = np.diff(place[linked], prepend=0)
    return {
        "launched": len(linked),
        "launched_block": encode_varints(np.diff(linked, prepend=0)),
        # The lowest bit is set if the difference is negative.
        "launched_by": encode_varints(np.abs(step) << 1 | (step < 0)),
    }


def _path(found: Track | None, origin_ns: int, most: int) -> dict[str, Any] | None:
    """Return the longest segments of the critical path with encoded columns."""
    if found is None or not len(found):
        return None
    # Steps may begin before everything that is drawn.
    start_ns = np.maximum(found.start_ns, origin_ns)
    length = np.maximum(found.end_ns - start_ns, 0)
    limit = max(1, MAX_PATH_SEGMENTS * most // MAX_TIMELINE_BLOCKS)
    kept = np.sort(np.argsort(-length, kind="stable")[:limit])
    labels, renumber = _labels(found.labels, [(found.label[kept], length[kept] + 1)], _LABEL_BYTES)
    kinds = list(DISPLAY_NAMES)
    kind = np.array([kinds.index(one) for one in found.category], np.int64)[kept]
    return {
        "count": len(kept),
        "left_out": len(found) - len(kept),
        "labels": labels,
        "kinds": [[name, DISPLAY_NAMES[name]] for name in kinds],
        "start": encode_varints(np.diff(start_ns[kept] - origin_ns, prepend=0)),
        "duration": encode_varints(length[kept]),
        "label": encode_varints(renumber[found.label[kept]]),
        "kind": encode_varints(kind),
    }


def _idle(found: IdleLane, origin_ns: int) -> dict[str, Any]:
    """Return the idle gaps of a device with encoded columns."""
    return {
        "device": found.device,
        "count": len(found),
        "start": encode_varints(np.diff(found.start_ns - origin_ns, prepend=0)),
        "duration": encode_varints(found.duration_ns),
        "kind": encode_varints(found.reason),
        "longer_than_ns": found.longer_than_ns,
        "left_out": found.left_out,
        "left_out_ns": found.left_out_ns,
    }


def _host(found: HostThreads, origin_ns: int) -> dict[str, Any]:
    """Return the host threads with encoded columns."""
    rows = [row for thread in found.threads for row in thread.rows]
    weights = [(row.label, row.duration_ns + 1) for row in rows]
    labels, renumber = _labels(found.labels, weights, _LABEL_BYTES // 4)
    whole = found.whole_ns
    return {
        "labels": labels,
        "kinds": list(HOST_KINDS),
        "ranges": found.ranges,
        "drawn": found.drawn,
        "longer_than_ns": found.longer_than_ns,
        "whole_ns": None if whole is None else [max(0, at - origin_ns) for at in whole],
        "outside": found.outside,
        "python_frames": found.python_frames,
        "threads_left_out": found.threads_left_out,
        "threads": [
            {
                "title": thread.name,
                "rows": [
                    {
                        "count": len(row),
                        "start": encode_varints(np.diff(row.start_ns - origin_ns, prepend=0)),
                        "duration": encode_varints(row.duration_ns),
                        "label": encode_varints(renumber[row.label]),
                        "kind": encode_varints(row.kind),
                    }
                    for row in thread.rows
                ],
            }
            for thread in found.threads
        ],
    }


def _labels(
    texts: Sequence[str],
    weighed: Iterable[tuple[NDArray[np.integer], NDArray[np.integer]]],
    most_bytes: int,
) -> tuple[list[str], Any]:
    """Return the names of greatest weight that fit in `most_bytes`, and each name's new index."""
    weight = np.zeros(len(texts))
    for label, own in weighed:
        weight += np.bincount(label, weights=own, minlength=len(weight))
    order = np.argsort(-weight, kind="stable")
    order = order[weight[order] > 0]
    whole = [texts[number] for number in order.tolist()]
    cut = [truncate_middle(text, _LABEL_LENGTH) for text in readable_names(whole)]
    room = np.cumsum([len(text.encode()) for text in cut]) if cut else np.zeros(0)
    fitting = int(np.searchsorted(room, most_bytes))
    # A number beyond the list means that the name was left out.
    renumber = np.full(len(weight), fitting, np.int64)
    renumber[order[:fitting]] = np.arange(fitting)
    return cut[:fitting], renumber


def page_series(found: tuple[Series, ...], origin_ns: int) -> list[dict[str, Any]]:
    """Return thinned series with their extremes.

    Times are relative to `origin_ns`, because JavaScript numbers would round Unix times in ns.
    """
    result = []
    for one in found:
        time_ns, value = _thin_series(one)
        result.append(
            {
                "name": one.name,
                "unit": one.unit,
                "device": one.device,
                "samples": len(one.value),
                "max": float(one.value.max()),
                "time_ns": (time_ns - origin_ns).tolist(),
                "value": [float(point) if point % 1 else int(point) for point in value.tolist()],
            }
        )
    return result


def _thin_series(one: Series) -> tuple[Any, Any]:
    """Keep the minimum and maximum of each time slot, in order."""
    if len(one.value) <= _MAX_POINTS:
        return one.time_ns, one.value
    slots = np.array_split(np.arange(len(one.value)), _MAX_POINTS // 2)
    kept = sorted(
        {
            int(slot[0]) + int(pick(one.value[slot]))
            for slot in slots
            for pick in (np.argmin, np.argmax)
        }
        | {0, len(one.value) - 1}
    )
    return one.time_ns[kept], one.value[kept]


_SUFFIXES = {".py", ".pyi"}

_MAX_LINE_LENGTH = 200


class SourceLines:
    """Reads source lines by `file:line`.

    Reports are untrusted: only Python files below the directory are read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._files: dict[str, list[str]] = {}

    def texts(self, frames: Iterable[str]) -> dict[str, str]:
        """Map each frame to the text of its source line; frames without one are left out."""
        found = {}
        for frame in frames:
            file, _, number = frame.rpartition(":")
            if not (file and number.isascii() and number.isdecimal()):
                continue
            lines = self._lines(file)
            if 0 < int(number) <= len(lines):
                found[frame] = lines[int(number) - 1].strip()[:_MAX_LINE_LENGTH]
        return found

    def _lines(self, file: str) -> list[str]:
        if file not in self._files:
            path = (self._root / file).resolve()
            allowed = path.is_relative_to(self._root) and path.suffix in _SUFFIXES
            try:
                text = path.read_text(encoding="utf-8", errors="replace") if allowed else ""
            except OSError:
                text = ""
            self._files[file] = text.splitlines()
        return self._files[file]
