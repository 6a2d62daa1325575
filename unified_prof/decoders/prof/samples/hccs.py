"""HCCS: throughput between the chips of a board, hccs.data (text)."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_FIELDS = 3  # time, bytes sent, bytes received


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write HCCS: bytes per second between neighbouring samples, at the time of the later one.

    As in the exporter's databases they are rounded to a thousandth MB/s, and the last sample is
    missing.
    """
    file = device.data.get("hccs")
    if file is None:
        return
    clock = sampling.device_monotonic_clock(device, "hccs.data")
    rows = sampling.IntegerRows(device, sink, "hccs.data", _FIELDS, header_lines=1)
    table = rows.read(file)
    table = table[:-1]
    if len(table) < 2:
        return
    time, counts = table[:, 0], table[:, 1:]
    duration_ns = np.diff(time).astype(np.float64)
    throughput = [
        np.trunc(sampling.rounded(megabytes, 3) * sampling.BYTES_PER_MB)
        for megabytes in (
            sampling.megabytes_per_second(np.diff(column), duration_ns, 1) for column in counts.T
        )
    ]
    sampling.write_samples(
        sink,
        "HCCS",
        device,
        {
            "deviceId": device.device_id,
            "timestampNs": clock.to_ns(time[1:]),
            "txThroughput": throughput[0],
            "rxThroughput": throughput[1],
        },
    )
