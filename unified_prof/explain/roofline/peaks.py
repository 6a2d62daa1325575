"""What devices can do at most: the package's table, and what a user adds to it.

The table is `devices.toml`. A user's `[tool.uprof.devices."NAME"]` in pyproject.toml has the same
keys; it goes before the package's of that name, whose figures stay where it says nothing.

What the devices of a recording can do, by what was recorded of them.

Whether a recording can be put under the limits of its devices: asked of all, so it is light.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from unified_prof.errors import UsageError
from unified_prof.recording import operators
from unified_prof.recording.model import Breakdown
from unified_prof.recording.recording import BreakdownSpec, Recording

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RATES = ("bf16", "fp16", "fp8", "tf32", "fp32", "fp32_matrix", "fp64", "fp64_matrix", "int8")
"""Figures in TFLOP/s; those of fp32 and fp64 without `_matrix` are of vector units."""
_NUMBERS = (*RATES, "memory", "link", "units", "gib", "cores", "vector_cores", "mhz")
_MIG = re.compile(r"\bMIG\b", re.IGNORECASE)

_CUBE_FLOPS = 16 * 16 * 16 * 2
_VECTOR_FLOPS = 256
_WAVE = 64
_ANOTHER_CLOCK = 1.1
"""A clock that many times the table's is of another device of that name."""


@dataclass(frozen=True, slots=True)
class Peak:
    """One limit of a device."""

    name: str
    """Which: `bf16`, `memory`, ..."""
    rate: float
    """FLOP/s or bytes/s."""
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do at most: TFLOP/s by name, GB/s of its memory and to its peers."""

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
    is_recorded: bool = False
    """True if cores and clock are those of the recording, not of the table."""

    def matrix(self, dtype: str) -> Peak | None:
        """Return what matrix units do in a type, None where that is not known."""
        return self._rate(f"{dtype}_matrix") or self._rate(dtype)

    def vector(self, dtype: str) -> Peak | None:
        """Return what other arithmetic does in a type: halves calculate in fp32."""
        if self.vector_cores is not None and self.mhz is not None:
            size = 2 if dtype in ("bf16", "fp16") else 1
            rate = self.vector_cores * self.mhz * 1e6 * _VECTOR_FLOPS / 2 * size
            return Peak("vector", rate, uncertain=size == 1)
        return self._rate("fp64" if dtype in ("fp64", "complex128") else "fp32")

    def of_memory(self) -> Peak | None:
        """Return what its memory gives and takes."""
        if self.memory is None:
            return None
        return Peak("memory", self.memory * 1e9, "memory" in self.uncertain)

    def of_link(self) -> Peak | None:
        """Return what it sends to its peers, in one direction."""
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
    """Return what a device can do at most, None where nobody says.

    Args:
        name: as the recording has it; the longest name of the table that it holds wins.
        units: multiprocessors that were recorded: a slice of a device (MIG) has fewer.
        memory_bytes: its memory that was recorded.
        capability: computeMajor and computeMinor; tells AMD's devices, which may have no name.
        warp: threads of a warp: AMD's data centre devices have 64.
        mhz: the highest clock of its cores that was recorded (Ascend): goes before the table's.
    """
    found = _named(name or "")
    if found is None and capability is not None and warp == _WAVE:
        found = _of_generation(capability, memory_bytes or 0, units)
    if found is None:
        return None
    if mhz is not None and found.cores is not None and found.mhz is not None:
        if mhz > _ANOTHER_CLOCK * found.mhz:
            return None
        found = replace(found, mhz=mhz, source=f"{found.source}, {mhz:,.0f} MHz recorded")
    if _MIG.search(name or ""):
        found = _slice(found, units, memory_bytes)
    return _with_cube(found)


def all_devices() -> tuple[Device, ...]:
    """Return the package's table and the user's, as they stand there."""
    table = (device for key in _sections() if (device := _of_table(key)) is not None)
    return (*table, *_added.values())


def add(table: Any, where: str) -> None:
    """Take the user's devices in place of those taken before.

    Args:
        table: name of the device -> its figures, by the keys of `devices.toml`.
        where: what to call the table in errors, without its closing bracket.

    Raises:
        UsageError: it is no such table.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}] is not a table of devices", slug="wrong-setting")
    taken = {}
    for name, entry in table.items():
        place = f'{where}."{name}"]'
        if not isinstance(entry, Mapping):
            raise UsageError(
                f"{place}: a device's figures are a table",
                hint='write them below a line such as [tool.uprof.devices."My GPU"]',
                slug="wrong-setting",
            )
        known = _of_table(name.casefold())
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
            if not isinstance(value, str):
                raise UsageError(f"{place} source: {value!r} is no text", slug="wrong-setting")
        elif key == "uncertain":
            if not isinstance(value, list) or not all(one in _NUMBERS for one in value):
                raise UsageError(
                    f"{place} uncertain: {value!r} is no list of figures", slug="wrong-setting"
                )
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise UsageError(f"{place} {key}: {value!r} is no number above 0", slug="wrong-setting")
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
    """Return the names of the table, and below which text the figures of each stand.

    A report asks for a device or two; to read the figures of all takes as long as the rest of it.
    """
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    found = {}
    for section in text.split("[[device]]\n")[1:]:
        line = next(line for line in section.splitlines() if line.startswith("names = "))
        for name in re.findall(r'"([^"]+)"', line):
            found[name.casefold()] = name, section
    return found


