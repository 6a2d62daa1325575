"""From the root of a table to the pages that hold its rows, in the order of row ids.

Pages of a damaged file may name one another in circles. Keys of a tree rise from left to right
and lie between the keys above them, which is looked at in every page: so none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unified_prof.store.btree.format import (
    CHILD_BYTES,
    INTERIOR_HEADER_BYTES,
    POINTER_BYTES,
    TABLE_INTERIOR,
    TABLE_LEAF,
)
from unified_prof.store.btree.pages import Bytes, Int64s, Irregular, Pages
from unified_prof.store.btree.varints import read_varints

_MOST_LEVELS = 20  # SQLite's own limit
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Leaves:
    """Pages with rows, and what the pages above say of their row ids."""

    numbers: Int64s
    upper: Int64s
    """The highest row id that each may have."""


def leaves(pages: Pages, root: int, *, at_a_time: int) -> Iterator[Leaves]:
    """Yield all leaves of a table, about `at_a_time` of them together.

    Raises:
        Irregular: the pages are no whole tree of a table with rows.
    """
    depth = _depth(pages, root)
    waiting: list[Leaves] = []
    count = 0
    for some in _below(pages, root, _LEAST, _MOST, depth):
        waiting.append(some)
        count += len(some.numbers)
        if count < at_a_time:
            continue
        found = _joined(waiting)
        whole = count - count % at_a_time
        for begin in range(0, whole, at_a_time):
            part = slice(begin, begin + at_a_time)
            yield Leaves(found.numbers[part], found.upper[part])
        waiting = [Leaves(found.numbers[whole:], found.upper[whole:])]
        count -= whole
    if count:
        yield _joined(waiting)


def _joined(parts: list[Leaves]) -> Leaves:
    return Leaves(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.upper for part in parts]),
    )


def _depth(pages: Pages, number: int) -> int:
    """Return how many levels of pages stand above the leaves."""
    for depth in range(_MOST_LEVELS):
        page = pages.read(np.array([number]))
        if page[0] == TABLE_LEAF:
            return depth
        number = int(_children(page, pages)[0][0])
    raise Irregular


def _below(pages: Pages, number: int, lower: int, upper: int, depth: int) -> Iterator[Leaves]:
    """Yield the leaves under a page whose row ids are more than `lower`, at most `upper`."""
    if depth == 0:
        yield Leaves(np.array([number]), np.array([upper]))
        return
    children, keys = _children(pages.read(np.array([number])), pages)
    bounds = np.append(keys, upper)
    if lower != _LEAST:
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
    """Return the pages that an interior page names, and the keys between them."""
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
