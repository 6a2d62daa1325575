"""QOS: bandwidth of up to ten masters of the memory system, qos.data of platform 5."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.slices import Records

_FILE = "qos"
_PLATFORMS = (5,)
_EVENTS = 10
_BYTES_PER_MB = 1 << 20
_NO_DIE = -1


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write QOS: one row an event and sample, in bytes per second.

    The exporter multiplies in 32 bits, so that it shows 4096 MB/s as 0; that is not reproduced.
    What other platforms leave in such a file is not evaluated, as it is not there.
    """
    if device.platform not in _PLATFORMS:
        sink.anomaly(
            "qos_not_evaluated", 1, f"{device.data.path}: qos.data of platform {device.platform}"
        )
        return
    names = [name for name in device.sample.text("qosEvents").split(",") if name.strip()][:_EVENTS]
    for records, times_ns in _records(device):
        if not names:
            sink.anomaly(
                "qos_without_event_names",
                len(records),
                f"{device.sample.path} has no qosEvents, so nothing says what was measured",
            )
            continue
        name_ids = np.asarray(sink.strings.intern_all(f"QoS {name}" for name in names))
        values = records["bandwidth"][:, : len(names)].astype(np.int64) * _BYTES_PER_MB
        sampling.write_samples(
            sink,
            "QOS",
            device,
            {
                "deviceId": device.device_id,
                "eventName": np.tile(name_ids, len(records)),
                "bandwidth": values.ravel(),
                "timestampNs": np.repeat(times_ns, len(names)),
                "dieId": _NO_DIE,
            },
        )


def _records(device: DeviceDirectory) -> Iterator[tuple[Records, NDArray[np.int64]]]:
    """Yield samples and their times."""
    clock = sampling.device_clock(device, "qos.data")
    for records in sampling.pieces(device, _FILE, "qos"):
        yield records, clock.to_ns(records["timestamp"])
