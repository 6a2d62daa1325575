"""Finds the files of a text export of torch_npu; reads `trace_view.json` and CSV tables.

Times in microseconds (decimal strings or numbers) are converted to nanoseconds. Damaged events are
counted; in a truncated file, all complete events are kept.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from unified_prof.base.columns import Sink
from unified_prof.base.text import us_text_to_ns
from unified_prof.decoders.compression import Content
from unified_prof.errors import RawFormatError

# Maximum size of one event.
_MAX_EVENT_BYTES = 64 << 20
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
# Maximum number of possible ends of an event that are tried.
_MAX_TRIES = 200
_BOM = b"\xef\xbb\xbf"
_LATEST_NS = 1 << 62


class Event(msgspec.Struct, frozen=True, gc=False):
    """Fields of an event that the decoder uses."""

    ph: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: str | float | int = 0
    dur: str | float | int = 0
    cat: str | None = None
    args: dict[str, Any] | None = None


class BadEventError(ValueError):
    """A value of an event or a table is missing or has another type."""


# Receives (name, count, first case) of each kind of damage.
Count = Callable[[str, int, str], None]
_EVENTS = msgspec.json.Decoder(list[Event])
_ANYTHING = msgspec.json.Decoder(list[Any])


def read_events(path: Path, count: Count) -> Iterator[list[Event]]:
    """Yield the events in file order, in batches of a few megabytes."""
    blocks = Content(path).blocks()
    data = next(blocks, b"").removeprefix(_BOM).lstrip()
    if data[:1] != b"[":
        message = f"{path} is not a list of events as torch_npu writes it"
        raise RawFormatError(message, slug="not-a-recording")
    data = data[1:]
    for more in blocks:
        found = _before_last(data)
        if found is None:
            if len(data) > _MAX_EVENT_BYTES:
                message = f"{path} has an event of more than {len(data):,} bytes"
                raise RawFormatError(message, slug="damaged-recording")
            data += more
            continue
        events, used = found
        yield _typed(events, path, count)
        data = data[used:] + more
    yield from _last(data, path, count)


def time_ns(value: str | float) -> int:
    """Convert a time or duration from microseconds to nanoseconds.

    Raises BadEventError if the value is not a time.
    """
    if isinstance(value, str):
        try:
            if value[-4:-3] == "." and value.replace(".", "", 1).isdecimal():
                found = int(value[:-4] + value[-3:])
            else:
                found = us_text_to_ns(value.strip())
        except ValueError:
            raise BadEventError(f"{value!r} is not a time") from None
    elif not math.isfinite(value * 1000):
        raise BadEventError("a time that is not a number")
    else:
        found = round(value * 1000)
    if abs(found) > _LATEST_NS:
        raise BadEventError("a time beyond 64 bits")
    return found


def _before_last(data: bytes) -> tuple[bytes, int] | None:
    """Return the complete events as JSON and the offset of other data; None if there are none."""
    places = [found.span() for found in _BETWEEN.finditer(data)]
    # The pattern may be inside a string or an inner list, so the text before it must be valid JSON.
    for start, end in reversed(places[-_MAX_TRIES:]):
        text = b"[" + data[: start + 1] + b"]"
        try:
            _ANYTHING.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        return text, end - 1
    return None


def _last(data: bytes, path: Path, count: Count) -> Iterator[list[Event]]:
    text = data.rstrip()
    has_end = text.endswith(b"]")
    text = text.removesuffix(b"]").rstrip().removesuffix(b",")
    if not text:
        if not has_end:
            count("cut_off", 1, f"{path}: the list has no end")
        return
    try:
        _ANYTHING.decode(b"[" + text + b"]")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        count("cut_off", 1, f"{path}: the last event is incomplete")
        if (found := _before_last(text)) is not None:
            yield _typed(found[0], path, count)
        return
    if not has_end:
        count("cut_off", 1, f"{path}: the list has no end")
    yield _typed(b"[" + text + b"]", path, count)


def _typed(text: bytes, path: Path, count: Count) -> list[Event]:
    try:
        return _EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    events = []
    for value in _ANYTHING.decode(text):
        try:
            events.append(msgspec.convert(value, Event))
        except msgspec.ValidationError as err:
            count("damaged_event", 1, f"{path}: {err}")
    return events


TRACE = "trace_view.json"
KERNELS = "kernel_details.csv"
ALLOCATIONS = "operator_memory.csv"
TOTALS = "memory_record.csv"
MODULES = "npu_module_mem.csv"
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"

# Summaries of the other files, which reports compute.
DERIVED = frozenset(
    "operator_details.csv op_statistic.csv api_statistic.csv task_time.csv step_trace_time.csv"
    " communication.json communication_matrix.json analyse.done".split()
)
_MAX_CELL_CHARS = 16 << 20
_MAX_LINE_CHARS = 32 << 20
_DEVICE = re.compile(r"NPU:(\d{1,4})")


class Export(Struct, frozen=True):
    """The directory and the trace of an export."""

    folder: Path
    trace: Path

    @property
    def has_tables(self) -> bool:
        """True if the tables belong to the trace, which is not the case for a renamed trace."""
        return self.trace.name == TRACE

    @property
    def around(self) -> Path:
        """Directory that contains `profiler_info*.json`."""
        return self.folder.parent if self.folder.name == OUTPUT_FOLDER else self.folder

    def file(self, name: str) -> Path | None:
        """Return the path of a table, None if it is missing."""
        path = self.folder / name
        return path if self.has_tables and path.is_file() else None

    def others(self) -> list[str]:
        """Return the names of unknown tables in the directory."""
        if not self.has_tables:
            return []
        known = {TRACE, KERNELS, ALLOCATIONS, TOTALS, MODULES} | DERIVED
        names = (child.name for child in self.folder.iterdir())
        return sorted(name for name in names if name.endswith(".csv") and name not in known)


def find_export(path: Path) -> Export | None:
    """Return the export at a path (file or directory), None if there is none."""
    if path.is_file():
        return Export(path.resolve().parent, path)
    for folder in (path, path / OUTPUT_FOLDER):
        if (folder / TRACE).is_file():
            return Export(folder, folder / TRACE)
    return None


def read_rows(path: Path, needed: tuple[str, ...], sink: Sink) -> Iterator[dict[str, str]]:
    """Yield the rows of a table; spaces and tabs around cells are removed.

    Rows with a wrong number of cells are counted and dropped.
    """
    csv.field_size_limit(_MAX_CELL_CHARS)
    try:
        with path.open(encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
            rows = csv.reader(_lines(file, path, sink))
            names = [cell.strip() for cell in next(rows, [])]
            if missing := [name for name in needed if name not in names]:
                message = f"{path} has no column {', '.join(missing)}"
                raise RawFormatError(message, slug="damaged-recording")
            for row in rows:
                if len(row) == len(names):
                    yield dict(zip(names, map(str.strip, row), strict=True))
                elif row:
                    detail = f"line {rows.line_num} has {len(row)} cells, expected {len(names)}"
                    sink.anomaly("damaged_row", 1, f"{path}: {detail}")
    except (OSError, csv.Error) as err:
        raise RawFormatError(f"{path}: cannot be read: {err}", slug="cannot-read") from err


def _lines(file: TextIO, path: Path, sink: Sink) -> Iterator[str]:
    """Yield the lines of a file; a file without line ends would not fit into memory."""
    last = "\n"
    while line := file.readline(_MAX_LINE_CHARS):
        if len(line) == _MAX_LINE_CHARS:
            raise csv.Error(f"a line has more than {_MAX_LINE_CHARS:,} characters")
        last = line
        yield line
    if not last.endswith(("\n", "\r")):
        sink.anomaly("cut_off", 1, f"{path}: the last line has no end")


def device_of(text: str) -> int | None:
    """Return the number in `NPU:n`, None for other strings."""
    found = _DEVICE.fullmatch(text)
    return int(found[1]) if found else None
