"""A PROF_* directory: its host and device parts, their control files, clocks and data files."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import control
from unified_prof.decoders.prof.raw.clocks import Clocks, build_clocks
from unified_prof.decoders.prof.raw.control import Control
from unified_prof.decoders.prof.raw.dictionaries import Dictionaries, read_dictionaries
from unified_prof.decoders.prof.raw.slices import DataFolder, scan
from unified_prof.errors import RawFormatError

DEFAULT_SESSION_NS = 30 * 60 * 1_000_000_000
"""Length of a session whose end was not recorded, as the exporter assumes."""

_LATEST_US = 8 * 10**15
"""Latest possible time, in the year 2223: nanoseconds until then fit into 64 bits."""

_DEVICE = re.compile(r"device_(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Session:
    """When profiling began and ended, ns since 1970."""

    start_ns: int
    end_ns: int
    ended: bool
    """False: no end was recorded and `end_ns` is assumed."""


class _Part:
    """What the host and a device directory have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = self._control("info.json")
        self.sample = self._control("sample.json")
        self.start = self._control("start_info")
        end = control.find(path, "end_info", required=False)
        self.end = None if end is None else control.read_json(end)
        self.data: DataFolder = scan(path / "data")
        self.unfinished = [path / name for name in control.unfinished(path)]
        """Files that have no `.done` companion: still being written, or left by a crash."""
        self.unfinished += [self.data.path / name for name in self.data.unfinished]

    def _control(self, name: str) -> Control:
        path = control.find(self.path, name)
        assert path is not None
        return control.read_json(path)

    @cached_property
    def session(self) -> Session:
        """When the session began and ended by this part's own files."""
        begin_us = _needed(self.start, "collectionTimeBegin", _LATEST_US)
        end_us = None if self.end is None else self.end.integer("collectionTimeEnd")
        if end_us is None or not 0 < end_us <= _LATEST_US:
            return Session(begin_us * 1000, begin_us * 1000 + DEFAULT_SESSION_NS, False)
        return Session(begin_us * 1000, end_us * 1000, True)

    @property
    def platform(self) -> int:
        """`platform_version` of info.json: the kind of chip; -1 when it is none."""
        version = self.info.integer("platform_version")
        return -1 if version is None else version

    @property
    def layout_version(self) -> str:
        """`version` of info.json, "1.0" or "2.0": selects the layouts of some samples."""
        return self.info.text("version", "1.0")

    @cached_property
    def clocks(self) -> Clocks:
        """The clocks of this part.

        Raises:
            RawFormatError: a start log or start_info is missing or lacks a value.
        """
        path = control.find(self.path, "host_start.log")
        assert path is not None
        log = control.read_start_log(path)
        device = self._device_origin()
        return build_clocks(
            host_mhz=_host_mhz(self.info),
            host_monotonic_ns=log.value("clock_monotonic_raw"),
            host_counter=log.value("cntvct"),
            host_counter_diff=log.counter("cntvct_diff") or 0,
            begin_us=_needed(self.start, "collectionTimeBegin", _LATEST_US),
            begin_monotonic_ns=_needed(self.start, "clockMonotonicRaw", _LATEST_US * 1000),
            device_mhz=_device_mhz(self.info),
            device_counter=None if device is None else device.counter("cntvct"),
            device_monotonic_ns=None if device is None else device.counter("clock_monotonic_raw"),
        )

    def _device_origin(self) -> control.StartLog | None:
        path = control.find(self.path, "dev_start.log", required=False)
        return None if path is None else control.read_start_log(path)


class HostDirectory(_Part):
    """The `host/` part: interval and task records of the CPU side, dictionaries, host samples."""

    @cached_property
    def dictionaries(self) -> Dictionaries:
        """The texts that all parts of the recording refer to."""
        return read_dictionaries(self.data)


class DeviceDirectory(_Part):
    """One `device_<N>/` part: task logs, PMU records and samples of one device."""

    def __init__(self, path: Path, device_id: int) -> None:
        super().__init__(path)
        self.device_id = device_id

    @cached_property
    def device_info(self) -> Control:
        """The one element of info.json's DeviceInfo; empty when there is none."""
        records = self.info.records("DeviceInfo")
        return records[-1] if records else Control(self.info.path, {})


