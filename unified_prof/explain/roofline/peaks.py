"""Peaks of devices: the table `devices.toml`, user-defined devices, and devices of a recording.

A user's `[tool.uprof.devices."NAME"]` in pyproject.toml has the same keys as the table and
overrides its device of that name; missing figures keep the table's values.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.errors import UsageError
from unified_prof.recording import operators
from unified_prof.recording.recording import Recording

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Figures in TFLOP/s; fp32 and fp64 without `_matrix` are those of vector units.
RATES = ("bf16", "fp16", "fp8", "tf32", "fp32", "fp32_matrix", "fp64", "fp64_matrix", "int8")
_NUMBERS = (*RATES, "memory", "link", "units", "gib", "cores", "vector_cores", "mhz")
# Words after a name that make it another model: an RTX 4090 D is not an RTX 4090.
_OTHER_MODEL = r"(?![ -]+(?:Ti|D|SUPER|Laptop|Mobile|Max-Q|Ada|Blackwell|3e|40GB)\b)"
_MIG = re.compile(r"\bMIG\b", re.IGNORECASE)

_CUBE_FLOPS = 16 * 16 * 16 * 2
_VECTOR_FLOPS = 256
_WAVE = 64
AMBIGUOUS_CHIP = "Ascend910B"  # Name of several chips, which differ in cores and clock.
_OTHER_CLOCK = 1.1  # A clock this many times the table's belongs to another device with that name.


class Peak(Struct, frozen=True):
    """One limit of a device: `bf16`, `memory`, ... in FLOP/s or bytes/s."""

    name: str
    rate: float
    uncertain: bool = False


class Device(Struct, frozen=True):
    """Peaks of a device: TFLOP/s by name, GB/s of its memory and to its peers."""

    name: str
    rates: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    link: float | None = None
    source: str = ""
    uncertain: frozenset[str] = frozenset()
    units: float | None = None
    gib: float | None = None
    cores: float | None = None
    vector_cores: float | None = None
    mhz: float | None = None
    # True if cores and clock are those of the recording, not of the table.
    is_recorded: bool = False

    def matrix(self, dtype: str) -> Peak | None:
        """Return the peak of matrix units for a dtype, or None."""
        return self._rate(f"{dtype}_matrix") or self._rate(dtype)

    def vector(self, dtype: str) -> Peak | None:
        """Return the peak of vector units for a dtype, or None; 16-bit types calculate in fp32."""
        if self.vector_cores is not None and self.mhz is not None:
            size = 2 if dtype in ("bf16", "fp16") else 1
            rate = self.vector_cores * self.mhz * 1e6 * _VECTOR_FLOPS / 2 * size
            return Peak("vector", rate, uncertain=size == 1)
        return self._rate("fp64" if dtype in ("fp64", "complex128") else "fp32")

    def hf32(self) -> Peak | None:
        """Return the peak of an Ascend's cube in HF32, or None; half of bf16 is an assumption."""
        low = self.matrix("bf16") if self.vector_cores is not None else None
        return (
            None
            if low is None
            else Peak("HF32 (assumed: half of bf16)", low.rate / 2, low.uncertain)
        )

    def memory_peak(self) -> Peak | None:
        """Return the memory bandwidth, or None."""
        if self.memory is None:
            return None
        return Peak("memory", self.memory * 1e9, "memory" in self.uncertain)

    def link_peak(self) -> Peak | None:
        """Return the bandwidth to peers in one direction, or None."""
        if self.link is None:
            return None
        return Peak("link", self.link / 2 * 1e9, "link" in self.uncertain)

    def _rate(self, name: str) -> Peak | None:
        rate = self.rates.get(name)
        return None if rate is None else Peak(name, rate * 1e12, name in self.uncertain)


def find(
    name: str | None,
    *,
    units: int | None = None,
    memory_bytes: int | None = None,
    capability: tuple[int, int] | None = None,
    warp: int | None = None,
    mhz: float | None = None,
) -> Device | None:
    """Return the peaks of a device, or None if it is unknown.

    Args:
        name: Recorded name; the longest name of the table that it contains decides.
        units: Recorded multiprocessors: a slice of a device (MIG) has fewer.
        memory_bytes: Recorded memory size.
        capability: computeMajor and computeMinor, for AMD devices without a name.
        warp: Threads of a warp: AMD's data center devices have 64.
        mhz: Highest recorded clock of the cores (Ascend), instead of the table's.
    """
    result = _find_named(name or "")
    if result is None and capability is not None and warp == _WAVE:
        result = _amd_device(capability, memory_bytes or 0, units)
    if result is None:
        return None
    if mhz is not None and result.cores is not None and result.mhz is not None:
        if mhz > _OTHER_CLOCK * result.mhz:
            return None
        result = replace(result, mhz=mhz, source=f"{result.source}, {mhz:,.0f} MHz recorded")
    if _MIG.search(name or ""):
        result = _slice(result, units, memory_bytes)
    return _with_cube(result)


