"""QOS: bandwidth of up to ten masters of the memory system, qos.data."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof import samples
from unified_prof.decoders.prof.directory import DeviceDirectory

_EVENTS = 10
_BYTES_PER_MB = 1 << 20
_NO_DIE = -1


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write QOS: one row an event and sample, in bytes per second.

    The exporter multiplies in 32 bits, so that it shows 4096 MB/s as 0; that is not reproduced.
    """
    names = [name for name in device.sample.text("qosEvents").split(",") if name.strip()][:_EVENTS]
    clock = None
    for records in samples.pieces(device, "qos", "qos"):
        if not names:
            sink.anomaly(
                "qos_without_event_names",
                len(records),
                f"{device.sample.path} has no qosEvents, so nothing says what was measured",
            )
            continue
        clock = clock or samples.device_clock(device, "qos.data")
        name_ids = np.asarray(sink.strings.intern_all(f"QoS {name}" for name in names))
        times_ns = np.repeat(clock.to_ns(records["timestamp"]), len(names))
        values = records["bandwidth"][:, : len(names)].astype(np.int64) * _BYTES_PER_MB
        samples.write_samples(
            sink,
            "QOS",
            device,
            {
                "deviceId": device.device_id,
                "eventName": np.tile(name_ids, len(records)),
                "bandwidth": values.ravel(),
                "timestampNs": times_ns,
                "dieId": _NO_DIE,
            },
        )
