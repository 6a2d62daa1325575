"""The rows of leaf pages: where each of their records begins and ends, and their row ids.

All pages are looked at as SQLite does when it reads them, and a bit more closely; none is taken
at its word where that would lead out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.store.btree.format import LEAF_HEADER_BYTES, POINTER_BYTES, TABLE_LEAF
from unified_prof.store.btree.pages import Bytes, Int64s, Irregular, Pages
from unified_prof.store.btree.tree import Leaves
from unified_prof.store.btree.varints import read_varints

_MOST_PAYLOAD = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Records, one a row, in the order of their ids."""

    data: Bytes
    """The pages they stand in, and pages.SLACK zeros."""
    ids: Int64s
    begin: Int64s
    """Where in `data` a record begins, with the size of its header."""
    end: Int64s
    """Where it ends, were it in one piece."""
    end_here: Int64s
    """Where it ends or goes on in other pages."""

    def __len__(self) -> int:
        return len(self.ids)


def rows_of(pages: Pages, leaves: Leaves, after: int | None) -> Rows:
    """Find the rows of some leaves.

    Args:
        pages: The file.
        leaves: Which of its pages.
        after: The last row id before, None at the beginning.

    Raises:
        Irregular: a page is no leaf, is damaged, or its rows are not in order.
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
        raise Irregular
    page = np.repeat(starts, counts)
    places += page
    sizes, ids_at = read_varints(data, places)
    ids, begin = read_varints(data, ids_at)
    if int(sizes.min()) < 0 or int(sizes.max()) > _MOST_PAYLOAD:
        raise Irregular
    end = begin + sizes
    end_here = end
    if int(sizes.max()) > usable - 35:
        end_here = begin + _local(sizes, usable)
    page += usable
    if (end_here > page).any():
        raise Irregular
    if not (ids[1:] > ids[:-1]).all() or (ids[ends - 1] > leaves.upper).any():
        raise Irregular
    if after is not None and int(ids[0]) <= after:
        raise Irregular
    return Rows(data, ids, begin, end, end_here)


def _local(sizes: Int64s, usable: int) -> Int64s:
    """Return how many bytes of each record stand in its cell, as format.local_payload does."""
    most = usable - 35
    least = (usable - 12) * 32 // 255 - 23
    part = least + (sizes - least) % (usable - 4)
    return np.where(sizes <= most, sizes, np.where(part <= most, part, least))