class ProfDirectory:
    """A whole recording. Parts that cannot be read are listed in `problems`, not lost silently."""

    def __init__(self, path: Path) -> None:
        """Open the recording at `path`.

        Raises:
            RawFormatError: it is not a recording, or no part of it can be used.
        """
        self.path = path
        self.problems: list[tuple[str, str]] = []
        """(anomaly name, message) of every part that is left out."""
        self.host: HostDirectory | None = None
        self.devices: list[DeviceDirectory] = []
        errors: list[RawFormatError] = []
        for part, device_id in self._parts():
            try:
                if device_id is None:
                    self.host = HostDirectory(part)
                else:
                    self.devices.append(DeviceDirectory(part, device_id))
            except RawFormatError as err:
                errors.append(err)
                self.problems.append(("unreadable_directory", str(err)))
        if self.host is None and not self.devices:
            if errors:
                raise errors[0]
            raise RawFormatError(
                f"{path} has neither host/ nor device_<N>/",
                hint="give a PROF_* directory as the profiler wrote it, or a folder of several",
                slug="incomplete-recording",
            )

    @property
    def dictionaries(self) -> Dictionaries:
        """The host's dictionaries, or empty ones."""
        return Dictionaries() if self.host is None else self.host.dictionaries

    @property
    def process_id(self) -> int:
        """`pid` of the host's info.json (a device's without host), 0 when it is none."""
        return (self.host or self.devices[0]).info.integer("pid") or 0

    def report_problems(self, sink: Sink) -> None:
        """Count what is left out, linked elsewhere or still being written."""
        for name, message in self.problems:
            sink.anomaly(name, 1, message)
        for part in [self.host, *self.devices]:
            if part is None:
                continue
            if part.data.links:
                sink.anomaly(
                    "link_not_followed",
                    len(part.data.links),
                    f"{part.data.path / part.data.links[0]} is not a regular file",
                )
            if part.data.lost:
                sink.anomaly(
                    "lost_slice", len(part.data.lost), f"{part.data.path}: {part.data.lost[0]}"
                )
            if part.unfinished:
                sink.anomaly(
                    "unfinished_file",
                    len(part.unfinished),
                    f"{part.unfinished[0]} has no .done beside it:"
                    " the recording is being written or was interrupted",
                )

    def _parts(self) -> list[tuple[Path, int | None]]:
        parts: list[tuple[Path, int | None]] = []
        for path in _folders(self.path, self.problems):
            match = _DEVICE.fullmatch(path.name)
            if path.name == "host":
                parts.append((path, None))
            elif match:
                parts.append((path, int(match[1])))
        return sorted(parts, key=lambda part: -1 if part[1] is None else part[1])


def _folders(path: Path, problems: list[tuple[str, str]]) -> list[Path]:
    try:
        children = sorted(path.iterdir())
    except OSError as err:
        raise RawFormatError(f"cannot list {path}: {err.strerror}", slug="cannot-read") from err
    folders = []
    for child in children:
        mode = child.lstat().st_mode
        if stat.S_ISDIR(mode):
            folders.append(child)
        elif stat.S_ISLNK(mode):
            problems.append(("link_not_followed", f"{child} is a symbolic link"))
    return folders


def _needed(values: Control, key: str, most: int) -> int:
    number = values.integer(key)
    if number is None or not 0 <= number <= most:
        found = values.values.get(key)
        raise RawFormatError(
            f"{values.path}: {key} is {found!r}, expected a number up to {most}",
            slug="damaged-recording",
        )
    return number


def _host_mhz(info: Control) -> Decimal | None:
    records = info.records("CPU")
    return records[-1].decimal("Frequency") if records else None


def _device_mhz(info: Control) -> Decimal | None:
    records = info.records("DeviceInfo")
    return records[-1].decimal("hwts_frequency") if records else None
