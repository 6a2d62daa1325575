"""What of a recording cannot be decoded: chips and kinds of files."""

from __future__ import annotations

import numpy as np

from unified_prof.decoders.prof.directory import DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.layouts import record_type

TESTED_PLATFORMS = (1, 4, 5, 7, 15)
"""Chips whose databases were compared with the exporter's: 910A, 310P, 910B, 310B, 950."""

# An AI CPU record about a collective in a layout that no recording was seen with.
_UNKNOWN_COLLECTIVE = 6


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
        if _has_device_collectives(device):
            found.append(
                f"{name}: collectives of AI CPU kernels, records of type 6 (COMMUNICATION_*)"
            )
    return tuple(found)


def _has_device_collectives(device: DeviceDirectory) -> bool:
    file = device.data.get("aicpu")
    return file is not None and any(
        np.any(piece["type"] == _UNKNOWN_COLLECTIVE) for piece in file.pieces(record_type("aicpu"))
    )
