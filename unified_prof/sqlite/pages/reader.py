"""Readers of a table's record layout, its leaf pages in the order of row ids, and their rows.

Pages are checked slightly more strictly than by SQLite; nothing outside a page is read. Pages of a
damaged file may form cycles. The keys of a b-tree must ascend and be between the keys of the page
above, which is checked for every page, so no page is read twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import Frame
from unified_prof.sqlite.pages.format import (
    CHILD_BYTES,
    INTERIOR_HEADER_BYTES,
    LEAF_HEADER_BYTES,
    POINTER_BYTES,
    TABLE_INTERIOR,
    TABLE_LEAF,
    Bytes,
    Int64s,
    Irregular,
    OutsidePage,
    Pages,
    local_payload,
    most_local,
    read_varints,
)
from unified_prof.sqlite.statements import quoted, row_id_name

_OUTSIDE_RECORDS = (2, 3)  # `hidden` of generated columns in PRAGMA table_xinfo


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the records of a table with row ids and without generated columns."""

    root: int
    places: dict[str, int]  # Column name in lower case -> its position in records, from 0.
    row_id: str | None  # The column (name in lower case) that is an alias of the row id.
    row_id_name: str  # A name of the row id that is not also a column: `rowid`, `oid` or `_rowid_`.
    nullable: frozenset[int]  # Positions of columns that are NULL if a record ends before them.
    affinities: tuple[str, ...]  # Affinity of each column, to which SQLite converts values.
    is_utf8: bool


def layout_of(db: sqlite3.Connection, table: str) -> Layout | None:
    """Return the layout of the records of a table, None if only SQLite can read them.

    Raises sqlite3.Error if SQLite cannot read the schema.
    """
    found = db.execute(
        "SELECT rootpage, type, sql FROM main.sqlite_master WHERE lower(name) = lower(?)", (table,)
    ).fetchall()
    if len(found) != 1 or found[0][1] != "table" or not isinstance(found[0][0], int):
        return None
    root, _, sql = found[0]
    if root < 2 or not str(sql).upper().startswith("CREATE TABLE"):
        return None
    places: dict[str, int] = {}
    nullable = set()
    affinities = []
    keys = []
    columns = db.execute(f"PRAGMA main.table_xinfo({quoted(table)})").fetchall()
    for place, (_, name, kind, _, default, key, hidden) in enumerate(columns):
        if hidden in _OUTSIDE_RECORDS:
            return None
        places[str(name).lower()] = place
        if default is None or str(default).upper() == "NULL":
            nullable.add(place)
        affinities.append(_affinity(str(kind).upper()))
        if key:
            keys.append((str(name).lower(), str(kind).upper()))
    indexes = db.execute(f"PRAGMA main.index_list({quoted(table)})").fetchall()
    has_key_index = any(index[3] == "pk" for index in indexes)
    is_row_id = len(keys) == 1 and keys[0][1] == "INTEGER" and not has_key_index
    row_id = keys[0][0] if is_row_id else None
    name = row_id_name(places)
    if name is None:
        return None
    ((encoding,),) = db.execute("PRAGMA main.encoding").fetchall()
    return Layout(
        root=root,
        places=places,
        row_id=row_id,
        row_id_name=name,
        nullable=frozenset(nullable),
        affinities=tuple(affinities),
        is_utf8=encoding == "UTF-8",
    )


