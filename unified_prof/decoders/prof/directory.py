"""Opens a PROF_* directory: host and device parts, control files, clocks, dictionaries, data files.

Values of control files are checked when a decoder reads them, so that a missing value affects only
the decoders that need it.

Dictionaries: the lines of hash_dic have the format `<64-bit decimal>:<text>`, those of
type_info_dic `<level>_<type>:<name>`. If a key occurs several times, the last line is used. Hashes
without a text are shown as numbers.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.base.columns import Sink, Strings
from unified_prof.decoders.prof.clocks import Clocks, build_clocks
from unified_prof.decoders.prof.layouts import ONE_CORE_KIND_PLATFORMS, V6_PLATFORMS
from unified_prof.decoders.prof.slices import DataFolder, scan
from unified_prof.errors import RawFormatError, system_errors

# Names that the dictionary may lack.
_KNOWN_TYPES = {27: "DYNAMIC_ENABLE", 28: "DYNAMIC_DISABLE"}
_UINT64_LIMIT = 1 << 64


class Dictionaries(Struct):
    """Strings by hash id, and names of record types."""

    hashes: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[tuple[int, int], str] = field(default_factory=dict)
    malformed: int = 0  # Number of malformed lines.
    missing: set[int] = field(default_factory=set)  # Hash ids that were looked up but not found.

    def text(self, hash_id: int) -> str:
        """Return the string of a hash id; if unknown, the id as a decimal number."""
        if hash_id and hash_id not in self.hashes:
            self.missing.add(hash_id)
        return self.hashes.get(hash_id, str(hash_id))

    def knows(self, hash_id: int) -> bool:
        """Return True if the string of a hash id is known."""
        return hash_id in self.hashes

    def type_name(self, level: int, type_id: int) -> str:
        """Return the name of a record type; if unknown, its decimal number."""
        name = self.types.get((level, type_id))
        return _KNOWN_TYPES.get(type_id, str(type_id)) if name is None else name

    def string_ids(self, strings: Strings, hash_ids: NDArray[Any]) -> NDArray[np.int64]:
        """Convert a column of hash ids to ids of the string pool."""
        distinct, inverse = np.unique(np.asarray(hash_ids, np.uint64), return_inverse=True)
        ids = strings.intern_all(self.text(int(value)) for value in distinct.tolist())
        return np.asarray(ids, np.int64)[inverse]

    def report_gaps(self, sink: Sink) -> None:
        """Count malformed lines and missing hashes as anomalies; called after decoding."""
        sink.anomaly("malformed_dictionary_line", self.malformed, "not number:text")
        if self.missing:
            detail = f"shown as a number, such as {min(self.missing)}"
            sink.anomaly("hash_without_text", len(self.missing), detail)


def read_dictionaries(data: DataFolder) -> Dictionaries:
    """Read the dictionaries of the host; a missing file results in an empty dictionary."""
    result = Dictionaries()
    hashes: dict[int, str] = {}
    for key, text in _dictionary_lines(data, "additional.hash_dic", result):
        number = _unsigned(key)
        if number is None:
            result.malformed += 1
        else:
            hashes[number] = text
    types: dict[tuple[int, int], str] = {}
    for key, text in _dictionary_lines(data, "additional.type_info_dic", result):
        level, separator, type_id = key.partition("_")
        pair = (_unsigned(level), _unsigned(type_id))
        if not separator or pair[0] is None or pair[1] is None:
            result.malformed += 1
        else:
            types[pair[0], pair[1]] = text
    result.hashes, result.types = hashes, types
    return result


def _dictionary_lines(
    data: DataFolder, kind: str, result: Dictionaries
) -> Iterator[tuple[str, str]]:
    for line in data.host_file(kind).lines():
        key, separator, text = line.partition(":")
        if separator:
            yield key, text
        elif line:
            result.malformed += 1


def _unsigned(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    number = int(text)
    return number if number < _UINT64_LIMIT else None


# Maximum size of a control file.
_MAX_BYTES = 16 << 20
_MAX_COUNTER = 1 << 62
_INTEGER = re.compile(r"[+-]?\d{1,19}")


class Control(Struct, frozen=True):
    """Values of one JSON control file."""

    path: Path
    values: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """Return the value of `key` as a string; `default` if it is missing."""
        value = self.values.get(key)
        if value is None or isinstance(value, dict | list):
            return default
        return str(value)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return the value of `key` (number or string) as an integer."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return default
        if isinstance(value, int):
            return value if abs(value) < 1 << 63 else default
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            return int(value)
        return default

    def decimal(self, key: str) -> Decimal | None:
        """Return the value of `key` as a positive decimal number, else None."""
        return positive_decimal(self.text(key))

    def records(self, key: str) -> list[Control]:
        """Return the objects of the list `key`, or an empty list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            return []
        return [Control(self.path, item) for item in value if isinstance(item, dict)]


