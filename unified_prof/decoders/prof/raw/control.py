"""Reads the control files of a recording: info.json, sample.json, start and end, start logs.

Every value is looked up by name and checked when it is asked for, so that a recording that lacks
something only its own decoder needs still gives everything else.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from unified_prof.errors import RawFormatError

_MAX_BYTES = 16 << 20  # no genuine control file comes near
_MAX_COUNTER = 1 << 62
_INTEGER = re.compile(r"[+-]?\d{1,19}")


@dataclass(frozen=True, slots=True)
class Control:
    """One JSON control file: a mapping that knows where it came from."""

    path: Path
    values: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """Return the value of `key` as text, numbers printed; `default` when absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, dict | list):
            return default
        return str(value)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return the value of `key` as an integer, which may be written as text."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return default
        if isinstance(value, int):
            return value if abs(value) < 1 << 63 else default
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            return int(value)
        return default

    def decimal(self, key: str) -> Decimal | None:
        """Return the value of `key` as a positive decimal number, None when it is not one."""
        return positive_decimal(self.text(key))

    def records(self, key: str) -> list[Control]:
        """Return the objects of the list `key`; an empty list when there is none."""
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


_NAMES = ("info.json", "sample.json", "start_info", "end_info", "host_start.log", "dev_start.log")


def unfinished(folder: Path) -> list[str]:
    """Return the control files of `folder` that have no `.done` companion beside them.

    Raises:
        RawFormatError: the folder cannot be listed.
    """
    names = {path.name for path in _entries(folder)}
    return sorted(
        name
        for name in names
        if name.startswith(_NAMES) and not name.endswith(".done") and f"{name}.done" not in names
    )


def find(folder: Path, name: str, *, required: bool = True) -> Path | None:
    """Return the one control file `name` or `name.<N>` of `folder`.

    Raises:
        RawFormatError: there are several, or none although it is required.
    """
    pattern = re.compile(re.escape(name) + r"(\.\d+)?")
    found = [path for path in _entries(folder) if pattern.fullmatch(path.name)]
    if len(found) > 1:
        listed = ", ".join(path.name for path in found)
        raise RawFormatError(
            f"{folder} has {len(found)} files where one {name} is expected: {listed}",
            hint="keep the one that belongs to this recording",
            slug="doubled-files",
        )
    if not found and required:
        raise RawFormatError(
            f"{folder} has no {name}",
            hint="the recording is incomplete: copy the whole PROF_* directory again",
            slug="incomplete-recording",
        )
    return found[0] if found else None


def read_json(path: Path) -> Control:
    """Read one JSON object.

    Raises:
        RawFormatError: it cannot be read, or is not one JSON object.
    """
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
            f"{path} holds {type(values).__name__}, expected a JSON object",
            slug="damaged-recording",
        )
    return Control(path, values)


@dataclass(frozen=True, slots=True)
class StartLog:
    """The counters that a start log names, by name: `clock_monotonic_raw`, `cntvct`, ..."""

    path: Path
    values: Mapping[str, int]

    def value(self, key: str) -> int:
        """Return a counter that must be there.

        Raises:
            RawFormatError: it is not, or is no time that a counter can show.
        """
        number = self.counter(key)
        if number is None:
            raise RawFormatError(
                f"{self.path} has no line {key}:<counter>", slug="damaged-recording"
            )
        return number

    def counter(self, key: str) -> int | None:
        """Return a counter, None when it is missing or cannot be one."""
        number = self.values.get(key, -1)
        return number if 0 <= number <= _MAX_COUNTER else None


def read_start_log(path: Path) -> StartLog:
    """Read `name:number` lines of a host_start.log or dev_start.log.

    Raises:
        RawFormatError: the file cannot be read.
    """
    values: dict[str, int] = {}
    for line in _read(path).decode("utf-8", "replace").splitlines():
        key, separator, number = line.partition(":")
        if separator and _INTEGER.fullmatch(number.strip()):
            values[key.strip()] = int(number)
    return StartLog(path, values)


def _entries(folder: Path) -> list[Path]:
    """Return the regular files of a folder by name; links are not followed."""
    try:
        return sorted(path for path in folder.iterdir() if stat.S_ISREG(path.lstat().st_mode))
    except OSError as err:
        raise RawFormatError(f"cannot list {folder}: {err.strerror}", slug="cannot-read") from err


def _read(path: Path) -> bytes:
    try:
        if path.lstat().st_size > _MAX_BYTES:
            raise RawFormatError(
                f"{path} is over {_MAX_BYTES >> 20} MiB, too big for its kind",
                slug="damaged-recording",
            )
        return path.read_bytes()
    except OSError as err:
        raise RawFormatError(f"cannot read {path}: {err.strerror}", slug="cannot-read") from err
