"""Watches the rows of PROF_* on their way into the report: launches, operator memory, ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Column, Sink, Strings
from unified_prof.vocabulary import FIRST_MARK_CONNECTION

Ints = NDArray[np.int64]

_NODE = 10_000
"""ENUM_API_TYPE `node`."""
_LAUNCH = "launch"
_NO_RANK = -1

_CALLS = ("startNs", "endNs", "globalTid", "connectionId")
_ALLOCATIONS = (
    *("operatorName", "addr", "type", "size", "timestampNs"),
    *("totalAllocate", "totalReserve", "deviceId"),
)


class Watched(Sink):
    """Passes everything on; keeps what FRAMEWORK/ is joined with, and puts in the rank."""

    def __init__(self, sink: Sink, rank: int | None) -> None:
        self._sink = sink
        self._rank = _NO_RANK if rank is None else rank
        self._calls: list[dict[str, Ints]] = []
        self._marks: list[dict[str, Ints]] = []
        self._allocations: list[dict[str, Ints]] = []

    @property
    def strings(self) -> Strings:
        """The string pool of the sink behind."""
        return self._sink.strings

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Pass on; see `columns.Sink.anomaly`."""
        self._sink.anomaly(name, count, detail)

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Pass on and keep what is needed; see `columns.Sink.write`."""
        if table == "RANK_DEVICE_MAP":
            columns = {**columns, "rankId": self._rank}
        elif table == "CANN_API":
            rows = _rows(columns, (*_CALLS, "type", "name"))
            launch = self.strings.intern(_LAUNCH)
            chosen = (rows["type"] == _NODE) & (rows["name"] == launch)
            if chosen.any():
                self._calls.append({name: rows[name][chosen] for name in _CALLS})
        elif table == "MSTX_EVENTS":
            rows = _rows(columns, _CALLS)
            chosen = rows["connectionId"] >= FIRST_MARK_CONNECTION
            if chosen.any():
                self._marks.append({name: values[chosen] for name, values in rows.items()})
        elif table == "NPU_OP_MEM":
            self._allocations.append(_rows(columns, _ALLOCATIONS))
        return self._sink.write(table, columns)

    def launches(self) -> dict[str, Ints]:
        """Return the calls in which something was launched, collectives aside."""
        return _joined(self._calls, _CALLS)

    def marks(self) -> dict[str, Ints]:
        """Return the marks that have a half on the device, with the same columns."""
        return _joined(self._marks, _CALLS)

    def allocations(self) -> dict[str, Ints]:
        """Return what CANN's own operators allocated and released."""
        return _joined(self._allocations, _ALLOCATIONS)


def _rows(columns: Mapping[str, Column], names: tuple[str, ...]) -> dict[str, Ints]:
    """Return columns as arrays of one length; what is missing is 0."""
    arrays = {name: np.asarray(columns.get(name, 0)) for name in names}
    length = max((len(one) for one in arrays.values() if one.ndim), default=1)
    return {
        name: np.broadcast_to(one, length).astype(np.int64, copy=True)
        for name, one in arrays.items()
    }


def _joined(parts: list[dict[str, Ints]], names: tuple[str, ...]) -> dict[str, Ints]:
    nothing = np.zeros(0, np.int64)
    return {name: np.concatenate([nothing, *(part[name] for part in parts)]) for name in names}
