"""Tables of Skyline reports as calls with times and sizes, and uprof's samples and regions.

Invalid values are counted as findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Floats, find
from unified_prof.base.text import NS_PER_MS, ms_to_ns
from unified_prof.recording.calls import OPERATION, UNKNOWN, WEIGHT, Calls, Labels, region_text
from unified_prof.recording.model import Gaps, Samples, Step
from unified_prof.recording.source import Findings, Source

# Longer times are invalid: no part of a training iteration takes a month.
_MAX_NS = 30 * 24 * 3600 * 1e9


def operation_samples(source: Source) -> Samples | None:
    """Return the time of each operation in each iteration, None if there are no samples."""
    if "UPROF_RUN_TIME_SAMPLES" not in source.tables:
        return None
    ids = [row[0] for row in source.rows("SELECT id FROM run_time_entries ORDER BY id")]
    forward, backward = _matrices(
        source, "UPROF_RUN_TIME_SAMPLES", ("forward_ms", "backward_ms"), ids
    )
    return Samples(forward, backward)


def operation_gaps(source: Source) -> Gaps | None:
    """Return the gaps between operations with their source lines, None if none were recorded."""
    if not {"UPROF_GAPS", "UPROF_GAP_SAMPLES", "UPROF_RUN_TIME_SAMPLES"} <= set(source.tables):
        return None
    rows = source.rows(
        "SELECT entry_id, position, file_path, first_line, last_line FROM UPROF_GAPS JOIN"
        " (SELECT id, row_number() OVER (ORDER BY id) - 1 AS position FROM run_time_entries)"
        " ON id = entry_id ORDER BY id"
    )
    (gap_ns,) = _matrices(source, "UPROF_GAP_SAMPLES", ("gap_ms",), [row[0] for row in rows])
    return Gaps(
        before=np.array([row[1] for row in rows], np.int64),
        lines=tuple(
            f"{path}:{first}" if first == last else f"{path}:{first}-{last}"
            for _, _, path, first, last in rows
        ),
        gap_ns=gap_ns,
    )


def _recomputed_ns(source: Source, ids: Sequence[int]) -> Any:
    """Return the median recomputation time of each operation, None if nothing was recomputed."""
    if not {"UPROF_RECOMPUTATION", "UPROF_RUN_TIME_SAMPLES"} <= set(source.tables):
        return None
    (matrix,) = _matrices(source, "UPROF_RECOMPUTATION", ("recomputed_ms",), ids)
    result = np.full(len(ids), UNKNOWN, np.int64)
    known = ~np.isnan(matrix).all(axis=1)
    result[known] = np.rint(np.nanmedian(matrix[known], axis=1)).astype(np.int64)
    return result


def _matrices(source: Source, table: str, names: Sequence[str], ids: Sequence[int]) -> list[Floats]:
    """Return a matrix (entries, iterations) in nanoseconds for each column of times.

    The iterations are those of the operations' samples, for all tables.
    """
    iterations = [
        row[0]
        for row in source.rows(
            "SELECT DISTINCT iteration FROM UPROF_RUN_TIME_SAMPLES"
            " WHERE typeof(iteration) = 'integer' ORDER BY iteration"
        )
    ]
    columns = source.columns(
        f"SELECT entry_id, iteration, {', '.join(map(_number, names))} FROM {table}"
        " WHERE typeof(entry_id) = 'integer' AND typeof(iteration) = 'integer'"
    )
    row = find(np.asarray(ids, np.int64), columns["entry_id"])
    column = find(np.asarray(iterations, np.int64), columns["iteration"])
    inside = (row != NOWHERE) & (column != NOWHERE)
    matrices = []
    for name in names:
        values = np.ma.filled(columns[name].astype(np.float64), np.nan) * NS_PER_MS
        values[(values < 0) | (values > _MAX_NS)] = np.nan
        matrix = np.full((len(ids), len(iterations)), np.nan)
        matrix[row[inside], column[inside]] = values[inside]
        matrices.append(matrix)
    return matrices


def _number(column: str) -> str:
    """Return SQL for a column as a number, NULL for other values."""
    return f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN {column} END AS {column}"


_MAX_BYTES = 1 << 53


class Regions(Struct, frozen=True):
    """Counts and memory peaks of regions by path.

    A path is the names of a region and its enclosing regions, outermost first.
    """

    # Number of times that each region was opened, by iteration.
    counts: Mapping[tuple[str, ...], Mapping[int, int]]
    # Peak memory while the region was open, if measured.
    peaks: Mapping[tuple[str, ...], int] = field(default_factory=dict)


def read(source: Source, findings: Findings) -> Regions:
    """Return the regions of a report; empty without the table."""
    paths, peaks = _paths(source, findings)
    counts: dict[tuple[str, ...], dict[int, int]] = {path: {} for path in paths.values()}
    if paths and "UPROF_REGION_COUNTS" in source.tables:
        rows = source.rows("SELECT region_id, iteration, count FROM UPROF_REGION_COUNTS")
        for region, iteration, count in rows:
            if region in paths and isinstance(count, int) and count >= 0:
                counts[paths[region]][iteration] = count
    return Regions(counts, peaks)


def entry_regions(
    source: Source, kind: str, ids: Iterable[int], labels: Labels, findings: Findings
) -> NDArray[np.int32] | None:
    """Return the region of each entry as a number in `labels`, None if there are no regions."""
    if "UPROF_REGION_ENTRIES" not in source.tables:
        return None
    paths, _ = _paths(source, findings)
    rows = source.rows(
        "SELECT entry_id, region_id FROM UPROF_REGION_ENTRIES WHERE kind = ?", (kind,)
    )
    texts = {region: region_text(path) for region, path in paths.items()}
    result = {entry: texts[region] for entry, region in rows if region in texts}
    return labels.numbers(map(result.get, ids)) if result else None


def _paths(
    source: Source, findings: Findings
) -> tuple[dict[int, tuple[str, ...]], dict[tuple[str, ...], int]]:
    """Return the path of each region, and the memory peak of each path."""
    paths: dict[int, tuple[str, ...]] = {}
    peaks: dict[tuple[str, ...], int] = {}
    if "UPROF_REGIONS" not in source.tables:
        return paths, peaks
    rows = source.rows(
        "SELECT region_id, name, around, peak_usage_bytes FROM UPROF_REGIONS ORDER BY region_id"
    )
    for region, name, around, peak in rows:
        if around is not None and around not in paths:
            findings.add("impossible_region", f"region {region!r} is in unknown region {around!r}")
        path = (*paths.get(around, ()), name if isinstance(name, str) else f"{name!r}")
        paths[region] = path
        if isinstance(peak, int) and 0 <= peak <= _MAX_BYTES:
            peaks[path] = max(peak, peaks.get(path, 0))
    return paths, peaks


# Greater values are invalid: no part of an iteration takes a month, no tensor has an exbibyte.
_MAX_MS = 30 * 24 * 3600 * 1e3

_RUN_TIME_FRAMES = (
    "SELECT entry_id, file_path, line_number FROM stack_frames ORDER BY entry_id, ordering"
)
_MEMORY_FRAMES = """
    SELECT c.entry_id, f.file_path, f.line_number
    FROM stack_correlation c JOIN stack_frames f ON f.correlation_id = c.correlation_id
    WHERE c.entry_type = ? ORDER BY c.entry_id, f.ordering
