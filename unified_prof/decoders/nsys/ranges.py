"""Reads NVTX events: operations of emit_nvtx, other ranges, marks, and their payloads."""

from __future__ import annotations

import json
from itertools import compress
from typing import Any

import numpy as np

from unified_prof.base.columns import MISSING, NO_CATEGORY, NOT_AVAILABLE, Cells, ints
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.call_chains import as_operation
from unified_prof.decoders.gpu.host_tables import RANGE_EVENT, write_annotations
from unified_prof.decoders.nsys.columns import NO_ID, NO_TIME, Fields
from unified_prof.decoders.nsys.nccl import Payloads
from unified_prof.decoders.nsys.other_events import OtherEvents

RANGES = "NVTX_EVENTS"

# ENUM_NSYS_EVENT_TYPE; each has two numbers, by the source of the events.
_MARKS, _PUSHED, _STARTED = (34, 65), (59, 70), (60, 71)
_CATEGORY, _THREAD_NAME, _DOMAIN = 33, 39, 75

# ENUM_MSTX_EVENT_TYPE `marker`.
_MARK_EVENT = 0
_DEFAULT_DOMAIN = 0
_DEFAULT_DOMAIN_NAME = "default"

_INTEGER_PAYLOADS = ("uint64Value", "int64Value", "uint32Value", "int32Value")
_REAL_PAYLOADS = ("doubleValue", "floatValue")


class Ranges:
    """Reads operations into `Parts.host`, and writes other events as MSTX_EVENTS."""

    def __init__(
        self, fields: Fields, others: OtherEvents, payloads: Payloads, end_ns: int, base_ns: int
    ) -> None:
        self._fields = fields
        self._binary = payloads
        self._parts = fields.parts
        self._others = others
        self._end_ns = end_ns
        self._base_ns = base_ns
        self._domains: dict[int, int] = {_DEFAULT_DOMAIN: self._parts.names[_DEFAULT_DOMAIN_NAME]}
        self._texts: dict[int, str | None] = {}
        self.categories: dict[str, str] = {}
        """Names of categories by `domain:number`."""
        self.operations = 0

    def read(self) -> None:
        """Read all NVTX events; must be called after the calls and tasks are read."""
        if not self._fields.tables.columns(RANGES):
            return
        self._labels()
        for cells in self._slices((*_PUSHED,), {}):
            self._pushed(cells)
        more = {"rangeId": MISSING, "endGlobalTid": NO_ID}
        for cells in self._slices((*_STARTED,), more):
            self._annotations(cells, self._messages(cells), RANGE_EVENT)
        for cells in self._slices((*_MARKS,), {}):
            cells = {**cells, "end": cells["start"]}
            self._annotations(cells, self._messages(cells), _MARK_EVENT)
        self._payloads()

    def _slices(self, types: tuple[int, ...], more: dict[str, int]) -> Any:
        wanted = {
            "start": NO_TIME,
            "end": NO_TIME,
            "globalTid": NO_ID,
            "textId": MISSING,
            "domainId": _DEFAULT_DOMAIN,
            "category": MISSING,
            **more,
        }
        only = ("eventType", types)
        return self._fields.tables.slices(RANGES, wanted, texts=["text"], only=only)

    def _labels(self) -> None:
        """Read names of domains, categories and threads."""
        wanted = {
            "eventType": MISSING,
            "textId": MISSING,
            "domainId": _DEFAULT_DOMAIN,
            "category": MISSING,
            "globalTid": NO_ID,
        }
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
        rows, valid = self._fields.timed(self._ended(cells), r.HOST, "operation")
        rows["thread"], valid = self._fields.on_threads(cells["globalTid"], valid, "operation")
        self._parts.add_marked_operations(rows, valid, operations)
        self.operations += int(np.count_nonzero(valid))

    def _annotations(self, cells: Cells, messages: list[str], kind: int) -> None:
        cells = self._ended(cells)
        times, valid = self._fields.timed(cells, r.INTERVAL, "annotation")
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
            self._base_ns,
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
        """Write the payloads of ranges and marks."""
        existing = self._fields.tables.columns(RANGES)
        wanted = {"start": NO_TIME, "end": NO_TIME, "globalTid": NO_ID, "textId": MISSING}
        wanted["domainId"] = _DEFAULT_DOMAIN
        for name in (*_INTEGER_PAYLOADS, *_REAL_PAYLOADS, "jsonText", "jsonTextId"):
            if name not in existing:
                continue
            numbers = dict(wanted)
            texts = ["text"]
            if name in _INTEGER_PAYLOADS or name == "jsonTextId":
                numbers[name] = NO_ID
            elif name == "jsonText":
                texts.append(name)
            reals = [name] if name in _REAL_PAYLOADS else []
            slices = self._fields.tables.slices(
                RANGES, numbers, reals=reals, texts=texts, only=(name, None)
            )
            for cells in slices:
                values = [self._payload(name, value) for value in _as_list(cells[name])]
                self._others.write_payloads(cells, self._messages(cells), values)
        if "binaryData" in existing:
            self._binary_payloads(wanted)

    def _binary_payloads(self, wanted: dict[str, int]) -> None:
        unknown = 0
        texts, only = ["text", "binaryData"], ("binaryData", None)
        for cells in self._fields.tables.slices(RANGES, wanted, texts=texts, only=only):
            values = [self._binary.decode(text) for text in cells["binaryData"]]
            known = np.array([value is not None for value in values], bool)
            unknown += int(np.count_nonzero(~known))
            if known.any():
                cells = _selected(cells, known)
                decoded = [value for value in values if value is not None]
                self._others.write_payloads(cells, self._messages(cells), decoded)
        if unknown:
            detail = "payloads of NVTX ranges do not fit any schema"
            self._parts.sink.anomaly("binary_payload", unknown, detail)

    def _payload(self, name: str, value: Any) -> Any:
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


def _as_list(column: Any) -> list[Any]:
    return list(column.tolist()) if isinstance(column, np.ndarray) else list(column)
