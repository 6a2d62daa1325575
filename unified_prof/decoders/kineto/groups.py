"""Groups of ranks: who is in each, and who sends to whom, also where events name only the peer.

torch writes ranks of a group with `...` in their middle where they are many, the peer of a send or
receive by its global number (by its number inside the group in older versions), and never the own
rank, which the trace says as a whole. Tables count ranks inside the group, as vendors do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unified_prof.decoders.gpu.collectives import Collective
from unified_prof.decoders.gpu.numbers import MISSING
from unified_prof.decoders.gpu.pools import parse_json
from unified_prof.vocabulary import NOT_AVAILABLE

_GAP = "..."
_MOST_RANKS = 1 << 20

Ranks = tuple[int, ...]


def listed_ranks(text: str) -> Ranks | None:
    """Return the ranks of `[0, 1, 2]`, None where that is no whole list."""
    return _numbers(parse_json(text.encode("utf-8", "replace")))


def strided_ranks(start: int, stride: int, size: int) -> Ranks | None:
    """Return the ranks of a group that is evenly spaced, None where these are not such numbers."""
    if start < 0 or not 0 < size <= _MOST_RANKS or (stride <= 0 and size > 1):
        return None
    return tuple(start + number * max(stride, 1) for number in range(size))


def of_session(distributed: Mapping[str, Any]) -> dict[str, tuple[str, Ranks]]:
    """Return description and global ranks of the groups that a trace lists, by name."""
    groups = {}
    listed = distributed.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        if isinstance(group, dict):
            ranks = group.get("ranks")
            known = listed_ranks(ranks) if isinstance(ranks, str) else _numbers(ranks)
            if known is not None:
                name = str(group.get("pg_name", ""))
                groups[name] = (str(group.get("pg_desc", "") or name), known)
    return groups


def complete(
    collectives: list[Collective],
    session: Mapping[str, tuple[str, Ranks]],
    rank: int,
    count: Callable[[str, int, str], None],
) -> dict[str, tuple[str, Ranks]]:
    """Complete calls in place: ranks of groups, source and target; return all groups there are.

    Args:
        collectives: Distinct calls.
        session: Groups that the trace lists.
        rank: Whose trace it is, `MISSING` where it does not say.
        count: Told of peers that are not in their group.
    """
    groups = dict(session)
    strangers = 0
    for number, one in enumerate(collectives):
        ranks = _ranks_of(one, session)
        if ranks is not None:
            described = one.group_description
            if one.group != NOT_AVAILABLE:
                title = one.group if described == NOT_AVAILABLE else described
                groups.setdefault(one.group, (title, ranks))
            one = replace(
                one,
                group_ranks=json.dumps(list(ranks)),
                group_size=one.group_size if one.group_size != MISSING else len(ranks),
            )
        source, target = _ends(one, ranks, rank)
        if ranks is not None:
            inside = [MISSING if end not in ranks else ranks.index(end) for end in (source, target)]
            strangers += sum(
                end != MISSING and at == MISSING
                for end, at in zip((source, target), inside, strict=True)
            )
            source, target = inside
        collectives[number] = replace(one, source_rank=source, target_rank=target)
    if strangers:
        count("peer_outside_group", strangers, "a rank that its group does not have: left out")
    return groups


def _ranks_of(one: Collective, session: Mapping[str, tuple[str, Ranks]]) -> Ranks | None:
    """Return the global ranks of a call's group, from whatever says all of them."""
    told = listed_ranks(one.group_ranks)
    if told is not None:
        return told
    begins = _begins(one.group_ranks)
    known = session.get(one.group, ("", None))[1]
    for ranks in (known, one.strided_ranks):
        if ranks and ranks[: len(begins)] == begins:
            return ranks
    return None


def _begins(text: str) -> Ranks:
    """Return the ranks before the `...` of a list that torch cut."""
    before, gap, _ = text.partition(_GAP)
    numbers = listed_ranks(before.rstrip(", ") + "]") if gap else None
    return numbers or ()


def _ends(one: Collective, ranks: Ranks | None, own: int) -> tuple[int, int]:
    """Return the global numbers of source and target; `MISSING` where nobody says them."""
    kind = one.name.lower()
    if kind not in ("send", "recv"):
        return one.source_rank, one.target_rank
    peer = one.target_rank if kind == "send" else one.source_rank
    if peer == MISSING and ranks is not None and 0 <= one.peer < len(ranks):
        peer = ranks[one.peer]
    return (own, peer) if kind == "send" else (peer, own)


def _numbers(value: Any) -> Ranks | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    return tuple(value) if all(type(one) is int and one >= 0 for one in value) else None
