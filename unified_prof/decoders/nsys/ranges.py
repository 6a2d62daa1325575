"""Reads NVTX events: operations of emit_nvtx, other ranges, marks, payloads, and NCCL calls.

A payload consists of a 32-byte header (domain, schema, length, length with the header) and a C
struct whose fields are described in NVTX_PAYLOAD_SCHEMA_ENTRIES; `nsys export --include-blobs=true`
exports payloads. NCCL attaches bytes, peers and communicators to its ranges. An NCCL kernel is
launched inside the range of its call or, for grouped calls (PyTorch groups each call), inside the
range of the closing `ncclGroupEnd`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from unified_prof.arrays.grouping import NOWHERE, Ints, last_not_after
from unified_prof.base.columns import MISSING, NO_CATEGORY, NOT_AVAILABLE, Cells, Tables, ints
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.host_tables import RANGE_EVENT, write_annotations
from unified_prof.decoders.gpu.pools import Collective, Collectives
from unified_prof.decoders.gpu.rows import NO_TIME, as_operation
from unified_prof.decoders.nsys.columns import NO_ID, Fields
from unified_prof.decoders.nsys.other_events import write_payloads

SCHEMAS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
ENUMS = "NVTX_PAYLOAD_ENUM_ENTRIES"
_HEADER = struct.Struct("<IIIIQQ")
# Maximum characters of a payload.
_MAX_HEX = 1 << 16
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){32,}")
_MAX_FIELDS = 100_000  # Maximum fields of all schemas.

# Struct formats of nvtxPayloadEntryType from 1 on: C types on a 64-bit machine, then those of known
# width; x has no format.
_FORMATS = dict(
    enumerate("c <B <h <H <i <I <q <Q <q <Q <b <B <h <H <i <I <q <Q <f <d x <Q <Q".split(), 1)
)
del _FORMATS[21]
# Types from here on are schemas and enumerations of the program.
_FIRST_PROGRAM_TYPE = 1 << 24
_ENUM_FORMAT = "<i"


class _Field(Struct, frozen=True):
    name: str
    kind: int
    offset: int


class Payloads:
    """Decodes the payloads of one export."""

    def __init__(self, tables: Tables) -> None:
        self._schemas: dict[tuple[int, int], dict[int, _Field]] = {}
        self._enums: dict[tuple[int, int], dict[int, str]] = {}
        wanted = r.null_values("domainId schemaId", "idx type")
        count = 0
        for cells in tables.slices(SCHEMAS, {**wanted, "offset": 0}, texts=["name"]):
            for domain, schema, place, kind, offset, name in zip(
                *(cells[column].tolist() for column in (*wanted, "offset")),
                cells["name"],
                strict=True,
            ):
                count += 1
                if count <= _MAX_FIELDS:
                    fields = self._schemas.setdefault((domain, schema), {})
                    fields[place] = _Field(name or f"field {place}", kind, offset)
        wanted = r.null_values("domainId schemaId value")
        for cells in tables.slices(ENUMS, wanted, texts=["name"]):
            for domain, schema, value, name in zip(
                *(cells[column].tolist() for column in wanted), cells["name"], strict=True
            ):
                if name is not None and len(self._enums) <= _MAX_FIELDS:
                    self._enums.setdefault((domain, schema), {})[value] = name

    def domains_with(self, field: str) -> set[int]:
        """Return the domains that have a schema with this field."""
        return {
            domain
            for (domain, _), fields in self._schemas.items()
            if any(entry.name == field for entry in fields.values())
        }

    def decode(self, text: str | None) -> dict[str, Any] | None:
        """Decode the fields of a payload; return None if it does not match a schema.

        `text` contains hexadecimal digits, or a string with escaped bytes (see `columns.Tables`).
        """
        data = _bytes(text)
        if data is None or len(data) < _HEADER.size:
            return None
        domain, _, schema, _, length, total = _HEADER.unpack_from(data)
        fields = self._schemas.get((domain, schema))
        if fields is None or total != len(data) or _HEADER.size + length != total:
            return None
        found: dict[str, Any] = {}
        for place in sorted(fields):
            value = self._value(domain, fields[place], data[_HEADER.size :])
            if value is not None:
                found[fields[place].name] = value
        return found

    def _value(self, domain: int, field: _Field, data: bytes) -> Any:
        enum = self._enums.get((domain, field.kind))
        is_enum = enum is not None or field.kind >= _FIRST_PROGRAM_TYPE
        form = _ENUM_FORMAT if is_enum else _FORMATS.get(field.kind)
        if form is None or not 0 <= field.offset <= len(data) - struct.calcsize(form):
            return None
        (value,) = struct.unpack_from(form, data, field.offset)
        if isinstance(value, bytes):
            return value.decode("latin-1")
        return value if enum is None else enum.get(value, value)


def _bytes(text: str | None) -> bytes | None:
    r"""Convert a blob to bytes; bytes that are not UTF-8 are written as `\xNN`.

    If a blob itself contains such characters, its lengths do not match, so it is not decoded.
    """
    if text is None or len(text) > _MAX_HEX:
        return None
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    data = text.encode("utf-8", "surrogatepass")
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), data)


RANGES = "NVTX_EVENTS"
PUSHED = (59, 70)  # ENUM_NSYS_EVENT_TYPE of ranges that a thread pushes and pops, from two sources.

# Names of fields, as NCCL declares them in its schemas.
_COMMUNICATOR = "NCCL communicator ID"
_BYTES, _PEER = "Message size [bytes]", "Peer rank"
_RANKS, _RANK = "No. of ranks", "Rank"

# Name of NCCL's domain, and ENUM_NSYS_EVENT_TYPE of the event that names a domain.
_NAME, _DOMAIN_NAMED = "NCCL", 75
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_PREFIX = "nccl"
_ONE_WAY = frozenset({"Send", "Recv"})
_SEND_AND_RECEIVE = "SendRecv"
# Collectives whose payload has the bytes of one rank: the larger message is that of all ranks.
_PER_RANK = frozenset({"AllGather", "ReduceScatter"})
_MAX_BYTES = 1 << 60
_THREAD_BITS = 24
_OPENS, _CLOSES = -2, -3
_MAX_GROUP_CALLS = 10_000  # Maximum calls of one group.


class _Call(NamedTuple):
    process: int
    name: str
    communicator: int
    size_bytes: int
    peer: int


class NcclCalls:
    """Finds the collective of a runtime call by thread and time.

    Four numbers are stored for each NCCL range.
    """

    def __init__(self, fields: Fields, payloads: Payloads) -> None:
        self._fields, self._payloads = fields, payloads
        self._calls: dict[_Call, int] = {}
        # (process, communicator) -> (rank, number of ranks).
        self._communicators: dict[tuple[int, int], tuple[int, int]] = {}
        self._threads = self._starts = self._ends = self._numbers = np.empty(0, np.int64)
        self._read()

    def collectives_at(self, threads: Ints, starts: Ints) -> Ints:
        """Return the collective that encloses each time on a thread, MISSING if there is none."""
        at = last_not_after(self._threads, self._starts, threads, starts)
        inside = (at != NOWHERE) & (starts <= np.append(self._ends, 0)[at])
        return np.where(inside, np.append(self._numbers, MISSING)[at], MISSING)

    def _read(self) -> None:
        existing = self._fields.tables.columns(RANGES)
        payloads = [n for n in ("binaryData", "jsonText", "jsonTextId") if n in existing]
        if not payloads or "domainId" not in existing:
            return
        domains = self._payloads.domains_with(_COMMUNICATOR) or self._named_domains()
        if not domains:
            return
        parts: list[tuple[Ints, ...]] = []
        wanted = r.null_values("start end globalTid", "textId eventType jsonTextId")
        texts = ["text", *(name for name in payloads if name != "jsonTextId")]
        only = ("domainId", tuple(domains))
        for cells in self._fields.tables.slices(RANGES, wanted, texts=texts, only=only):
            missing = [None] * len(cells["text"])
            columns = (
                cells["globalTid"].tolist(),
                self._texts(cells["text"], cells["textId"]),
                cells.get("binaryData", missing),
                self._texts(cells.get("jsonText", missing), cells["jsonTextId"]),
            )
            events = [self._event(*row) for row in zip(*columns, strict=True)]
            kinds = np.array(events, np.int64)
            use = (kinds != MISSING) & np.isin(cells["eventType"], PUSHED)
            use &= (cells["start"] != NO_TIME) & (cells["globalTid"] != NO_ID)
            times = (cells["globalTid"], cells["start"], cells["end"], kinds)
            parts.append(tuple(column[use] for column in times))
        if self._calls:
            threads, starts, ends, kinds = map(np.concatenate, zip(*parts, strict=True))
            order = np.lexsort((starts, threads))
            self._resolve(threads[order], starts[order], ends[order], kinds[order])

    def _named_domains(self) -> set[int]:
        """Return the domains named NCCL, whose JSON payloads need no schemas."""
        wanted = r.null_values("domainId", "textId")
        only = ("eventType", (_DOMAIN_NAMED,))
        found: set[int] = set()
        for cells in self._fields.tables.slices(RANGES, wanted, texts=["text"], only=only):
            names = self._texts(cells["text"], cells["textId"])
            pairs = zip(cells["domainId"].tolist(), names, strict=True)
            found.update(domain for domain, name in pairs if name == _NAME)
        return found

    def _texts(self, texts: Iterable[str | None], ids: Ints) -> list[str | None]:
        return [
            self._fields.texts[number] if text is None and number != MISSING else text
            for text, number in zip(texts, ids.tolist(), strict=True)
        ]

    def _event(
        self, thread: int, text: str | None, payload: str | None, json_text: str | None
    ) -> int:
        """Return the number of a collective call, _OPENS or _CLOSES for a group, or MISSING."""
        if text == _GROUP_START:
            return _OPENS
        if text == _GROUP_END:
            return _CLOSES
        found = self._payloads.decode(payload) if payload is not None else _parse_json(json_text)
        if text is None or not text.startswith(_PREFIX) or found is None:
            return MISSING
        process = thread >> _THREAD_BITS
        communicator = _integer(found, _COMMUNICATOR)
        if (ranks := _integer(found, _RANKS)) > 0:
            self._communicators[process, communicator] = (_integer(found, _RANK), ranks)
        if _BYTES not in found:
            return MISSING
        name = text.removeprefix(_PREFIX)
        size, peer = _integer(found, _BYTES), _integer(found, _PEER)
        call = _Call(process, name, communicator, size, peer)
        return self._calls.setdefault(call, len(self._calls))

    def _resolve(self, threads: Ints, starts: Ints, ends: Ints, kinds: Ints) -> None:
        """Assign a collective to each range that launches kernels."""
        collectives = self._fields.parts.collectives
        calls = [*self._calls]
        single = [collectives.number(self._collective([call])) for call in calls]
        grouped: dict[tuple[int, ...], int] = {}
        numbers = np.full(len(kinds), MISSING)
        group: list[int] = []
        depth = ambiguous = 0
        thread = NO_ID
        for at, (row_thread, kind) in enumerate(zip(threads.tolist(), kinds.tolist(), strict=True)):
            if row_thread != thread:
                thread, depth, group = row_thread, 0, []
            if kind == _OPENS:
                depth += 1
            elif kind == _CLOSES:
                depth = max(0, depth - 1)
                if depth == 0 and group:
                    key = tuple(group)
                    if key not in grouped:
                        grouped[key] = self._group([calls[number] for number in key], collectives)
                    numbers[at] = grouped[key]
                    ambiguous += grouped[key] == MISSING
                    group = []
            elif depth and len(group) < _MAX_GROUP_CALLS:
                group.append(kind)
            elif not depth:
                numbers[at] = single[kind]
        detail = "groups of calls on several communicators: their kernels are not assigned"
        self._fields.parts.sink.anomaly("grouped_collectives", ambiguous, detail)
        use = numbers != MISSING
        self._threads, self._starts = threads[use], starts[use]
        self._ends, self._numbers = ends[use], numbers[use]

    def _group(self, calls: Sequence[_Call], collectives: Collectives) -> int:
        """Return the collective that NCCL runs for a group of calls; MISSING for several."""
        communicators = {call.communicator for call in calls}
        names = {call.name for call in calls}
        if len(communicators) > 1 or not (len(names) == 1 or names <= _ONE_WAY):
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
        elif names <= _PER_RANK and ranks > 0:
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
            message_bytes=size if size < _MAX_BYTES else MISSING,
        )


def _parse_json(text: str | None) -> dict[str, Any] | None:
    """Parse a JSON payload of newer exports; return None if it is not one."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str):  # in JSON if it is too long for a double
        try:
            value = int(value, 0)
        except ValueError:
            return MISSING
    return value if isinstance(value, int) and not isinstance(value, bool) else MISSING


