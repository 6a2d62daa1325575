"""Spools read back in step: their runs are merged block by block, window by window."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.arrays.ordering import order_of_keys
from unified_prof.decoders.rows import Rows, selected, stacked
from unified_prof.decoders.spool import Cursor, Spool

WINDOW_ROWS = 1 << 15
_MIN_BLOCK_ROWS = 256
_RUNS_EXPECTED = 8  # that overlap, before it is known how many do
_HELD_BYTES = 16 << 20  # of all runs together, between windows
_LIMIT_WINDOWS = 4  # windows that may be in memory at a time


def windows(*spools: Spool, window_rows: int = WINDOW_ROWS) -> Iterator[tuple[Rows, ...]]:
    """Read several spools in step: each window holds all their rows of one range of keys.

    Runs mostly follow one another, so only those that reach into a window are read for it.

    Yields:
        One sorted array per spool. No key appears in two windows; keys only grow.
    """
    groups = [spool.cursors() for spool in spools]
    live = [cursor for group in groups for cursor in group]
    fewest = min(_MIN_BLOCK_ROWS, window_rows)
    wanted = max(fewest, window_rows // min(_RUNS_EXPECTED, max(1, len(live))))
    limit = _LIMIT_WINDOWS * window_rows
    while live:
        live.sort(key=lambda cursor: cursor.next_key)
        bound, active = _activate(live, wanted, window_rows, limit)
        taken = tuple(
            _merge([cursor.take_below(bound) for cursor in group if cursor in active], spool)
            for group, spool in zip(groups, spools, strict=True)
        )
        count = sum(len(rows) for rows in taken)
        if count:
            yield taken
        wanted = _next_wanted(count, len(active), window_rows, fewest) if count else 2 * wanted
        for cursor in active:
            cursor.trim(max(fewest, _HELD_BYTES // (len(live) * cursor.row_bytes)))
        # Many runs that overlap everywhere: read less of each, but of more of them.
        limit = 2 * limit if count < window_rows // 8 else _LIMIT_WINDOWS * window_rows
        live = [cursor for cursor in live if not cursor.finished]


def _next_wanted(count: int, active: int, window_rows: int, fewest: int) -> int:
    """Return how many rows to read of each run: twice what the last window took of each.

    Runs whose keys are far apart (those of several threads) follow one another piece by piece.
    """
    return max(fewest, min(window_rows, 2 * count) // active)


def _activate(
    cursors: list[Cursor], wanted: int, window_rows: int, limit: int
) -> tuple[int | None, set[Cursor]]:
    """Read blocks of the runs that come first; return the key below which all is in memory.

    Args:
        cursors: By their next keys.
        wanted: Rows of each block.
        window_rows: Rows that are enough, as soon as no further run overlaps them.
        limit: Rows that are enough in any case.
    """
    bound: int | None = None
    active: set[Cursor] = set()
    loaded, first_key, reach = 0, cursors[0].next_key, cursors[0].next_key
    for cursor in cursors:
        if bound is not None and cursor.next_key >= bound:
            break
        enough = loaded >= limit or (loaded >= window_rows and cursor.next_key > reach)
        if enough and cursor.next_key > first_key:
            bound = cursor.next_key
            break
        cursor.load(wanted)
        active.add(cursor)
        loaded += len(cursor)
        reach = max(reach, cursor.last_key)
        if not cursor.exhausted:
            bound = cursor.last_key if bound is None else min(bound, cursor.last_key)
    return bound, active


def _merge(parts: list[Rows], spool: Spool) -> Rows:
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, dtype=spool.dtype)
    if len(parts) == 1:
        return parts[0]
    rows = stacked(parts)
    order = order_of_keys(rows[spool.key])
    return rows if order is None else selected(rows, order)
