"""UB: what the ports of the unified bus moved for the DMA units, ub.data of platforms 15 and 16."""

from __future__ import annotations

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS

_FILE = "ub"


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write UB: one row a port and sample.

    The exporter keeps 32 bits of both counters; they are whole here.
    """
    if device.platform not in V6_PLATFORMS:
        sink.anomaly(
            "ub_not_evaluated", 1, f"{device.data.path}: ub.data of platform {device.platform}"
        )
        return
    clock = sampling.start_clock(device)
    for records in sampling.pieces(device, _FILE, "ub"):
        times_ns = clock.to_ns(records["time_us"])
        sampling.write_samples(
            sink,
            "UB",
            device,
            {
                "deviceId": device.device_id,
                "portId": records["port_id"],
                "timestampNs": times_ns,
                "rxUdmaBind": records["rx_bind"],
                "txUdmaBind": records["tx_bind"],
            },
        )
