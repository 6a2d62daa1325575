"""What moved from rank to rank, and how fast.

Only moving data counts, never waiting: of a send and its receive the shorter duration, of a
collective the parts that the recording lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.cluster.matching import MatchedCollectives
from unified_prof.cluster.waits import Waits

P2P, COLLECTIVE = "p2p", "collective"
_NS_PER_S = 1e9


@dataclass(slots=True)
class MeasuredLink:
    """Data that moved from one rank to another; ranks are indices, rates are GB/s."""

    src: int
    dst: int
    kind: str
    """P2P or COLLECTIVE."""
    across: bool | None
    """Whether it leaves its host; None if the hosts are unknown."""
    n: int
    bytes: int
    transfer_ns: int
    wait_ns: int | None
    p50: float
    p99: float
    like: float = 0.0
    """Median rate of links of the same kind and order of size, inside of hosts or between them."""


def crosses_hosts(matched: MatchedCollectives, a: int, b: int) -> bool | None:
    """Return whether two ranks are on different hosts; None if that is unknown."""
    one, other = matched.facts[a].host, matched.facts[b].host
    return None if one is None or other is None else one != other


def measure_links(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    """Return all links: sends and receives first, then those of parts of collectives."""
    links = [*_transfers(matched, waits), *_collective_parts(matched)]
    classes: dict[tuple[object, ...], list[MeasuredLink]] = {}
    for link in links:
        order = int(np.log2(max(link.bytes / link.n, 1)))
        classes.setdefault((link.kind, link.across, order), []).append(link)
    for members in classes.values():
        usual = float(np.median([link.p50 for link in members]))
        for link in members:
            link.like = usual
    return links


def _transfers(matched: MatchedCollectives, waits: Waits) -> list[MeasuredLink]:
    events, rows = matched.events, matched.rows
    usable = np.flatnonzero(
        matched.transfers & events.complete & (waits.transfer > 0) & (events.bytes > 0)
    )
    if not len(usable):
        return []
    rate = events.bytes[usable] / waits.transfer[usable]
    order = np.lexsort((rate, events.dst[usable], events.src[usable]))
    usable, rate = usable[order], rate[order]
    src, dst = events.src[usable], events.dst[usable]
    # The rows of a send and its receive are adjacent; the wait is that of the receiver.
    first = events.first[usable]
    receiver = np.where(rows.rank[first] == dst, first, first + 1)
    heads = np.flatnonzero(np.r_[True, (np.diff(src) != 0) | (np.diff(dst) != 0)])
    n = np.diff(np.r_[heads, len(src)])
    columns = (
        n,
        *(
            np.add.reduceat(values, heads)
            for values in (
                *(events.bytes[usable], waits.transfer[usable]),
                np.maximum(waits.wait[receiver], 0),
            )
        ),
        *(rate[heads + n // 2], rate[heads + n // 100]),
    )
    return [
        MeasuredLink(a, b, P2P, crosses_hosts(matched, a, b), *figures)
        for a, b, *figures in zip(
            *(column.tolist() for column in (src[heads], dst[heads], *columns)), strict=True
        )
    ]


def _collective_parts(matched: MatchedCollectives) -> list[MeasuredLink]:
    number = {rank: index for index, rank in enumerate(matched.ranks)}
    found: dict[tuple[int, int], MeasuredLink] = {}
    counts: dict[tuple[int, int], int] = {}
    for partial in matched.partials:
        for src, dst, n, size, total, p50, p99 in zip(
            *(values.tolist() for values in partial.links.values()), strict=True
        ):
            if src not in number or dst not in number:
                continue
            ends = number[src], number[dst]
            p50, p99 = p50 / _NS_PER_S, p99 / _NS_PER_S
            if ends not in found:
                across = crosses_hosts(matched, *ends)
                found[ends] = MeasuredLink(*ends, COLLECTIVE, across, 0, 0, 0, None, p50, p99)
            link = found[ends]
            link.n, link.bytes = link.n + n, link.bytes + size
            link.transfer_ns += total
            link.p99 = min(link.p99, p99)
            if n > counts.get(ends, 0):  # the median of the side with most parts
                link.p50, counts[ends] = p50, n
    return [found[ends] for ends in sorted(found)]