"""
_WEIGHT_TYPE, _ACTIVATION_TYPE = 1, 2


def run_time_calls(source: Source, findings: Findings) -> Calls:
    """Return the operations of a run time report."""
    rows = source.rows(
        "SELECT id, operation_name, forward_ms, backward_ms FROM run_time_entries ORDER BY id"
    )
    forward = _nanoseconds([row[2] for row in rows], "forward_ms", findings, required=True)
    backward = _nanoseconds([row[3] for row in rows], "backward_ms", findings, required=False)
    recomputed = _recomputed_ns(source, [row[0] for row in rows])
    total = np.maximum(forward, 0) + np.maximum(backward, 0)
    if recomputed is not None:
        total += np.maximum(recomputed, 0)
    total[(forward == UNKNOWN) & (backward == UNKNOWN)] = UNKNOWN
    return _calls(
        source,
        findings,
        rows,
        "operation",
        source.rows(_RUN_TIME_FRAMES),
        total_ns=total,
        forward_ns=forward,
        backward_ns=backward,
        recomputed_ns=recomputed,
    )


def weights(source: Source, findings: Findings) -> Calls:
    """Return the weights of a memory report with the sizes of their gradients."""
    rows = source.rows(
        "SELECT id, name, size_bytes, grad_size_bytes FROM weight_entries ORDER BY id"
    )
    return _calls(
        source,
        findings,
        rows,
        "weight",
        source.rows(_MEMORY_FRAMES, (_WEIGHT_TYPE,)),
        weight_bytes=_bytes([row[2] for row in rows], "size_bytes", findings),
        gradient_bytes=_bytes([row[3] for row in rows], "grad_size_bytes", findings),
    )


def activations(source: Source, findings: Findings) -> Calls:
    """Return the activations of the operations of a memory report."""
    rows = source.rows("SELECT id, operation_name, size_bytes FROM activation_entries ORDER BY id")
    return _calls(
        source,
        findings,
        rows,
        "activation",
        source.rows(_MEMORY_FRAMES, (_ACTIVATION_TYPE,)),
        activation_bytes=_bytes([row[2] for row in rows], "size_bytes", findings),
    )


def _calls(
    source: Source,
    findings: Findings,
    rows: Sequence[tuple[Any, ...]],
    entry: str,
    frames: list[tuple[Any, ...]],
    **columns: Any,
) -> Calls:
    """Return entries, given as rows of id and name, with their modules, lines and regions."""
    labels, ids = Labels(), [row[0] for row in rows]
    stack, line = _stacks(frames, ids, labels)
    module, classes = _modules(source, entry, ids, labels)
    is_weight = entry == "weight"
    return Calls(
        labels=labels,
        name=labels.numbers(_text(row[1]) for row in rows),
        kind=np.full(len(rows), WEIGHT if is_weight else OPERATION, np.int8),
        module=module,
        line=line,
        stack=stack,
        module_class=classes,
        region=None if is_weight else entry_regions(source, entry, ids, labels, findings),
        **columns,
    )


def peak(source: Source, findings: Findings) -> int | None:
    """Return the peak memory in a memory report, or None."""
    rows = source.rows("SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'")
    if not rows:
        return None
    size = int(_bytes([rows[0][0]], "peak_usage_bytes", findings)[0])
    return None if size == UNKNOWN else size


_ITERATION_TIMES = (
    "total_ms",
    "forward_ms",
    "backward_ms",
    "waited_ms",
    "forward_waited_ms",
    "backward_waited_ms",
    "cpu_ms",
    "forward_cpu_ms",
    "backward_cpu_ms",
)  # Columns of UPROF_ITERATIONS; fields of `Step` with the unit ns.


def iterations(source: Source, findings: Findings) -> tuple[Step, ...] | None:
    """Return the measured iterations, None if they were not recorded."""
    if "UPROF_ITERATIONS" not in source.tables:
        return None
    rows = source.rows(
        f"SELECT iteration, matched, peak_usage_bytes, {', '.join(_ITERATION_TIMES)}"
        " FROM UPROF_ITERATIONS ORDER BY iteration"
    )
    columns = list(zip(*rows, strict=True)) or [()] * (3 + len(_ITERATION_TIMES))
    times = [
        _nanoseconds(list(values), name, findings, required=name == "total_ms").tolist()
        for name, values in zip(_ITERATION_TIMES, columns[3:], strict=True)
    ]
    parts: dict[object, dict[str, int]] = {}
    if "UPROF_ITERATION_PARTS" in source.tables:
        found = source.rows("SELECT iteration, part, ms FROM UPROF_ITERATION_PARTS")
        part_ns = _nanoseconds([row[2] for row in found], "ms", findings, required=True)
        for (iteration, part, _), value in zip(found, part_ns.tolist(), strict=True):
            if value != UNKNOWN:
                parts.setdefault(iteration, {})[_text(part)] = value
    return tuple(
        Step(
            str(iteration),
            matched=bool(matched),
            peak_bytes=size if isinstance(size, int) and size >= 0 else None,
            parts_ns=parts.get(iteration, {}),
            **{
                name.replace("_ms", "_ns"): None if time_ns == UNKNOWN else time_ns
                for name, time_ns in zip(_ITERATION_TIMES, times_ns, strict=True)
            },
        )
        for iteration, matched, size, *times_ns in zip(*columns[:3], *times, strict=True)
    )


def _text(value: object) -> str:
    """Return a name as text; files of other programs may contain any value."""
    return value if isinstance(value, str) else f"{value!r}"


def _nanoseconds(values: list[Any], column: str, findings: Findings, *, required: bool) -> Any:
    if {*map(type, values)} <= {float, int, type(None)}:
        times_ms = np.array(values, np.float64)  # None is NaN
        possible = (times_ms >= 0) & (times_ms <= _MAX_MS)
        if possible.all():
            return np.rint(times_ms * NS_PER_MS).astype(np.int64)
    result = np.full(len(values), UNKNOWN, np.int64)
    for index, value in enumerate(values):
        if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _MAX_MS:
            result[index] = ms_to_ns(value)
        elif value is not None or required:
            findings.add("impossible_time", f"{column} of entry number {index + 1} is {value!r}")
    return result


def _bytes(values: list[Any], column: str, findings: Findings) -> Any:
    result = np.full(len(values), UNKNOWN, np.int64)
    for index, value in enumerate(values):
        if isinstance(value, int) and 0 <= value <= _MAX_BYTES:
            result[index] = value
        else:
            findings.add("impossible_size", f"{column} of entry number {index + 1} is {value!r}")
    return result


def _stacks(rows: list[tuple[Any, ...]], ids: list[int], labels: Labels) -> tuple[Any, Any]:
    """Return the stack and the innermost line of each entry, from rows sorted innermost first."""
    frames: dict[int, list[str]] = {}
    for entry, file_path, line_number in rows:
        frames.setdefault(entry, []).append(f"{file_path}:{line_number}")
    innermost = {entry: found[0] for entry, found in frames.items()}
    whole = {entry: "\n".join(reversed(found)) for entry, found in frames.items()}
    if not frames:
        return None, None
    return labels.numbers(map(whole.get, ids)), labels.numbers(map(innermost.get, ids))


def _modules(
    source: Source, kind: str, ids: list[int], labels: Labels
) -> tuple[Any, dict[str, str]]:
    """Return the module of each entry, and the classes of the modules."""
    if "UPROF_MODULES" not in source.tables:
        return None, {}
    rows = source.rows(
        "SELECT entry_id, module_path, module_class FROM UPROF_MODULES WHERE kind = ?", (kind,)
    )
    if not rows:
        return None, {}
    path = {entry: str(module_path) for entry, module_path, _ in rows}
    classes = {str(module_path): str(name) for _, module_path, name in rows if name is not None}
    return labels.numbers(map(path.get, ids)), classes