def all_devices() -> tuple[Device, ...]:
    """Return all devices of the table and of the user's configuration."""
    table = (device for key in _sections() if (device := _device_in_table(key)) is not None)
    return (*table, *_added.values())


def add(table: Any, where: str) -> None:
    """Set the user-defined devices.

    Args:
        table: Figures of each device by name, with the keys of `devices.toml`.
        where: Name of the table in errors, without its closing bracket.

    Raises:
        UsageError: The table is invalid.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}] is not a table of devices", slug="wrong-setting")
    taken = {}
    for name, entry in table.items():
        place = f'{where}."{name}"]'
        if not isinstance(entry, Mapping):
            raise UsageError(
                f"{place}: expected a table with the figures of a device",
                hint='write them below a line such as [tool.uprof.devices."My GPU"]',
                slug="wrong-setting",
            )
        known = _device_in_table(name.casefold())
        given = _checked(entry, place)
        taken[name.casefold()] = _device(name, given, known)
    _added.clear()
    _added.update(taken)


_added: dict[str, Device] = {}


def _checked(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    allowed = {*_NUMBERS, "source", "uncertain"}
    for key, value in entry.items():
        if key not in allowed:
            raise UsageError(
                f"{place} has no figure {key!r}",
                hint=f"known: {', '.join(sorted(allowed))}",
                slug="wrong-setting",
            )
        if key == "source":
            good, expected = isinstance(value, str), "a string"
        elif key == "uncertain":
            good = isinstance(value, list) and all(one in _NUMBERS for one in value)
            expected = "a list of figures"
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            good, expected = is_number and 0 < value < math.inf, "a number above 0"
        if not good:
            raise UsageError(f"{place} {key}: {value!r} is not {expected}", slug="wrong-setting")
    return dict(entry)


def _device(name: str, entry: Mapping[str, Any], below: Device | None = None) -> Device:
    rates = {key: float(entry[key]) for key in RATES if key in entry}
    numbers: dict[str, Any] = {
        key: float(entry[key]) for key in _NUMBERS if key in entry and key not in RATES
    }
    uncertain = frozenset(entry.get("uncertain", ()))
    if below is None:
        return Device(
            name, rates, source=entry.get("source", "the user"), uncertain=uncertain, **numbers
        )
    return replace(
        below,
        rates={**below.rates, **rates},
        source=entry.get("source", f"{below.source}, the user"),
        uncertain=(below.uncertain - entry.keys()) | uncertain,
        **numbers,
    )


@cache
def _sections() -> dict[str, tuple[str, str]]:
    """Return name and text of each device in the table; parsing all of it is slow."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    result = {}
    for section in text.split("[[device]]\n")[1:]:
        line = next(line for line in section.splitlines() if line.startswith("names = "))
        for name in re.findall(r'"([^"]+)"', line):
            result[name.casefold()] = name, section
    return result


@cache
def _device_in_table(key: str) -> Device | None:
    """Return a device by its name in the table, or None."""
    if key not in _sections():
        return None
    name, section = _sections()[key]
    entry = tomllib.loads(section)
    del entry["names"]
    return _device(name, entry)


def _find_named(name: str) -> Device | None:
    words = name.casefold()
    held = [
        key
        for key in (*_sections(), *_added)
        if key in words
        and re.search(rf"(?<![a-z0-9]){re.escape(key)}(?![a-z0-9]){_OTHER_MODEL}", name, re.I)
    ]
    if not held:
        return None
    # The later of equally long names wins: the user's.
    _, longest = max(enumerate(held), key=lambda one: (len(one[1]), one[0]))
    return _added.get(longest) or _device_in_table(longest)