def positive_decimal(text: str) -> Decimal | None:
    """Return `text` as a positive decimal number of at most 18 digits, else None."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    if not value.is_finite() or value <= 0:
        return None
    _sign, digits, exponent = value.as_tuple()
    plain = isinstance(exponent, int) and len(digits) <= 18 and -12 <= exponent <= 12
    return value if plain else None


CONTROL_FILES = (
    "info.json",
    "sample.json",
    "start_info",
    "end_info",
    "host_start.log",
    "dev_start.log",
)


def find_control(folder: Path, name: str) -> Path | None:
    """Return the control file `name` or `name.<N>` in a directory, None if it is missing.

    Raises RawFormatError if there are several.
    """
    pattern = re.compile(re.escape(name) + r"(\.\d+)?")
    found = [path for path in _regular_files(folder) if pattern.fullmatch(path.name)]
    if len(found) > 1:
        listed = ", ".join(path.name for path in found)
        raise RawFormatError(
            f"{folder} has {len(found)} files {name}, expected one: {listed}",
            hint="keep the one that belongs to this recording",
            slug="doubled-files",
        )
    return found[0] if found else None


def required_control(folder: Path, name: str) -> Path:
    """Like `find_control`; raise RawFormatError if the file is missing."""
    path = find_control(folder, name)
    if path is None:
        raise RawFormatError(
            f"{folder} has no {name}",
            hint="the recording is incomplete: copy the whole PROF_* directory again",
            slug="incomplete-recording",
        )
    return path


def read_json(path: Path) -> Control:
    """Read one JSON object."""
    raw = _read(path)
    try:
        values = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            values = msgspec.json.decode(raw.decode("utf-8", "backslashreplace"))
        except (msgspec.DecodeError, RecursionError) as err:
            raise RawFormatError(f"{path} is not JSON: {err}", slug="damaged-recording") from err
    if not isinstance(values, dict):
        raise RawFormatError(
            f"{path} contains {type(values).__name__}, expected a JSON object",
            slug="damaged-recording",
        )
    return Control(path, values)


class StartLog(Struct, frozen=True):
    """Counters of a start log by name, such as `clock_monotonic_raw` and `cntvct`."""

    path: Path
    values: Mapping[str, int]

    def value(self, key: str) -> int:
        """Return a required counter.

        Raises RawFormatError if the counter is missing or impossible.
        """
        number = self.counter(key)
        if number is None:
            message = f"{self.path} has no line {key}:<counter>"
            raise RawFormatError(message, slug="damaged-recording")
        return number

    def counter(self, key: str) -> int | None:
        """Return a counter, None if it is missing or impossible."""
        number = self.values.get(key, -1)
        return number if 0 <= number <= _MAX_COUNTER else None


def read_start_log(path: Path) -> StartLog:
    """Read `name:number` lines of a host_start.log or dev_start.log."""
    values: dict[str, int] = {}
    for line in _read(path).decode("utf-8", "replace").splitlines():
        key, separator, number = line.partition(":")
        if separator and _INTEGER.fullmatch(number.strip()):
            values[key.strip()] = int(number)
    return StartLog(path, values)


def _regular_files(folder: Path) -> list[Path]:
    """Return the regular files of a directory, sorted by name; links are not followed."""
    with system_errors(RawFormatError, f"cannot list {folder}", slug="cannot-read"):
        return sorted(path for path in folder.iterdir() if stat.S_ISREG(path.lstat().st_mode))


def _read(path: Path) -> bytes:
    with system_errors(RawFormatError, f"cannot read {path}", slug="cannot-read"):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RawFormatError(f"{path} is not a regular file", slug="not-a-regular-file")
        if status.st_size > _MAX_BYTES:
            raise RawFormatError(
                f"{path} is larger than {_MAX_BYTES >> 20} MiB", slug="damaged-recording"
            )
        return path.read_bytes()


# Length that the exporter assumes for a session without a recorded end.
DEFAULT_SESSION_NS = 30 * 60 * 1_000_000_000

# Latest possible time (year 2223): its nanoseconds fit into 64 bits.
_LATEST_US = 8 * 10**15
_DEVICE = re.compile(r"device_(\d{1,4})")
_UNFINISHED = "{first} has no .done file: the recording is being written or was interrupted"


class Session(Struct, frozen=True):
    """Start and end of profiling, as Unix times in ns."""

    start_ns: int
    end_ns: int
    ended: bool  # False if the end was not recorded and `end_ns` is an assumption.


class PartDirectory:
    """Common base class of host and device directories."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = self._control("info.json")
        self.sample = self._control("sample.json")
        self.start = self._control("start_info")
        end = find_control(path, "end_info")
        self.end = None if end is None else read_json(end)
        self.data: DataFolder = scan(path / "data")
        names = {file.name for file in _regular_files(path)}
        # Files without a `.done` file, which are still being written or were left by a crash.
        self.unfinished = [
            path / name
            for name in sorted(names)
            if name.startswith(CONTROL_FILES)
            and not name.endswith(".done")
            and f"{name}.done" not in names
        ]
        self.unfinished += [self.data.path / name for name in self.data.unfinished]

    def _control(self, name: str) -> Control:
        return read_json(required_control(self.path, name))

    @cached_property
    def session(self) -> Session:
        """Session according to the files of this part."""
        begin_us = _required(self.start, "collectionTimeBegin", _LATEST_US)
        end_us = None if self.end is None else self.end.integer("collectionTimeEnd")
        if end_us is None or not 0 < end_us <= _LATEST_US:
            return Session(begin_us * 1000, begin_us * 1000 + DEFAULT_SESSION_NS, False)
        return Session(begin_us * 1000, end_us * 1000, True)

    @property
    def platform(self) -> int:
        """`platform_version` in info.json (the kind of chip); -1 if it is not a number."""
        version = self.info.integer("platform_version")
        return -1 if version is None else version

    @property
    def has_wide_task_ids(self) -> bool:
        """True on platforms with 32-bit task ids, unique on a device and logged without stream."""
        return self.platform in V6_PLATFORMS

    @property
    def has_one_core_kind(self) -> bool:
        """True on platforms whose cube and vector units share their cores."""
        return self.platform in ONE_CORE_KIND_PLATFORMS

    @property
    def has_hwts_log(self) -> bool:
        """True on platforms whose task scheduler writes the files `hwts` and `aicore`."""
        return self.platform in (1, 4)

    @property
    def runs_collectives_on_cpus(self) -> bool:
        """True on platforms for which the exporter reads the collectives of AI CPUs."""
        return self.platform in (4, 5, *V6_PLATFORMS)

    @property
    def process_id(self) -> int:
        """`pid` in info.json; 0 if it is missing."""
        return self.info.integer("pid") or 0

    @property
    def layout_version(self) -> str:
        """`version` in info.json, "1.0" or "2.0", which selects the layout of some samples."""
        return self.info.text("version", "1.0")

    @cached_property
    def device_info(self) -> Control:
        """Last element of DeviceInfo in info.json; empty if missing."""
        return (self.info.records("DeviceInfo") or [Control(self.info.path, {})])[-1]

    @cached_property
    def clocks(self) -> Clocks:
        """The clocks of this part.

        Raises RawFormatError if a start log or start_info is missing or lacks a value.
        """
        log = read_start_log(required_control(self.path, "host_start.log"))
        path = find_control(self.path, "dev_start.log")
        device = StartLog(self.path, {}) if path is None else read_start_log(path)
        cpus = self.info.records("CPU")
        return build_clocks(
            host_mhz=cpus[-1].decimal("Frequency") if cpus else None,
            host_monotonic_ns=log.value("clock_monotonic_raw"),
            host_counter=log.value("cntvct"),
            host_counter_diff=log.counter("cntvct_diff") or 0,
            begin_us=_required(self.start, "collectionTimeBegin", _LATEST_US),
            begin_monotonic_ns=_required(self.start, "clockMonotonicRaw", _LATEST_US * 1000),
            device_mhz=self.device_info.decimal("hwts_frequency"),
            device_counter=device.counter("cntvct"),
            device_monotonic_ns=device.counter("clock_monotonic_raw"),
        )