# ENUM_NSYS_EVENT_TYPE; each has two numbers, by the source of the events.
_MARKS, _PUSHED, _STARTED = (34, 65), (59, 70), (60, 71)
_CATEGORY, _THREAD_NAME, _DOMAIN = 33, 39, 75

# ENUM_MSTX_EVENT_TYPE `marker`.
_MARK_EVENT = 0
_DEFAULT_DOMAIN = 0
_DEFAULT_DOMAIN_NAME = "default"
# Columns of payloads, and the kind of their values.
_PAYLOADS = {
    **dict.fromkeys(("uint64Value", "int64Value", "uint32Value", "int32Value"), "number"),
    **dict.fromkeys(("doubleValue", "floatValue"), "real"),
    "jsonText": "text",
    "jsonTextId": "number",
    "binaryData": "text",
}
_UNKNOWN = object()  # Payload that fits no schema.


class Ranges:
    """Reads operations into `Parts.host`, and writes other events as MSTX_EVENTS."""

    def __init__(self, fields: Fields, payloads: Payloads, end_ns: int) -> None:
        self._fields = fields
        self._binary = payloads
        self._parts = fields.parts
        self._end_ns = end_ns
        self._domains: dict[int, int] = {_DEFAULT_DOMAIN: self._parts.names[_DEFAULT_DOMAIN_NAME]}
        self._texts: dict[int, str | None] = {}
        self.categories: dict[str, str] = {}  # Names of categories by `domain:number`.
        self.operations = 0

    def read(self) -> None:
        """Read all NVTX events; must be called after the calls and tasks are read."""
        if not self._fields.tables.columns(RANGES):
            return
        self._labels()
        for cells in self._slices((*_PUSHED,), {}):
            self._pushed(cells)
        more = r.null_values("endGlobalTid", "rangeId")
        for cells in self._slices((*_STARTED,), more):
            self._annotations(cells, self._messages(cells), RANGE_EVENT)
        for cells in self._slices((*_MARKS,), {}):
            cells = {**cells, "end": cells["start"]}
            self._annotations(cells, self._messages(cells), _MARK_EVENT)
        self._payloads()

    def _slices(self, types: tuple[int, ...], more: dict[str, int]) -> Any:
        wanted = r.null_values("start end globalTid", "textId category", domainId=_DEFAULT_DOMAIN)
        wanted |= more
        only = ("eventType", types)
        return self._fields.tables.slices(RANGES, wanted, texts=["text"], only=only)

    def _labels(self) -> None:
        ids = "eventType textId category"
        wanted = r.null_values("globalTid", ids, domainId=_DEFAULT_DOMAIN)
        only = ("eventType", (_CATEGORY, _THREAD_NAME, _DOMAIN))
        for cells in self._fields.tables.slices(RANGES, wanted, texts=["text"], only=only):
            for kind, domain, category, packed, text in zip(
                *(cells[name].tolist() for name in ("eventType", "domainId", "category")),
                cells["globalTid"].tolist(),
                self._messages(cells),
                strict=True,
            ):
                if kind == _DOMAIN:
                    self._domains[domain] = self._parts.names[text]
                elif kind == _CATEGORY:
                    self.categories[f"{domain}:{category}"] = text
                elif packed != NO_ID:
                    self._fields.name_thread(packed, text)

    def _messages(self, cells: Cells) -> list[str]:
        """Return the messages of events, which are stored in the row or in StringIds."""
        texts, known = [], self._texts
        for text, number in zip(cells["text"], cells["textId"].tolist(), strict=True):
            if text is None and number != MISSING:
                if number not in known:
                    if len(known) > 100_000:  # each operation can have another text
                        known.clear()
                    known[number] = self._fields.texts[number]
                text = known[number]
            texts.append(NOT_AVAILABLE if text is None else text)
        return texts

    def _pushed(self, cells: Cells) -> None:
        messages = self._messages(cells)
        in_default = (cells["domainId"] == _DEFAULT_DOMAIN).tolist()
        operations = [
            as_operation(text) if default else None
            for text, default in zip(messages, in_default, strict=True)
        ]
        chosen = np.array([operation is not None for operation in operations], bool)
        if chosen.any():
            self._operations(_selected(cells, chosen), list(filter(None, operations)))
        if not chosen.all():
            rest = [text for text, op in zip(messages, operations, strict=True) if op is None]
            self._annotations(_selected(cells, ~chosen), rest, RANGE_EVENT)

    def _operations(self, cells: Cells, operations: list[tuple[str, int, int, str]]) -> None:
        rows, valid = self._parts.new_rows(self._ended(cells), r.HOST, "operation")
        rows["thread"], valid = self._fields.on_threads(cells["globalTid"], valid, "operation")
        self._parts.add_marked_operations(rows, valid, operations)
        self.operations += int(np.count_nonzero(valid))

    def _annotations(self, cells: Cells, messages: list[str], kind: int) -> None:
        cells = self._ended(cells)
        times, valid = self._parts.new_rows(cells, r.INTERVAL, "annotation")
        threads, valid = self._fields.on_threads(cells["globalTid"], valid, "annotation")
        ends = threads
        if "endGlobalTid" in cells:
            recorded = self._fields.threads(cells["endGlobalTid"], active=False)
            ends = np.where(recorded == MISSING, threads, recorded)
        names = self._parts.names
        domains = ints([self._domain(number) for number in cells["domainId"].tolist()])
        ranges = cells.get("rangeId", np.full(len(times), MISSING))
        write_annotations(
            self._parts,
            times[valid],
            ints([names[text] for text in messages])[valid],
            threads[valid],
            kinds=kind,
            domains=domains[valid],
            end_threads=ends[valid],
            ranges=np.where(ranges == MISSING, NO_CATEGORY, ranges)[valid],
            categories=np.where(cells["category"] <= 0, NO_CATEGORY, cells["category"])[valid],
        )

    def _domain(self, number: int) -> int:
        if number not in self._domains:
            self._domains[number] = self._parts.names[f"domain {number}"]
        return self._domains[number]

    def _ended(self, cells: Cells) -> Cells:
        """Return the cells, with the end of the session as end of open ranges."""
        start, end = cells["start"], cells["end"]
        is_open = (end == NO_TIME) & (start != NO_TIME)
        if not is_open.any():
            return cells
        count = int(np.count_nonzero(is_open))
        self._parts.sink.anomaly("range_not_ended", count, "ended with the session")
        return {**cells, "end": np.where(is_open, np.maximum(start, self._end_ns), end)}

    def _payloads(self) -> None:
        existing = self._fields.tables.columns(RANGES)
        wanted = r.null_values("start end globalTid", "textId", domainId=_DEFAULT_DOMAIN)
        unknown = 0
        for name, kind in _PAYLOADS.items():
            if name not in existing:
                continue
            slices = self._fields.tables.slices(
                RANGES,
                {**wanted, name: NO_ID} if kind == "number" else wanted,
                reals=[name] if kind == "real" else [],
                texts=["text", name] if kind == "text" else ["text"],
                only=(name, None),
            )
            for cells in slices:
                column = cells[name]
                values = column.tolist() if isinstance(column, np.ndarray) else column
                values = [self._payload(name, value) for value in values]
                known = np.array([value is not _UNKNOWN for value in values], bool)
                unknown += int(np.count_nonzero(~known))
                if known.any():
                    cells = _selected(cells, known)
                    decoded = [value for value in values if value is not _UNKNOWN]
                    write_payloads(self._fields, cells, self._messages(cells), decoded)
        detail = "payloads of NVTX ranges do not fit any schema"
        self._parts.sink.anomaly("binary_payload", unknown, detail)

    def _payload(self, name: str, value: Any) -> Any:
        if name == "binaryData":
            found = self._binary.decode(value)
            return _UNKNOWN if found is None else found
        if name == "jsonTextId":
            value = self._fields.texts[value]
        if name in ("jsonText", "jsonTextId"):
            try:
                return json.loads(value)
            except (TypeError, ValueError, RecursionError):
                return value
        return value


def _selected(cells: Cells, chosen: Any) -> Cells:
    """Return the chosen rows of all columns of a slice."""
    mask = chosen.tolist()
    return {
        name: column[chosen] if isinstance(column, np.ndarray) else list(compress(column, mask))
        for name, column in cells.items()
    }
