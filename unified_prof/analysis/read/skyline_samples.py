"""The single iterations behind a Skyline run time report, from the tables that uprof adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.model import Gaps, Samples
from unified_prof.analysis.read.source import Source
from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.units import NS_PER_MS

Floats = NDArray[np.float64]

# Nothing a training iteration does takes a month.
_MAX_NS = 30 * 24 * 3600 * 1e9


def of_operations(source: Source) -> Samples | None:
    """Return each operation's time in each iteration, None where the report has no samples."""
    if "UPROF_RUN_TIME_SAMPLES" not in source.tables:
        return None
    ids = [row[0] for row in source.rows("SELECT id FROM run_time_entries ORDER BY id")]
    forward, backward = _matrices(
        source, "UPROF_RUN_TIME_SAMPLES", ("forward_ms", "backward_ms"), ids
    )
    return Samples(forward, backward)


def between_operations(source: Source) -> Gaps | None:
    """Return the time between operations and its lines, None where the report has none."""
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


def _matrices(source: Source, table: str, names: Sequence[str], ids: Sequence[int]) -> list[Floats]:
    """Return a matrix (entries, iterations) in nanoseconds for each column of times.

    All tables have the same iterations: those of the operations' samples.
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
    """Return SQL for a column as a number, NULL where it holds something else."""
    return f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN {column} END AS {column}"