@cache
def _of_table(key: str) -> Device | None:
    """Return a device by its name in the table, None where it is not there."""
    if key not in _sections():
        return None
    name, section = _sections()[key]
    entry = tomllib.loads(section)
    del entry["names"]
    return _device(name, entry)


def _named(name: str) -> Device | None:
    words = name.casefold()
    held = [key for key in (*_sections(), *_added) if key in words and _are_words(key, name)]
    if not held:
        return None
    # Of equally long names the later one, the user's.
    _, longest = max(enumerate(held), key=lambda one: (len(one[1]), one[0]))
    return _added.get(longest) or _of_table(longest)


def _are_words(key: str, name: str) -> bool:
    as_words = rf"(?<![A-Za-z0-9]){re.escape(key)}(?![A-Za-z0-9])"
    return re.search(as_words, name, re.IGNORECASE) is not None


def _of_generation(
    capability: tuple[int, int], memory_bytes: int, units: int | None
) -> Device | None:
    """Return an AMD device by its generation (9.0 is gfx90a), memory and compute units."""
    gib = memory_bytes / 2**30
    # An MI210 has the figures of one of the two devices of an MI250.
    names = {
        (9, 0): ("MI250", "MI250X"),
        (9, 4): ("MI300A", "MI300X", "MI325X"),
        (9, 5): ("MI350X", "MI355X"),
    }.get(capability, ())
    fitting = [
        device
        for device in map(_named, names)
        if device is not None
        and device.gib is not None
        and 0.85 < gib / device.gib <= 1.01
        and units in (None, device.units)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _slice(device: Device, units: int | None, memory_bytes: int | None) -> Device:
    """Return a part of a device, by what it has of the whole."""
    share = units / device.units if units and device.units else None
    of_memory = memory_bytes / 2**30 / device.gib if memory_bytes and device.gib else None
    if share is None or share > 1:
        return replace(device, rates={}, memory=None, link=None)
    # Memory comes in eighths; what the driver keeps of them is not in what it reports.
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
        if key.startswith(name.casefold()) and (device := _of_table(key)) is not None
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
        if npu := _recorded_npu(names.get(here, ""), about):
            result[label] = _with_cube(npu)
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


QUICK_TASKS = 500_000
"""Tasks up to which it takes a moment only: of more, a report has it where it is asked for."""


def offered(recording: Recording) -> bool:
    """Tell whether the shapes of what a device ran were recorded, here or where it was captured."""
    told_by = (recording, recording.captured_in)
    return recording.clock == "device" and any(
        one is not None and one.has_shapes for one in told_by
    )


def quick(recording: Recording) -> bool:
    """Tell whether it takes so little that every report may have it."""
    return len(recording.tasks) <= QUICK_TASKS


def _rows(recording: Recording) -> Breakdown:
    from unified_prof.explain.roofline import breakdown

    return breakdown.rows(recording)


BREAKDOWNS = {"roofline": BreakdownSpec(offered, _rows, quick)}
