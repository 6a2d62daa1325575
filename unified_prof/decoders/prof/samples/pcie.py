"""PCIE: bandwidth and latency of the PCIe link, pcie.data."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Column, Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_BYTES_PER_MICROSECOND = 1_000_000  # in bytes per second
_LATENCY = "txNonpostLatency"
# In the order of the record's values.
_QUANTITIES = ("txPost", "txNonpost", "txCpl", _LATENCY, "rxPost", "rxNonpost", "rxCpl")
_STATISTICS = ("Min", "Max", "Avg")


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write PCIE: bandwidths in bytes per second, latencies in ns."""
    clock = None
    for records in sampling.pieces(device, "pcie", "pcie"):
        clock = clock or sampling.device_monotonic_clock(device, "pcie.data")
        values = records["values"].astype(np.int64)
        inverted = values[:, 1] < values[:, 0]
        if inverted.any():
            sink.anomaly(
                "pcie_maximum_below_minimum",
                int(inverted.sum()),
                f"{device.data.path}: samples in which nothing was measured",
            )
            records, values = records[~inverted], values[~inverted]
        times_ns = clock.to_ns(records["timestamp"])
        columns: dict[str, Column] = {"deviceId": device.device_id, "timestampNs": times_ns}
        for place, quantity in enumerate(_QUANTITIES):
            factor = 1 if quantity == _LATENCY else _BYTES_PER_MICROSECOND
            for offset, statistic in enumerate(_STATISTICS):
                columns[quantity + statistic] = values[:, 3 * place + offset] * factor
        sampling.write_samples(sink, "PCIE", device, columns)
