"""The tables of a snapshot, written in batches."""

from __future__ import annotations

import json
from typing import Any

from unified_prof.columns import Sink
from unified_prof.decoders.gpu.memory import DEVICE_COMPONENT
from unified_prof.vocabulary import NOT_AVAILABLE

_BATCH_ROWS = 50_000

_MEMORY_COLUMNS = (
    *("component", "timestamp", "totalAllocated", "totalReserved", "totalActive"),
    *("streamPtr", "deviceId"),
)
_BLOCK_COLUMNS = (
    *("name", "size", "allocationTime", "releaseTime", "activeReleaseTime", "duration"),
    *("activeDuration", "allocationTotalAllocated", "allocationTotalReserved"),
    *("allocationTotalActive", "releaseTotalAllocated", "releaseTotalReserved"),
    *("releaseTotalActive", "streamPtr", "deviceId"),
)
_CHAIN_COLUMNS = ("deviceId", "address", "sizeBytes", "allocationNs", "releaseNs", "callchainId")
_EVENT_COLUMNS = ("startNs", "endNs", "category", "name", "process", "thread", "args")


class Tables:
    """All tables that the actions of an allocator become."""

    def __init__(self, sink: Sink) -> None:
        self._component = sink.strings.intern(DEVICE_COMPONENT)
        self._memory = Rows(sink, "MEMORY_RECORD", _MEMORY_COLUMNS)
        self.blocks = Rows(sink, "OP_MEMORY", _BLOCK_COLUMNS)
        self.places = Rows(sink, "UPROF_MEMORY_BLOCKS", _CHAIN_COLUMNS)
        self._events = Rows(sink, "UPROF_TRACE_EVENTS", _EVENT_COLUMNS)
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._intern = sink.strings.intern

    def see(self, now: int) -> None:
        """Take note of a moment: the recording's span holds it."""
        self.first_ns = now if self.first_ns is None else min(self.first_ns, now)
        self.last_ns = now if self.last_ns is None else max(self.last_ns, now)

    def total(
        self, now: int, totals: tuple[int | None, ...], stream: int | None, device: int
    ) -> None:
        """Write how much is in use from now on."""
        self._memory.add((self._component, now, *totals, stream, device))

    def instant(self, now: int, category: str, name: str, device: int, args: Any) -> None:
        """Write what happened at one moment; `device` below 0 is not known."""
        self.see(now)
        intern = self._intern
        place = f"device {device}" if device >= 0 else NOT_AVAILABLE
        self._events.add((now, None, intern(category), intern(name), place, "", json.dumps(args)))

    def flush(self) -> None:
        """Write what is left."""
        for rows in (self._memory, self.blocks, self.places, self._events):
            rows.flush()


class Rows:
    """Rows of one table, written in batches."""

    def __init__(self, sink: Sink, table: str, columns: tuple[str, ...]) -> None:
        self._sink = sink
        self._table = table
        self._columns = columns
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Take one row."""
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        if self._rows:
            columns = (list(column) for column in zip(*self._rows, strict=True))
            self._sink.write(self._table, dict(zip(self._columns, columns, strict=True)))
            self._rows = []
