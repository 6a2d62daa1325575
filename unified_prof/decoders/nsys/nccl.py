"""Calls of NCCL: bytes, peers and communicators, from the NVTX ranges that NCCL itself marks.

A kernel of NCCL is launched inside the range of its call, or where calls are grouped, as PyTorch
does with each, inside the range of the `ncclGroupEnd` that closes the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from unified_prof.decoders.gpu.collectives import Collective, Collectives
from unified_prof.decoders.gpu.numbers import MISSING, Int64s
from unified_prof.decoders.nsys.fields import NO_ID, NO_TIME, Fields
from unified_prof.decoders.nsys.payloads import Payloads

RANGES = "NVTX_EVENTS"
PUSHED = (59, 70)
"""ENUM_NSYS_EVENT_TYPE: ranges that a thread pushes and pops; two sources."""

# Names of fields, as NCCL declares them in its schemas.
_COMMUNICATOR = "NCCL communicator ID"
_BYTES, _PEER = "Message size [bytes]", "Peer rank"
_RANKS, _RANK = "No. of ranks", "Rank"

_NAME, _DOMAIN = "NCCL", 75
"""The name of its domain, and ENUM_NSYS_EVENT_TYPE of what says it."""
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_PREFIX = "nccl"
_ONE_WAY = frozenset({"Send", "Recv"})
_SEND_AND_RECEIVE = "SendRecv"
_SHARED_BY_RANKS = frozenset({"AllGather", "ReduceScatter"})
"""Collectives whose payload says what one rank gives or gets: the larger message is of all."""
_SANE_BYTES = 1 << 60
_THREAD_BITS = 24
_OPENS, _CLOSES = -2, -3
_MOST_IN_GROUP = 10_000


class _Call(NamedTuple):
    process: int
    name: str
    communicator: int
    size_bytes: int
    peer: int


class NcclCalls:
    """Finds the collective that a runtime call was made for, by thread and time.

    Reads all ranges of NCCL at once and keeps four numbers of each.
    """

    def __init__(self, fields: Fields, payloads: Payloads) -> None:
        self._fields = fields
        self._payloads = payloads
        self._calls: dict[_Call, int] = {}
        self._communicators: dict[tuple[int, int], tuple[int, int]] = {}
        """(process, communicator) -> (rank, ranks)."""
        self._threads = self._starts = self._ends = self._numbers = np.empty(0, np.int64)
        self._read()

    def of(self, threads: Int64s, starts: Int64s) -> Int64s:
        """Return the collective around each point of time on a thread, MISSING where none is."""
        found = np.full(len(threads), MISSING)
        for thread in np.unique(threads).tolist() if len(self._threads) else ():
            first, behind = np.searchsorted(self._threads, [thread, thread + 1])
            if first == behind:
                continue
            mine = np.flatnonzero(threads == thread)
            at = np.searchsorted(self._starts[first:behind], starts[mine], "right") - 1 + first
            inside = (at >= first) & (starts[mine] <= self._ends[np.maximum(at, first)])
            found[mine[inside]] = self._numbers[at[inside]]
        return found

    def _read(self) -> None:
        there = self._fields.tables.columns(RANGES)
        held = [name for name in ("binaryData", "jsonText", "jsonTextId") if name in there]
        if not held or "domainId" not in there:
            return
        domains = self._payloads.domains_with(_COMMUNICATOR) or self._named_domains()
        if not domains:
            return
        parts: list[tuple[Int64s, ...]] = []
        wanted = {"start": NO_TIME, "end": NO_TIME, "globalTid": NO_ID, "textId": MISSING}
        wanted |= {"eventType": MISSING, "jsonTextId": MISSING}
        texts = ["text", *(name for name in held if name != "jsonTextId")]
        only = ("domainId", tuple(domains))
        for cells in self._fields.tables.slices(RANGES, wanted, texts=texts, only=only):
            nothing = [None] * len(cells["text"])
            what = [
                self._event(thread, text, payload, said)
                for thread, text, payload, said in zip(
                    cells["globalTid"].tolist(),
                    self._texts(cells["text"], cells["textId"]),
                    cells.get("binaryData", nothing),
                    self._texts(cells.get("jsonText", nothing), cells["jsonTextId"]),
                    strict=True,
                )
            ]
            kinds = np.array(what, np.int64)
            use = (kinds != MISSING) & np.isin(cells["eventType"], PUSHED)
            use &= (cells["start"] != NO_TIME) & (cells["globalTid"] != NO_ID)
            columns = (cells["globalTid"], cells["start"], cells["end"], kinds)
            parts.append(tuple(column[use] for column in columns))
        if self._calls:
            threads, starts, ends, kinds = map(np.concatenate, zip(*parts, strict=True))
            order = np.lexsort((starts, threads))
            self._resolve(threads[order], starts[order], ends[order], kinds[order])

    def _named_domains(self) -> set[int]:
        """Return the domains called as NCCL's is: payloads in JSON need no schemas."""
        wanted = {"domainId": NO_ID, "textId": MISSING}
        return {
            domain
            for cells in self._fields.tables.slices(
                RANGES, wanted, texts=["text"], only=("eventType", (_DOMAIN,))
            )
            for domain, text in zip(
                cells["domainId"].tolist(),
                self._texts(cells["text"], cells["textId"]),
                strict=True,
            )
            if text == _NAME
        }

    def _texts(self, texts: Iterable[str | None], ids: Int64s) -> list[str | None]:
        return [
            self._fields.texts[number] if text is None and number != MISSING else text
            for text, number in zip(texts, ids.tolist(), strict=True)
        ]

    def _event(self, thread: int, text: str | None, payload: str | None, said: str | None) -> int:
        """Return the number of a call, what a group does, or MISSING."""
        if text == _GROUP_START:
            return _OPENS
        if text == _GROUP_END:
            return _CLOSES
        found = self._payloads.decoded(payload) if payload is not None else _of_json(said)
        if text is None or not text.startswith(_PREFIX) or found is None:
            return MISSING
        process = thread >> _THREAD_BITS
        communicator = _whole(found, _COMMUNICATOR)
        if (ranks := _whole(found, _RANKS)) > 0:
            self._communicators[process, communicator] = (_whole(found, _RANK), ranks)
        if _BYTES not in found:
            return MISSING
        call = _Call(
            process,
            text.removeprefix(_PREFIX),
            communicator,
            _whole(found, _BYTES),
            _whole(found, _PEER),
        )
        return self._calls.setdefault(call, len(self._calls))

    def _resolve(self, threads: Int64s, starts: Int64s, ends: Int64s, kinds: Int64s) -> None:
        """Give each range in which kernels are launched its collective."""
        collectives = self._fields.parts.collectives
        calls = [*self._calls]
        single = [collectives.number(self._collective([call])) for call in calls]
        together: dict[tuple[int, ...], int] = {}
        numbers = np.full(len(kinds), MISSING)
        group: list[int] = []
        depth = unclear = 0
        thread = NO_ID
        for at, (of, kind) in enumerate(zip(threads.tolist(), kinds.tolist(), strict=True)):
            if of != thread:
                thread, depth, group = of, 0, []
            if kind == _OPENS:
                depth += 1
            elif kind == _CLOSES:
                depth = max(0, depth - 1)
                if depth == 0 and group:
                    key = tuple(group)
                    if key not in together:
                        together[key] = self._together([calls[one] for one in key], collectives)
                    numbers[at] = together[key]
                    unclear += together[key] == MISSING
                    group = []
            elif depth and len(group) < _MOST_IN_GROUP:
                group.append(kind)
            elif not depth:
                numbers[at] = single[kind]
        if unclear:
            self._fields.parts.sink.anomaly(
                "grouped_collectives",
                unclear,
                "groups of calls on several communicators: which kernel is whose is not known",
            )
        use = numbers != MISSING
        self._threads, self._starts = threads[use], starts[use]
        self._ends, self._numbers = ends[use], numbers[use]

    def _together(self, calls: Sequence[_Call], collectives: Collectives) -> int:
        """Return the one collective that NCCL makes of a group; MISSING where it makes several."""
        of_one = len({call.communicator for call in calls}) == 1
        names = {call.name for call in calls}
        if not of_one or not (len(names) == 1 or names <= _ONE_WAY):
            return MISSING
        return collectives.number(self._collective(calls))

    def _collective(self, calls: Sequence[_Call]) -> Collective:
        first = calls[0]
        names = {call.name for call in calls}
        rank, ranks = self._communicators.get(
            (first.process, first.communicator), (MISSING, MISSING)
        )
        size = sum(call.size_bytes for call in calls if call.size_bytes != MISSING)
        if any(call.size_bytes == MISSING for call in calls):
            size = MISSING
        elif names <= _SHARED_BY_RANKS and ranks > 0:
            size *= ranks
        peers = {call.peer for call in calls}
        peer = peers.pop() if len(peers) == 1 else MISSING
        receives = names == {"Recv"}
        source, target = (peer, rank) if receives else (rank, peer)
        is_between_two = peer != MISSING and len(names) == 1
        return Collective(
            name=first.name if len(names) == 1 else _SEND_AND_RECEIVE,
            group=f"0x{first.communicator & (1 << 64) - 1:x}",
            group_size=ranks,
            source_rank=source if is_between_two else MISSING,
            target_rank=target if is_between_two else MISSING,
            message_bytes=size if size < _SANE_BYTES else MISSING,
        )


def _of_json(text: str | None) -> dict[str, Any] | None:
    """Return the payload that newer exports write as JSON."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _whole(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str):  # communicators may be texts in JSON: too long for doubles
        try:
            value = int(value, 0)
        except ValueError:
            return MISSING
    return value if isinstance(value, int) and not isinstance(value, bool) else MISSING
