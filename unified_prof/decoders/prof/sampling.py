"""Functions shared by the decoders of samples: times, text lines, previous samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints, Runs
from unified_prof.base.columns import Sink, count_marked
from unified_prof.decoders.prof.clocks import MAX_NS, LinearClock
from unified_prof.decoders.prof.directory import DeviceDirectory, PartDirectory
from unified_prof.decoders.spool import Rows
from unified_prof.errors import RawFormatError

# Bytes per second of one MB/s of the exporter.
BYTES_PER_MB = float(1 << 20)
_MAX_INT64_DIGITS = 19
# Latest time in microseconds that is converted; later ones are damaged.
_LATEST_US = MAX_NS // 2000


def pieces_by_moment(
    part: PartDirectory, file_name: str, layout: str, time_field: str
) -> Iterator[Rows]:
    """Yield records in chunks; all records with the same time are in one chunk."""
    held: Rows | None = None
    for piece in part.data.get(file_name).pieces(layout):
        records = piece if held is None else np.concatenate([held, piece])
        last = records[time_field] == records[time_field][-1]
        held = records[last]
        if not last.all():
            yield records[~last]
    if held is not None:
        yield held


def device_clock(part: PartDirectory, file_name: str) -> LinearClock:
    """Return the clock for device counter values.

    Raises RawFormatError if its origin or frequency is missing in a control file.
    """
    return _required(part.clocks.device, part, file_name, "cntvct and hwts_frequency")


def device_monotonic_clock(part: PartDirectory, file_name: str) -> LinearClock:
    """Return the clock for the device's monotonic nanoseconds.

    Raises RawFormatError if its origin is missing in a control file.
    """
    return _required(part.clocks.device_monotonic, part, file_name, "clock_monotonic_raw")


def _required(
    clock: LinearClock | None, part: PartDirectory, file_name: str, values: str
) -> LinearClock:
    if clock is None:
        raise RawFormatError(
            f"{part.data.path}: the times of {file_name} need {values} of dev_start.log and"
            " info.json",
            slug="damaged-recording",
        )
    return clock


def rounded_start_ns(part: PartDirectory, time_us: NDArray[Any]) -> Floats:
    """Convert microseconds since the start to Unix ns, with the rounding of the exporter.

    The exporter first converts to the device's monotonic clock and then adds float64 numbers, whose
    resolution is 256 ns for Unix times. The same operations in the same order give the same values.
    Times outside the range of int64 become `MAX_NS`.
    """
    readings = part.clocks.readings
    device_ns = readings.device_monotonic_ns or 0  # cancels out, except for the rounding
    to_host_seconds = float(readings.start_ns) / 1e9 - device_ns / 1e9
    to_1970_us = float(readings.begin_us) - float(readings.begin_monotonic_ns) / 1000.0
    possible = time_us < _LATEST_US
    device_times_ns = np.where(possible, time_us, 0).astype(np.int64) * 1000 + device_ns
    times_ns = (device_times_ns + to_host_seconds * 1e9) + to_1970_us * 1000.0
    return np.where(possible, times_ns, float(MAX_NS))


def truncated_ns(times_ns: Floats) -> Ints:
    """Truncate float64 times to int64 ns; times beyond int64 become `MAX_NS`."""
    fits = times_ns < float(MAX_NS)
    return np.asarray(np.where(fits, np.where(fits, times_ns, 0).astype(np.int64), MAX_NS))


def write_samples(
    sink: Sink,
    part: PartDirectory,
    table: str,
    times_ns: Ints,
    *,
    time_column: str = "timestampNs",
    **columns: Any,
) -> None:
    """Write samples with their Unix times and, if `part` is a device, its id.

    As in the exporter, samples before the start of the session are skipped. They are counted, as
    are samples whose times are out of range. A column is an array or one value for all rows.
    """
    impossible = times_ns == MAX_NS
    early = times_ns < part.session.start_ns
    for name, mask in (("impossible_time", impossible), ("before_session_start", early)):
        count_marked(sink, name, mask, f"rows of {table} in {part.data.path}")
    keep = ~(impossible | early)
    if not keep.any():
        return
    columns[time_column] = times_ns
    if isinstance(part, DeviceDirectory):
        columns["deviceId"] = part.device_id
    if not keep.all():
        columns = {
            name: values[keep] if isinstance(values, np.ndarray) else values
            for name, values in columns.items()
        }
    sink.write(table, columns)


def megabytes_per_second(count: NDArray[Any], duration_ns: Floats, bytes_per_count: int) -> Floats:
    """Return MB/s (1 MB = 2**20 bytes); 0 if the duration is 0.

    Operations are in the order of the exporter, because another order changes the rounded result in
    rare cases.
    """
    result = np.zeros(len(count))
    passed = duration_ns > 0
    per_second = count[passed].astype(np.float64) / duration_ns[passed] * 1e9
    result[passed] = per_second * bytes_per_count / BYTES_PER_MB
    return result


def bandwidth(count: NDArray[Any], duration_ns: Floats, bytes_per_count: int) -> Floats:
    """Return integer bytes per second; 0 if the duration is 0."""
    return np.trunc(megabytes_per_second(count, duration_ns, bytes_per_count) * BYTES_PER_MB)


def ratio(numerator: NDArray[Any], denominator: Floats) -> Floats:
    """Return the quotients; 0 if the denominator is not positive."""
    result: Floats = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


def rounded(values: Floats, decimals: int) -> Floats:
    """Round correctly like Python's `round`; `np.round` is inexact near halves."""
    scaled = values * 10**decimals
    result = np.round(values, decimals)
    near_half = np.flatnonzero(np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) < 1e-4)
    result[near_half] = [round(value, decimals) for value in values[near_half].tolist()]
    return result


