"""Columns of ids and counts in which -1 means that there is none.

Allocator events: the state after each one, and allocations paired with their release.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Column, Sink
from unified_prof.decoders.spool import Rows

Int64s = NDArray[np.int64]

MISSING = -1
"""Stands for an id that an event does not have."""


def ints(values: Iterable[int]) -> Int64s:
    """Return Python integers as a column, faster than NumPy finds out that they are some.

    Raises:
        TypeError: not all are integers.
        OverflowError: not all fit into int64.
    """
    return np.frombuffer(array("q", values), dtype=np.int64)


def null_where(missing: NDArray[np.bool_], values: NDArray[Any]) -> Column:
    """Return a column that is stored as NULL where `missing`."""
    if not missing.any():
        return values
    return None if missing.all() else np.ma.masked_array(values, missing)


def known(values: Int64s) -> Column:
    """Return a column in which `MISSING` is stored as NULL."""
    return null_where(values == MISSING, values)


DEVICE_COMPONENT = "PTA"
"""What readers of the format look for: PyTorch's caching allocator on an accelerator."""
HOST_COMPONENT = "CPU"

HOST_DEVICE = MISSING

_OPERATION_COLUMNS = (
    *("name", "size", "allocationTime", "releaseTime", "duration", "allocationTotalAllocated"),
    *("allocationTotalReserved", "releaseTotalAllocated", "releaseTotalReserved", "deviceId"),
)
_Row = tuple[int | None, ...]


class Allocations:
    """Writes MEMORY_RECORD and OP_MEMORY from allocator events in time order."""

    def __init__(
        self,
        sink: Sink,
        base_ns: int,
        no_name: int,
        *,
        component: str = DEVICE_COMPONENT,
        adds_up: bool = False,
    ) -> None:
        """Make the writer.

        Args:
            sink: Takes the rows.
            base_ns: What makes times Unix times.
            no_name: String id of what stands for no operation.
            component: Who gave out the device's memory.
            adds_up: Whether the memory in use is worked out, as no event says it.
        """
        self._sink = sink
        self._component = component
        self._in_use: dict[int, int] | None = {} if adds_up else None
        self._base_ns = base_ns
        self._no_name = no_name
        self._live: dict[tuple[int, int, int], _Row] = {}
        self._done: list[_Row] = []

    def take(self, rows: Rows, operation_names: Int64s) -> None:
        """Take allocator events and the names of the operations around them."""
        if not len(rows):
            return
        if self._in_use is not None:
            rows = self._added_up(rows, self._in_use)
        times = rows["start"] + self._base_ns
        on_host = rows["device"] == HOST_DEVICE
        names = np.where(operation_names != MISSING, operation_names, self._no_name)
        intern = self._sink.strings.intern
        component = np.full(len(rows), MISSING)
        for where, text in ((on_host, HOST_COMPONENT), (~on_host, self._component)):
            if where.any():
                component[where] = intern(text)
        self._sink.write(
            "MEMORY_RECORD",
            {
                "component": component,
                "timestamp": times,
                "totalAllocated": known(rows["total_allocated"]),
                "totalReserved": known(rows["total_reserved"]),
                "deviceId": rows["device"],
            },
        )
        known_place = rows["address"] != MISSING
        if not known_place.all():
            lost = int(np.count_nonzero(~known_place))
            self._sink.anomaly("allocation_without_address", lost, "not paired with its release")
        self._pair(rows[known_place], times[known_place], names[known_place])
        self._write_done()

    def finish(self) -> None:
        """Write the allocations that were never released."""
        self._done += self._live.values()
        self._live = {}
        self._write_done()

    @staticmethod
    def _added_up(rows: Rows, in_use: dict[int, int]) -> Rows:
        """Fill in how much is in use on each device after each event."""
        rows = rows.copy()
        for device in np.unique(rows["device"]).tolist():
            mine = rows["device"] == device
            totals = in_use.get(device, 0) + np.cumsum(rows["size"][mine])
            rows["total_allocated"][mine] = np.maximum(totals, 0)
            in_use[device] = int(totals[-1])
        return rows

    def _pair(self, rows: Rows, times: Int64s, names: Int64s) -> None:
        live = self._live
        lost = unknown = 0
        for device, owner, address, size, time, name, allocated, reserved in zip(
            rows["device"].tolist(),
            rows["owner"].tolist(),
            rows["address"].tolist(),
            rows["size"].tolist(),
            times.tolist(),
            names.tolist(),
            rows["total_allocated"].tolist(),
            rows["total_reserved"].tolist(),
            strict=True,
        ):
            key = (device, owner, address)
            totals = (_or_none(allocated), _or_none(reserved))
            if size > 0:
                if key in live:
                    lost += 1
                    self._done.append(live[key])
                live[key] = (name, size, time, None, None, *totals, None, None, device)
            elif begun := live.pop(key, None):
                name_then, size_then, time_then, _, _, allocated_then, reserved_then = begun[:7]
                assert time_then is not None
                self._done.append(
                    (
                        *(name_then, size_then, time_then, time, time - time_then),
                        *(allocated_then, reserved_then, *totals, device),
                    )
                )
            else:
                unknown += 1
        if lost:
            self._sink.anomaly("allocation_without_release", lost, "allocated again before")
        if unknown:
            self._sink.anomaly("release_without_allocation", unknown, "allocated before the trace")

    def _write_done(self) -> None:
        if self._done:
            columns = zip(*self._done, strict=True)
            self._sink.write("OP_MEMORY", dict(zip(_OPERATION_COLUMNS, columns, strict=True)))
            self._done = []


def _or_none(value: int) -> int | None:
    return None if value == MISSING else value
