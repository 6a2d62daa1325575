"""What the devices of a recording can do, by what was recorded of them."""

from __future__ import annotations

from unified_prof.analysis.explain.roofline import peaks
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.read import operators
from unified_prof.analysis.recording import Recording


def known_devices(recording: Recording) -> dict[str, Device | None]:
    """Return what each device of a recording can do."""
    source = recording.source
    names = {
        int(number): str(name)
        for number, name in source.rows("SELECT id, name FROM NPU_INFO")
        if number is not None and name not in (None, "", "UNKNOWN")
    }
    properties = operators.gpu_properties(source)
    clocks = operators.highest_clock_mhz(source)
    # ROCm numbers the devices that a process sees anew: where all are alike, any was meant.
    first = next(iter(properties.values()), {})
    common = first if all(one == first for one in properties.values()) else {}
    result: dict[str, Device | None] = {}
    for label, number in recording.device_numbers.items():
        here = _number(recording, number)
        about = properties.get(here, common)
        result[label] = peaks.find(
            about.get("name") or names.get(here),
            units=_integer(about.get("numSms")),
            memory_bytes=_integer(about.get("totalGlobalMem")),
            capability=_capability(about),
            warp=_integer(about.get("warpSize")),
            mhz=clocks.get(here),
        )
    return result


def _number(recording: Recording, number: int | None) -> int:
    """Return the number of a device, of the only one too."""
    if number is not None:
        return number
    device = recording.tasks.device
    if len(device):
        return int(device[0])
    return int(recording.comms.device[0]) if len(recording.comms) else -1


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _capability(about: dict[str, str]) -> tuple[int, int] | None:
    major, minor = _integer(about.get("computeMajor")), _integer(about.get("computeMinor"))
    return None if major is None or minor is None else (major, minor)
