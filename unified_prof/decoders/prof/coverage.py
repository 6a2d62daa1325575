"""What of a recording cannot be decoded: chips and kinds of files."""

from __future__ import annotations

import numpy as np

from unified_prof.decoders.prof.directory import DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.layouts import record_type

TESTED_PLATFORMS = (1, 4, 5, 7, 15)
"""Chips whose databases were compared with the exporter's: 910A, 310P, 910B, 310B, 950."""

# Files whose records have a table that nothing here fills, by `DataFolder` name.
_UNDECODED_FILES = {
    "additional.ccu_group_info": "CCU collectives (CCU)",
    "additional.ccu_wait_signal_info": "CCU collectives (CCU)",
    "ccu0.instr": "missions of CCU 0 (CCU)",
    "ccu1.instr": "missions of CCU 1 (CCU)",
    "compact.dpu_track": "tasks of data processing units (DPU_TASK)",
    "additional.dpu_hccl_info": "collectives of data processing units (DPU_TASK)",
}
# Kinds of AI CPU records that describe collectives which the device itself launched.
_DEVICE_COLLECTIVES = (6, 10, 13)


def undecoded(prof: ProfDirectory) -> tuple[str, ...]:
    """Say what of a recording has a table in the database and is not decoded, a phrase each."""
    found = []
    for device in prof.devices:
        name = f"device {device.device_id}"
        if device.platform not in TESTED_PLATFORMS:
            found.append(
                f"{name} has platform_version {device.platform}: decoded as its nearest relative,"
                " which may be wrong"
            )
        found += [
            f"{name}: {what}"
            for file, what in _UNDECODED_FILES.items()
            if device.data.get(file) is not None
        ]
        if _has_device_collectives(device):
            found.append(f"{name}: collectives launched by AI CPU kernels (COMMUNICATION_*)")
    if prof.host is not None:
        found += [
            f"host: {what}"
            for file, what in _UNDECODED_FILES.items()
            if prof.host.data.host_file(file) is not None
        ]
    return tuple(found)


def _has_device_collectives(device: DeviceDirectory) -> bool:
    file = device.data.get("aicpu")
    return file is not None and any(
        np.isin(piece["type"], _DEVICE_COLLECTIVES).any()
        for piece in file.pieces(record_type("aicpu"))
    )