def _amd_device(capability: tuple[int, int], memory_bytes: int, units: int | None) -> Device | None:
    """Return the AMD device with a generation (9.0 is gfx90a), memory size and compute units."""
    gib = memory_bytes / 2**30
    # An MI210 has the figures of one of the two devices of an MI250.
    names = {
        (9, 0): ("MI250", "MI250X"),
        (9, 4): ("MI300A", "MI300X", "MI325X"),
        (9, 5): ("MI350X", "MI355X"),
    }.get(capability, ())
    fitting = [
        device
        for device in map(_find_named, names)
        if device is not None
        and device.gib is not None
        and 0.85 < gib / device.gib <= 1.01
        and units in (None, device.units)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _slice(device: Device, units: int | None, memory_bytes: int | None) -> Device:
    """Return the peaks of a device slice (MIG) by its share of units and memory."""
    share = units / device.units if units and device.units else None
    of_memory = memory_bytes / 2**30 / device.gib if memory_bytes and device.gib else None
    if share is None or share > 1:
        return replace(device, rates={}, memory=None, link=None)
    # Memory comes in eighths; the reported size lacks what the driver reserves.
    eighths = None if of_memory is None else min(8, max(1, round(of_memory * 8)))
    return replace(
        device,
        rates={name: rate * share for name, rate in device.rates.items()},
        memory=None if eighths is None or device.memory is None else device.memory * eighths / 8,
        link=None,
        source=f"{device.source}, {units:,} of {device.units:,.0f} units",
    )


def _with_cube(device: Device) -> Device:
    """Return an Ascend with the peaks that follow from its cores and clock."""
    if device.cores is None or device.mhz is None:
        return device
    cube = device.cores * device.mhz * 1e6 * _CUBE_FLOPS / 1e12
    return replace(device, rates={"bf16": cube, "fp16": cube, "int8": 2 * cube, **device.rates})


def _recorded_npu(name: str, properties: Mapping[str, str]) -> Device | None:
    """Return an Ascend device with the recorded cores and clock; None if they were not recorded.

    Memory and link are those of the device in the table with that name, cores and clock.
    """
    cores, vector_cores, mhz = (
        _integer(properties.get(key)) for key in ("ai_core_num", "aiv_num", "aic_frequency")
    )
    if not cores or not mhz:
        return None
    same = (
        device
        for key in _sections()
        if key.startswith(name.casefold()) and (device := _device_in_table(key)) is not None
        if (device.cores, device.vector_cores or 0, device.mhz) == (cores, vector_cores or 0, mhz)
    )
    return replace(
        next(same, Device(name)),
        name=name,
        cores=cores,
        vector_cores=vector_cores or None,
        mhz=mhz,
        source=f"info.json of the recording: {cores} cores, {mhz:,} MHz",
        is_recorded=True,
    )


def _inferred_npu(recording: Recording, mhz: float | None) -> Device | None:
    """Return the chip of the 910B series with a clock and with the cores that operators use.

    The exporter calls all of these chips, and an older one of 900 MHz, Ascend910B. Operators on
    cube cores have at most one block per core; those on vector cores may have more.
    """
    cube, vector = operators.grids_of_cores(recording.source)
    series = [_device_in_table(key) for key in _sections() if key.startswith("ascend910b")]
    known = [one for one in series if one is not None and one.vector_cores is not None]
    fitting = [one for one in known if one.mhz == mhz and one.cores == max(cube, default=0)]
    for one in fitting:
        if one.vector_cores in vector:
            source = f"{one.source}, inferred from clock and blocks"
            return replace(one, source=source, is_recorded=True)
    if not vector or not (fitting := fitting or [one for one in known if mhz in (None, one.mhz)]):
        return None
    # Only this series has vector cores of their own.
    assumed = next((one for one in fitting if one.cores == max(cube, default=0)), fitting[0])
    name = f"{AMBIGUOUS_CHIP}, assumed {assumed.name}"
    uncertain = frozenset((*RATES, "memory", "link"))
    return replace(assumed, name=name, source=f"{assumed.source}, assumed", uncertain=uncertain)


def known_devices(recording: Recording) -> dict[str, Device | None]:
    """Return the peaks of each device of a recording, None if unknown."""
    source = recording.source
    names = {
        number: str(name)
        for number, name in source.rows("SELECT id, name FROM NPU_INFO")
        if isinstance(number, int) and name not in (None, "", "UNKNOWN")
    }
    properties = operators.gpu_properties(source)
    clocks = operators.highest_clock_mhz(source)
    # ROCm renumbers the visible devices of a process: if all are equal, any of them fits.
    first = next(iter(properties.values()), {})
    common = first if all(one == first for one in properties.values()) else {}
    result: dict[str, Device | None] = {}
    for label, number in recording.device_numbers.items():
        here = _number(recording, number)
        about = properties.get(here, common)
        if npu := _recorded_npu(names.get(here, ""), about):
            result[label] = _with_cube(npu)
            continue
        if names.get(here) == AMBIGUOUS_CHIP:
            inferred = _inferred_npu(recording, clocks.get(here))
            if inferred is not None:
                result[label] = _with_cube(inferred)
                continue
        result[label] = find(
            about.get("name") or names.get(here),
            units=_integer(about.get("numSms")),
            memory_bytes=_integer(about.get("totalGlobalMem")),
            capability=_capability(about),
            warp=_integer(about.get("warpSize")),
            mhz=clocks.get(here),
        )
    return result


def _number(recording: Recording, number: int | None) -> int:
    """Return the number of a device, or of the only device."""
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


QUICK_TASKS = 500_000  # Maximum number of tasks for which every report includes the roofline.


def is_available(recording: Recording) -> bool:
    """Return True if shapes were recorded, here or in the recording of the graph capture."""
    told_by = (recording, recording.captured_in)
    return recording.clock == "device" and any(
        one is not None and one.has_shapes for one in told_by
    )


def is_quick(recording: Recording) -> bool:
    """Return True if the recording is small enough for every report to include the roofline."""
    return len(recording.tasks) <= QUICK_TASKS
