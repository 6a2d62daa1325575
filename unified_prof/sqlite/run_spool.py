"""Measurements of a running workload, saved for `uprof db recover`.

A killed process cannot write its reports. `uprof run` therefore regularly saves the records of
complete iterations to a hidden file in the directory of the reports, and `uprof db recover` writes
reports from it. The file name contains the tag of the writing process; the file is not removed
while that process runs. The file is replaced atomically but not flushed to disk: it survives the
process, but not a power failure, and costs very little time.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from unified_prof.base.run_spec import OperationRecord, TrackedRun
from unified_prof.base.text import storable_in
from unified_prof.errors import RawFormatError, system_errors
from unified_prof.sqlite import atomic
from unified_prof.sqlite.atomic import remove_abandoned

_MAGIC = b"uprof spool\n"
_VERSION = 1
_HEADER = struct.Struct("<12sIQI")  # magic, version, bytes of the payload, their CRC-32
_MAX_BYTES = 1 << 30
_NAME = re.compile(rf"\.uprof(?:_rank\d+)?\.(?P<owner>{atomic.TAG.pattern})\.spool")
# Maximum depth of the search, for restart directories.
_MAX_DEPTH = 2
_INT64 = 1 << 63


class Spooled(Struct, frozen=True):
    """Contents of a spool."""

    reports: tuple[str, ...]  # The requested kinds of report: `run-time`, `memory`.
    rank: int | None  # Rank in the names of the reports; None: no rank.
    iterations: int  # Requested number of iterations.
    saved: str  # Time at which the spool was saved, ISO 8601.
    facts: Mapping[str, str | None]  # Rows of UPROF_RUN known so far.
    run: TrackedRun


class Spool:
    """The spool of this process in one directory."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder, self._head = folder, f".uprof{suffix}"
        self._owner = atomic.tag()
        self.path = folder / f"{self._head}.{self._owner}.spool"

    def write(self, content: Spooled) -> None:
        """Replace the saved contents.

        Raises:
            OSError: the spool cannot be written; the previous contents are kept.
        """
        data = encode(content)
        partial = (
            self._folder / f"{self._partial_head}.{self._owner}.{secrets.token_hex(4)}.partial"
        )
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
        try:
            with os.fdopen(os.open(partial, flags, 0o666), "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            partial.replace(self.path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def remove(self) -> None:
        """Remove the spool, once the reports are written."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def remove_those_of_the_dead(self) -> None:
        """Remove the spools of ended processes with the same rank."""
        remove_abandoned(self._folder, self._partial_head)
        for path in _in(self._folder):
            if path.name.startswith(f"{self._head}.") and state_of(path) == ENDED:
                with suppress(OSError):
                    path.unlink()

    @property
    def _partial_head(self) -> str:
        return f"{self._head}.spool"


RUNS, ENDED, UNKNOWN = "runs", "ended", "unknown"  # States of the process that wrote a spool.


def find(folder: Path) -> list[Path]:
    """Return the spools in `folder` and its restart directories, sorted by name."""
    return [path for place in _places(folder, _MAX_DEPTH) for path in _in(place)]


def state_of(path: Path) -> str:
    """Return the state of the process that wrote a spool: RUNS, ENDED or UNKNOWN."""
    found = _NAME.fullmatch(path.name)
    owner = found["owner"] if found else ""
    if atomic.is_abandoned(owner):
        return ENDED
    return RUNS if atomic.is_of_here(owner) else UNKNOWN


def process_of(path: Path) -> int:
    """Return the id of the process that wrote a spool."""
    found = _NAME.fullmatch(path.name)
    return int(found["owner"].split("-")[1], 16) if found else 0


def _places(folder: Path, depth: int) -> list[Path]:
    found = [folder]
    if depth:
        with suppress(OSError), os.scandir(folder) as entries:
            below = sorted(one.path for one in entries if one.is_dir(follow_symlinks=False))
            for path in below:
                found += _places(Path(path), depth - 1)
    return found


def _in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if _NAME.fullmatch(one.name))
    except OSError:
        return []


def encode(content: Spooled) -> bytes:
    """Return the contents as bytes."""
    try:
        payload = msgspec.msgpack.encode(content)
    except UnicodeEncodeError:  # surrogates of a file name that is not UTF-8
        payload = msgspec.msgpack.encode(storable_in(msgspec.to_builtins(content)))
    return _HEADER.pack(_MAGIC, _VERSION, len(payload), zlib.crc32(payload)) + payload


def read(path: Path) -> Spooled:
    """Return the contents of a spool.

    Raises:
        RawFormatError: the spool cannot be read or is invalid; the message contains its path.
    """
    with system_errors(RawFormatError, f"{path}: cannot be read", slug="cannot-read"):
        if not path.is_file():
            message = f"{path} is not a regular file, expected a spool of uprof"
            raise RawFormatError(message, slug="not-a-regular-file")
        if path.stat().st_size > _MAX_BYTES:
            raise RawFormatError(f"{path}: too large for a spool of uprof", slug="damaged-spool")
        data = path.read_bytes()
    return decode(data, where=str(path))


def decode(data: bytes, *, where: str) -> Spooled:
    """Return the contents decoded from the bytes of a spool; `where` is their source, for messages.

    Raises RawFormatError if `data` is not a result of `encode`.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise RawFormatError(f"{where}: not a spool of uprof, or truncated", slug="damaged-spool")
    _, version, size, checksum = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise RawFormatError(
            f"{where}: spool version {version} is not supported, expected {_VERSION}",
            hint="recover it with the version of uprof that wrote it",
            slug="other-version",
        )
    payload = memoryview(data)[_HEADER.size :]
    if len(payload) != size:
        message = f"{where}: truncated: {len(payload):,} bytes of records, expected {size:,}"
        raise RawFormatError(message, slug="damaged-spool")
    if zlib.crc32(payload) != checksum:
        raise RawFormatError(f"{where}: damaged: the checksum does not match", slug="damaged-spool")
    try:
        content = msgspec.msgpack.decode(payload, type=Spooled)
        _check(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as err:
        raise RawFormatError(f"{where}: invalid records: {err}", slug="damaged-spool") from None
    return content


def _check(content: Spooled) -> None:
    """Raise ValueError if records are inconsistent, so that no report can be written from them."""
    if not content.reports or not set(content.reports) <= {"run-time", "memory"}:
        raise ValueError(f"reports of the kinds {', '.join(content.reports) or 'none'}")
    if content.rank is not None and content.rank < 0:
        raise ValueError(f"rank {content.rank}")
    _check_numbers(msgspec.to_builtins(content))
    run = content.run
    matched = [number for number, found in enumerate(run.iterations) if found.matched]
    for operation in run.operations:
        _check_samples(operation, matched, len(run.iterations))
    for place, region in enumerate(run.regions):
        if region.around is not None and not 0 <= region.around < place:
            raise ValueError(f"the region {region.name} is in an unknown region")
        if len(region.counts) != len(run.iterations):
            raise ValueError(f"the region {region.name} has more or fewer counts than iterations")
    inside = [one.region for one in run.operations] + [one.region for one in run.activations]
    if not all(region is None or 0 <= region < len(run.regions) for region in inside):
        raise ValueError("an operation is in an unknown region")


def _check_numbers(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a time of {value}")
    elif isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"the number {value}")
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)


def _check_samples(operation: OperationRecord, matched: list[int], iterations: int) -> None:
    numbers = matched if operation.iterations is None else operation.iterations
    if not all(0 <= number < iterations for number in numbers) or not numbers:
        raise ValueError(f"{operation.name} has samples of unknown iterations")
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{operation.name} has two samples of one iteration")
    samples = [operation.forward_ms]
    samples += [] if operation.backward_ms is None else [operation.backward_ms]
    samples += [] if operation.gap is None else [operation.gap.ms]
    if any(len(times) != len(numbers) for times in samples):
        raise ValueError(f"{operation.name} has more or fewer times than iterations")


def recovery_hint(folder: Path) -> str | None:
    """Return a hint about measurements of killed processes in `folder`, or None."""
    if not any(state_of(path) != RUNS for path in find(folder)):
        return None
    return (
        f"{folder} has measurements of a killed run; recover them with `uprof db recover {folder}`"
    )
