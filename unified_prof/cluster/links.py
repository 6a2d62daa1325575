"""What moved from rank to rank, and how fast.

Only moving data counts, never waiting: of a send and its receive the shorter duration, of a
collective the parts that the recording lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.types import Floats, Ints
from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.waits import Waits

P2P, COLLECTIVE = "p2p", "collective"
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What moved from one rank (by number in `Matched.ranks`) to another."""

    src: int
    dst: int
    kind: str
    across: bool | None
    n: int
    bytes: int
    transfer_ns: int
    wait_ns: int | None
    p50: float
    """bytes/ns, which is GB/s"""
    p99: float
    like: float | None


def crosses_hosts(matched: MatchedCollectives, a: int, b: int) -> bool | None:
    """Say whether two ranks are on different hosts; None where that is not known."""
    one, other = matched.facts[a].host, matched.facts[b].host
    return None if one is None or other is None else one != other


def measure_links(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    """Return all of them, transfers first."""
    return [*_transfers(matched, waits), *_parts(matched)]


def _transfers(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    events = matched.events
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    if not len(usable):
        return []
    # Both rows of a transfer follow one another; the receiver's wait is that of its row.
    rows = matched.rows
    first = events.first[usable]
    receiver = np.where(rows.rank[first] == events.dst[usable], first, first + 1)
    rate = events.bytes[usable] / waits.transfer[usable]
    src, dst = events.src[usable], events.dst[usable]
    order = np.lexsort((rate, dst, src))
    src, dst, rate = src[order], dst[order], rate[order]
    usable, receiver = usable[order], receiver[order]
    heads = np.flatnonzero(np.r_[True, (np.diff(src) != 0) | (np.diff(dst) != 0)])
    n = np.diff(np.r_[heads, len(src)])
    size = np.add.reduceat(events.bytes[usable], heads)
    total = np.add.reduceat(waits.transfer[usable], heads)
    waited = np.add.reduceat(np.maximum(waits.wait[receiver], 0), heads)
    p50, p99 = rate[heads + n // 2], rate[heads + n // 100]
    between = [
        crosses_hosts(matched, int(a), int(b)) for a, b in zip(src[heads], dst[heads], strict=True)
    ]
    like = _like(between, _size_class(size / n), p50)
    return [
        MeasuredLink(*row)
        for row in zip(
            src[heads].tolist(),
            dst[heads].tolist(),
            [P2P] * len(heads),
            between,
            n.tolist(),
            size.tolist(),
            total.tolist(),
            waited.tolist(),
            p50.tolist(),
            p99.tolist(),
            like,
            strict=True,
        )
    ]


def _parts(matched: MatchedCollectives) -> list[MeasuredLink]:
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    found: dict[tuple[int, int], list[float]] = {}
    for one in matched.partials:
        table = one.links
        for src, dst, n, size, total, p50, p99 in zip(
            *(v.tolist() for v in table.values()), strict=True
        ):
            if src in number and dst in number:
                row = found.setdefault((number[src], number[dst]), [0, 0, 0, 0.0, np.inf, 0])
                row[0] += n
                row[1] += size
                row[2] += total
                if n > row[5]:
                    row[3], row[5] = p50 / _NS_PER_S, n
                row[4] = min(row[4], p99 / _NS_PER_S)
    keys = sorted(found)
    between = [crosses_hosts(matched, *key) for key in keys]
    size = np.array([found[key][1] / found[key][0] for key in keys])
    p50 = np.array([found[key][3] for key in keys])
    like = _like(between, _size_class(size), p50)
    return [
        MeasuredLink(
            *key,
            COLLECTIVE,
            far,
            int(row[0]),
            int(row[1]),
            int(row[2]),
            None,
            row[3],
            row[4],
            usual,
        )
        for key, far, usual in zip(keys, between, like, strict=True)
        for row in [found[key]]
    ]


def _size_class(size: Floats) -> Ints:
    return np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)


def _like(between: list[bool | None], size: Ints, rate: Floats) -> list[float | None]:
    """Return the median rate of links between or inside hosts with sizes of the same order."""
    classes: dict[tuple[bool | None, int], list[int]] = {}
    for index, (far, order) in enumerate(zip(between, size.tolist(), strict=True)):
        classes.setdefault((far, order), []).append(index)
    result: list[float | None] = [None] * len(between)
    for members in classes.values():
        usual = float(np.median(rate[members]))
        for index in members:
            result[index] = usual
    return result