class HostDirectory(PartDirectory):
    """The part `host/`: calls, launches, dictionaries and samples of the host."""

    @cached_property
    def dictionaries(self) -> Dictionaries:
        """Dictionaries to which all parts of the recording refer."""
        return read_dictionaries(self.data)


class DeviceDirectory(PartDirectory):
    """A part `device_<N>/`: task logs, PMU records and samples of one device."""

    def __init__(self, path: Path, device_id: int) -> None:
        super().__init__(path)
        self.device_id = device_id


class ProfDirectory:
    """A PROF_* directory; `problems` lists the parts that cannot be read."""

    def __init__(self, path: Path) -> None:
        """Open the recording at `path`.

        Raises RawFormatError if `path` is not a recording, or no part can be read.
        """
        self.path = path
        # (anomaly name, message) for each part that could not be opened.
        self.problems: list[tuple[str, str]] = []
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
                hint="pass a PROF_* directory as the profiler wrote it, or a directory of several",
                slug="incomplete-recording",
            )

    @property
    def dictionaries(self) -> Dictionaries:
        """Dictionaries of the host; empty without a host directory."""
        return Dictionaries() if self.host is None else self.host.dictionaries

    @property
    def process_id(self) -> int:
        """`pid` in info.json of the host or the first device; 0 if it is missing."""
        return (self.host or self.devices[0]).process_id

    def report_problems(self, sink: Sink) -> None:
        """Count unread parts, links, lost slices and unfinished files as anomalies."""
        for name, message in self.problems:
            sink.anomaly(name, 1, message)
        for part in [self.host, *self.devices]:
            if part is None:
                continue
            data, unfinished = part.data, part.unfinished
            for name, found, detail in (
                ("link_not_followed", data.links, "{path}/{first} is not a regular file"),
                ("lost_slice", data.lost, "{path}: {first}"),
                ("unfinished_file", unfinished, _UNFINISHED),
            ):
                if found:
                    sink.anomaly(name, len(found), detail.format(path=data.path, first=found[0]))

    def _parts(self) -> list[tuple[Path, int | None]]:
        """Return the directories of the host (None) and the devices, by device number."""
        with system_errors(RawFormatError, f"cannot list {self.path}", slug="cannot-read"):
            children = sorted(self.path.iterdir())
        parts: list[tuple[Path, int | None]] = []
        for child in children:
            mode, match = child.lstat().st_mode, _DEVICE.fullmatch(child.name)
            if stat.S_ISLNK(mode):
                self.problems.append(("link_not_followed", f"{child} is a symbolic link"))
            elif stat.S_ISDIR(mode) and (match or child.name == "host"):
                parts.append((child, int(match[1]) if match else None))
        return sorted(parts, key=lambda part: -1 if part[1] is None else part[1])


def _required(values: Control, key: str, most: int) -> int:
    number = values.integer(key)
    if number is None or not 0 <= number <= most:
        found = values.values.get(key)
        raise RawFormatError(
            f"{values.path}: {key} is {found!r}, expected a number up to {most}",
            slug="damaged-recording",
        )
    return number
