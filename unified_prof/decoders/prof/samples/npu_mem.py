"""NPU_MEM: memory in use on the device, by the application and in all; npu_mem.data."""

from __future__ import annotations

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_LEVELS = ("app", "device")
_FILES = ("npu_mem", "npu_mem.app")


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MEM: one row a sample; sizes are in bytes."""
    layout = "npu_mem_v2" if device.layout_version == "2.0" else "npu_mem_v1"
    level_ids = sink.strings.intern_all(_LEVELS)
    for file_name in _FILES:
        for records in sampling.pieces(device, file_name, layout):
            known = records["event"] < len(_LEVELS)
            if not known.all():
                sink.anomaly(
                    "unknown_npu_mem_level",
                    int((~known).sum()),
                    f"{device.data.path}: levels other than 0 and 1",
                )
            chosen = records[known]
            times_ns = sampling.whole_ns(sampling.rounded_start_ns(device, chosen["timestamp_us"]))
            sampling.write_samples(
                sink,
                "NPU_MEM",
                device,
                {
                    "type": np.asarray(level_ids)[chosen["event"]],
                    "ddr": chosen["ddr"],
                    "hbm": chosen["hbm"],
                    "timestampNs": times_ns,
                    "deviceId": device.device_id,
                },
            )
