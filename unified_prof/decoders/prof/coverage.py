"""What of a recording cannot be decoded: chips and kinds of files."""

from __future__ import annotations

from unified_prof.decoders.prof.directory import ProfDirectory

TESTED_PLATFORMS = {1: "910A", 4: "310P", 5: "910B", 7: "310B", 15: "950", 16: "950 (V6.2)"}

# Files whose records have a table that nothing here fills, by `DataFolder` name.
_UNDECODED_FILES = {
    "additional.ccu": "CCU missions (CCU)",
    "compact.dpu_track": "tasks of data processing units (DPU_TASK)",
    "ub": "unified bus samples (UB)",
}


def undecoded(prof: ProfDirectory) -> tuple[str, ...]:
    """Say what of a recording has a table in the database and is not decoded, a phrase each."""
    found = []
    for device in prof.devices:
        if device.platform not in TESTED_PLATFORMS:
            found.append(
                f"device {device.device_id} has platform_version {device.platform}: decoded like"
                " platform 5, which may be wrong"
            )
        for name, what in _UNDECODED_FILES.items():
            if device.data.get(name):
                found.append(f"device {device.device_id}: {what}")
    for name, what in _UNDECODED_FILES.items():
        if prof.host is not None and prof.host.data.host_file(name):
            found.append(f"host: {what}")
    return tuple(found)
