"""HBM: counters of the high-bandwidth memory, hbm.data."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_BYTES_PER_COUNT = 32
_READ = 0


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write HBM: bandwidth of each memory and direction since its previous sample.

    The first sample of each has none and is 0, as in the exporter's databases.
    """
    absolute = device.layout_version == "2.0"
    modes = np.array([sink.strings.intern("read"), sink.strings.intern("write")])
    neighbours = sampling.Neighbours()
    for records in sampling.pieces(device, "hbm", "hbm_v2" if absolute else "hbm_v1"):
        exact = (
            records["timestamp_ns"].astype(np.float64)
            if absolute
            else sampling.rounded_start_ns(device, records["timestamp_us"])
        )
        order = np.argsort(exact, kind="stable")
        records, times = records[order], exact[order]
        is_write = (records["event_type"] != _READ).astype(np.int64)
        memory = records["hbm_id"].astype(np.int64)
        known, (before,) = neighbours.previous(memory * 2 + is_write, times)
        sampling.write_samples(
            sink,
            "HBM",
            device,
            {
                "deviceId": device.device_id,
                "timestampNs": sampling.whole_ns(times),
                "bandwidth": sampling.bandwidth(
                    records["count"], np.where(known, times - before, 0), _BYTES_PER_COUNT
                ),
                "hbmId": memory,
                "type": modes[is_write],
            },
        )
