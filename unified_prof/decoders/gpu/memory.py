"""Writes the tables of allocator events.

MEMORY_RECORD contains the state after each event, OP_MEMORY the allocations paired with their
frees.
"""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import MISSING, Sink, null_if_missing
from unified_prof.decoders.spool import Rows

# MEMORY_RECORD.component that readers expect for PyTorch's caching allocator on an accelerator.
DEVICE_COMPONENT = "PTA"
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
        """Create the writer.

        `base_ns` is added to times to get Unix times, and `no_name` is the string id of allocations
        outside operations. If `adds_up` is true, memory in use is computed, because events do not
        contain it.
        """
        self._sink = sink
        self._component = component
        self._in_use: dict[int, int] | None = {} if adds_up else None
        self._base_ns = base_ns
        self._no_name = no_name
        self._live: dict[tuple[int, int, int], _Row] = {}
        self._complete: list[_Row] = []

    def add(self, rows: Rows, operation_names: Ints) -> None:
        """Add allocator events with the names of the operations that enclose them."""
        if not len(rows):
            return
        if self._in_use is not None:
            rows = self._with_totals(rows, self._in_use)
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
                "totalAllocated": null_if_missing(rows["total_allocated"]),
                "totalReserved": null_if_missing(rows["total_reserved"]),
                "deviceId": rows["device"],
            },
        )
        addressed = rows["address"] != MISSING
        if not addressed.all():
            lost = int(np.count_nonzero(~addressed))
            self._sink.anomaly("allocation_without_address", lost, "not paired with a free")
        self._pair(rows[addressed], times[addressed], names[addressed])
        self._write_complete()

    def finish(self) -> None:
        """Write the allocations that were never freed."""
        self._complete += self._live.values()
        self._live = {}
        self._write_complete()

    @staticmethod
    def _with_totals(rows: Rows, in_use: dict[int, int]) -> Rows:
        """Return rows with the memory in use on each device after each event."""
        rows = rows.copy()
        for device in np.unique(rows["device"]).tolist():
            on_device = rows["device"] == device
            totals = in_use.get(device, 0) + np.cumsum(rows["size"][on_device])
            rows["total_allocated"][on_device] = np.maximum(totals, 0)
            in_use[device] = int(totals[-1])
        return rows

    def _pair(self, rows: Rows, times: Ints, names: Ints) -> None:
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
                    self._complete.append(live[key])
                live[key] = (name, size, time, None, None, *totals, None, None, device)
            elif allocation := live.pop(key, None):
                name, allocated_bytes, begin, _, _, *begin_totals = allocation[:7]
                assert begin is not None
                self._complete.append(
                    (
                        *(name, allocated_bytes, begin, time, time - begin),
                        *(*begin_totals, *totals, device),
                    )
                )
            else:
                unknown += 1
        if lost:
            self._sink.anomaly("allocation_without_release", lost, "allocated again without a free")
        if unknown:
            self._sink.anomaly("release_without_allocation", unknown, "allocated before the trace")

    def _write_complete(self) -> None:
        if self._complete:
            columns = zip(*self._complete, strict=True)
            self._sink.write("OP_MEMORY", dict(zip(_OPERATION_COLUMNS, columns, strict=True)))
            self._complete = []


def _or_none(value: int) -> int | None:
    return None if value == MISSING else value