class PreviousSamples:
    """Finds the previous sample of the same group for each sample, across chunks of a file."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, ...]] = {}

    def previous(
        self, group: NDArray[Any], *columns: NDArray[Any]
    ) -> tuple[Bools, tuple[NDArray[Any], ...]]:
        """Return a mask of rows with a previous sample, and its values (else their own).

        Groups are small integers; samples of a group are in time order.
        """
        order = np.argsort(group, kind="stable")
        runs = Runs(np.asarray(group)[order])
        first, last = order[runs.starts], order[runs.last]
        before = np.r_[order[:1], order[:-1]]
        before[runs.starts] = first
        found = np.ones(len(order), np.bool_)
        found[first] = False
        previous = tuple(np.empty_like(column) for column in columns)
        for target, column in zip(previous, columns, strict=True):
            target[order] = column[before]
        for key, row, end in zip(group[first].tolist(), first, last, strict=True):
            if key in self._last:
                found[row] = True
                for target, value in zip(previous, self._last[key], strict=True):
                    target[row] = value
            self._last[key] = tuple(column[end] for column in columns)
        return found, previous


def timed_blocks(part: PartDirectory, sink: Sink, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the time in each `time <ns>` line of a text file, and the lines after it.

    Lines before the first `time` line are counted as damaged.
    """
    time_ns: int | None = None
    block: list[str] = []
    damaged = 0
    for lines in part.data.get(kind).line_batches():
        for line in lines:
            if not line.startswith("time "):
                block.append(line)
                continue
            if time_ns is not None:
                yield time_ns, block
            else:
                damaged += len(block)
            block = []
            time_ns = integer(line[len("time ") :].strip())
            if time_ns is None or time_ns < 0:
                time_ns, damaged = None, damaged + 1
    if time_ns is not None:
        yield time_ns, block
    else:
        damaged += len(block)
    count_damaged(sink, part, kind, damaged)


def integer(text: str) -> int | None:
    """Parse a decimal integer that fits into int64; return None for other text."""
    digits = text[1:] if text[:1] == "-" else text
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INT64_DIGITS:
        value = int(text)
        return value if abs(value) <= MAX_NS else None
    return None


def integers(text: str, separator: str | None = None) -> list[int] | None:
    """Parse the integers in a line; return None if a field is not an integer."""
    values = [integer(field) for field in text.split(separator)]
    return None if None in values else [value for value in values if value is not None]


def count_damaged(sink: Sink, part: PartDirectory, kind: str, count: int) -> None:
    """Count lines of a text file that could not be parsed."""
    if count > 0:
        sink.anomaly("damaged_line", count, f"{part.data.path}/{kind}.data")


def integer_rows(
    part: PartDirectory, sink: Sink, kind: str, fields: int, header_lines: int = 0
) -> Ints:
    """Return the rows of a text file whose lines contain `fields` non-negative integers.

    A colon may follow the first integer. Other lines are skipped and counted as damaged, except the
    first `header_lines`. If the file is missing, there are no rows.
    """
    rows: list[list[int]] = []
    damaged = 0
    for lines in part.data.get(kind).line_batches():
        for line in lines[header_lines:]:
            values = integers(line.replace(":", " ", 1))
            if values is None or len(values) != fields or min(values) < 0:
                damaged += 1
            else:
                rows.append(values)
        header_lines = max(0, header_lines - len(lines))
    count_damaged(sink, part, kind, damaged)
    return np.array(rows, np.int64).reshape(-1, fields)
