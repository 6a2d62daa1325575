"""NETDEV_STATS: counters of the device's network port, netdev_stats.data (text)."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Column, Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

# In the order of a line, after its time.
_COUNTERS = (
    "macTxPfcPkt",
    "macRxPfcPkt",
    "macTxByte",
    "macRxByte",
    "macTxBadByte",
    "macRxBadByte",
    "roceTxPkt",
    "roceRxPkt",
    "roceTxErrPkt",
    "roceRxErrPkt",
    "roceTxCnpPkt",
    "roceRxCnpPkt",
    "roceNewPktRty",
    "nicTxByte",
    "nicRxByte",
)
_BANDWIDTHS = {
    "macTxByte": "macTxBandwidth",
    "macRxByte": "macRxBandwidth",
    "nicTxByte": "nicTxBandwidth",
    "nicRxByte": "nicRxBandwidth",
}


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write NETDEV_STATS: what was counted between neighbouring samples.

    A row has the time of the later sample; a counter that went backwards counts as 0. The times
    are those of the host's monotonic clock.
    """
    file = device.data.get("netdev_stats")
    if file is None:
        return
    rows = sampling.IntegerRows(device, sink, "netdev_stats.data", 1 + len(_COUNTERS))
    table = rows.read(file)
    if len(table) < 2:
        return
    time = table[:, 0]
    seconds = np.diff(time).astype(np.float64) / 1e9
    columns: dict[str, Column] = {
        "deviceId": device.device_id,
        "timestampNs": device.clocks.monotonic.to_ns(time[1:]),
    }
    for place, name in enumerate(_COUNTERS, start=1):
        counted = np.maximum(np.diff(table[:, place]), 0)
        columns[name] = counted
        if name in _BANDWIDTHS:
            columns[_BANDWIDTHS[name]] = np.divide(
                counted, seconds, out=np.zeros(len(counted)), where=seconds > 0
            )
    sampling.write_samples(sink, "NETDEV_STATS", device, columns)
