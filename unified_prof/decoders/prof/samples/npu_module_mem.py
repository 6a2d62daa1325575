"""NPU_MODULE_MEM: memory that the modules of the software stack hold; npu_module_mem.data."""

from __future__ import annotations

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write NPU_MODULE_MEM: one row a sample. The times are values of the host's counter."""
    for records in sampling.pieces(device, "npu_module_mem", "npu_module_mem"):
        times_ns = device.clocks.host.to_ns(records["host_ticks"])
        sampling.write_samples(
            sink,
            "NPU_MODULE_MEM",
            device,
            {
                "moduleId": records["module_id"],
                "timestampNs": times_ns,
                "totalReserved": records["total_size"],
                "deviceId": device.device_id,
            },
        )
