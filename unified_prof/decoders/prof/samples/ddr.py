"""DDR: read and write bandwidth of the device memory of inference chips, ddr.data."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_READ = 0
_WHOLE_CHANNEL = 0xFFFFFFFF

# Bytes of one count, by platform; chips with HBM instead of DDR are not evaluated.
_BYTES_PER_COUNT = {7: 16}
_BYTES_PER_COUNT_ELSEWHERE = 32
_WITH_HBM = (5, 9, 15, 16)


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write DDR: one row a moment; the first is measured from the start of the recording."""
    if device.platform in _WITH_HBM:
        return
    size = _BYTES_PER_COUNT.get(device.platform, _BYTES_PER_COUNT_ELSEWHERE)
    clock = sampling.start_clock(device)
    before_us = 0
    for records in sampling.whole_moments(device, "ddr", "ddr", "timestamp_us"):
        whole = records["master"] == _WHOLE_CHANNEL
        if not whole.all():
            sink.anomaly(
                "ddr_single_master",
                int((~whole).sum()),
                f"{device.data.path}: samples of single masters have no column in DDR",
            )
        chosen = records[whole]
        times, row = np.unique(chosen["timestamp_us"].astype(np.int64), return_inverse=True)
        count = np.zeros((2, len(times)))
        np.add.at(count, (np.where(chosen["rw"] == _READ, 0, 1), row), chosen["count"])
        duration_ns = np.diff(np.r_[before_us, times]).astype(np.float64) * 1e3
        before_us = int(times[-1]) if len(times) else before_us
        times_ns = clock.to_ns(times)
        sampling.write_samples(
            sink,
            "DDR",
            device,
            {
                "deviceId": device.device_id,
                "timestampNs": times_ns,
                "read": sampling.bandwidth(count[0], duration_ns, size),
                "write": sampling.bandwidth(count[1], duration_ns, size),
            },
        )