def _affinity(kind: str) -> str:
    """Return the affinity of a declared type, by applying SQLite's rules in order."""
    if "INT" in kind:
        return "INTEGER"
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not kind or "BLOB" in kind:
        return "BLOB"
    return "REAL" if any(part in kind for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


_MAX_LEVELS = 20  # SQLite's limit
_MIN_ID, _MAX_ID = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Leaves(Frame):
    """Leaf pages, with the bounds of their row ids from the interior pages."""

    numbers: Int64s
    upper: Int64s  # Maximum row id of each leaf.


def leaves(pages: Pages, root: int, *, at_a_time: int) -> Iterator[Leaves]:
    """Yield all leaves of a table, about `at_a_time` at a time.

    Raises Irregular if the pages are not an intact b-tree of a table with rows.
    """
    depth = _depth(pages, root)
    waiting: list[Leaves] = []
    count = 0
    for some in _below(pages, root, _MIN_ID, _MAX_ID, depth):
        waiting.append(some)
        count += len(some)
        if count < at_a_time:
            continue
        found = Leaves.concatenate(waiting)
        whole = count - count % at_a_time
        for begin in range(0, whole, at_a_time):
            part = slice(begin, begin + at_a_time)
            yield found.take(part)
        waiting = [found.take(slice(whole, None))]
        count -= whole
    if count:
        yield Leaves.concatenate(waiting)


def _depth(pages: Pages, number: int) -> int:
    """Return the number of levels above the leaves."""
    for depth in range(_MAX_LEVELS):
        page = pages.read(np.array([number]))
        if page[0] == TABLE_LEAF:
            return depth
        number = int(_children(page, pages)[0][0])
    raise Irregular


def _below(pages: Pages, number: int, lower: int, upper: int, depth: int) -> Iterator[Leaves]:
    """Yield the leaves under a page whose row ids are greater than `lower` and at most `upper`."""
    if depth == 0:
        yield Leaves(np.array([number]), np.array([upper]))
        return
    children, keys = _children(pages.read(np.array([number])), pages)
    bounds = np.append(keys, upper)
    if lower != _MIN_ID:
        bounds = np.insert(bounds, 0, lower)
    if not (bounds[1:] > bounds[:-1]).all():
        raise Irregular
    bounds = np.append(keys, upper)
    if depth == 1:
        yield Leaves(children, bounds)
        return
    for child, bound in zip(children.tolist(), bounds.tolist(), strict=True):
        yield from _below(pages, child, lower, bound, depth - 1)
        lower = bound


def _children(page: Bytes, pages: Pages) -> tuple[Int64s, Int64s]:
    """Return the child pages of an interior page, and the keys between them."""
    usable = pages.header.usable
    if page[0] != TABLE_INTERIOR:
        raise Irregular
    count = int(page[3:5].view(">u2")[0])
    end = INTERIOR_HEADER_BYTES + count * POINTER_BYTES
    if count == 0 or end > usable:
        raise Irregular
    cells = page[INTERIOR_HEADER_BYTES:end].view(">u2").astype(np.int64)
    if int(cells.min()) < end or int(cells.max()) > usable - CHILD_BYTES - 1:
        raise Irregular
    keys, after = read_varints(page, cells + CHILD_BYTES)
    if int(after.max()) > usable:
        raise Irregular
    numbers = np.ndarray((len(page) - 3,), ">u4", page.data, 0, (1,))
    children = numbers[np.append(cells, 8)].astype(np.int64)
    return children, keys


_MAX_PAYLOAD = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of rows in the order of their ids."""

    data: Bytes  # The pages of the records, and format.SLACK zeros.
    ids: Int64s
    begin: Int64s  # Start of each record in `data`, where the size of its header is.
    end: Int64s  # End that each record would have without overflow pages.
    end_here: Int64s  # End of each record in its page.

    def __len__(self) -> int:
        return len(self.ids)


def rows_of(pages: Pages, leaves: Leaves, after: int | None) -> Rows:
    """Find the rows of the given leaves.

    `after` is the last row id before these leaves, None if there is none. Raises Irregular if a
    page is not a leaf, is damaged, or its rows are not in order, and OutsidePage if a row extends
    beyond its page.
    """
    page_bytes, usable = pages.header.page_bytes, pages.header.usable
    data = pages.read(leaves.numbers, again=True)
    starts = np.arange(len(leaves.numbers)) * page_bytes
    halves = np.ndarray((len(data) - 1,), ">u2", data.data, 0, (1,))
    counts = halves[starts + 3].astype(np.int64)
    if not (data[starts] == TABLE_LEAF).all() or int(counts.min()) == 0:
        raise Irregular
    heads = LEAF_HEADER_BYTES + counts * POINTER_BYTES
    if int(heads.max()) > usable:
        raise Irregular
    ends = np.cumsum(counts)
    firsts = ends - counts
    total = int(ends[-1])
    pointers = np.arange(total) * POINTER_BYTES
    pointers += np.repeat(starts + LEAF_HEADER_BYTES - firsts * POINTER_BYTES, counts)
    places = halves[pointers].astype(np.int64)
    if (np.minimum.reduceat(places, firsts) < heads).any() or int(places.max()) >= usable:
        raise OutsidePage
    page = np.repeat(starts, counts)
    places += page
    sizes, ids_at = read_varints(data, places)
    ids, begin = read_varints(data, ids_at)
    if int(sizes.min()) < 0 or int(sizes.max()) > _MAX_PAYLOAD:
        raise Irregular
    end = begin + sizes
    end_here = end
    if int(sizes.max()) > most_local(usable):
        end_here = begin + local_payload(usable, sizes)
    page += usable
    if (end_here > page).any():
        raise OutsidePage
    if not (ids[1:] > ids[:-1]).all() or (ids[ends - 1] > leaves.upper).any():
        raise Irregular
    if after is not None and int(ids[0]) <= after:
        raise Irregular
    return Rows(data, ids, begin, end, end_here)
