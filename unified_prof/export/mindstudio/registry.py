"""Columns that several files of the text export need, the writer of files, and number formats.

Each table is read once. Files are named `<kind>_<time>.csv|json`. Times are whole nanoseconds,
written exactly as microseconds with three decimals. Ratios and averages are rounded; msprof uses
three rounding rules, each implemented by one function here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Floats, Ints, Lookup, Runs
from unified_prof.base.columns import (
    NO_CONNECTION,
    NO_CONTEXT,
    NO_MODEL,
    NOT_AVAILABLE,
    OLD_NO_CONNECTION,
)
from unified_prof.base.text import guard_formula, printable
from unified_prof.export.files import OutputFiles
from unified_prof.recording.source import Findings, Source, task_counters

# Larger tables are split into `<kind>_slice_<n>_<time>.csv`.
ROWS_A_FILE = 1_000_000
_NEEDS_QUOTES = re.compile(r'[",]')


def cell(text: str, *, raw: bool = False) -> str:
    """Return a text as a cell, quoted if needed and safe from execution as a formula.

    Differs from msprof's files only for names that start with =, +, - or @ and for control
    characters other than tabs; with `raw`, it does not differ.
    """
    if not raw:
        text = guard_formula("\t".join(map(printable, text.split("\t"))))
    if _NEEDS_QUOTES.search(text):
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    return text


Cells = Sequence[tuple[str, Sequence[str]]]  # Title and cells of each column.


def cell_lines(columns: Cells) -> list[str]:
    """Return the lines of a block from its columns."""
    return list(map(",".join, zip(*(cells for _, cells in columns), strict=True)))


class Delivery:
    """Writes the files of a text export.

    `moment` is the local time of the export, part of every file name.
    """

    def __init__(self, files: OutputFiles, moment: datetime) -> None:
        self._files = files
        self._time = f"{moment:%Y%m%d%H%M%S}"

    def columns(self, kind: str, rows: int, block: Callable[[slice], Cells]) -> None:
        """Write a table; `block` returns the columns of a slice of its rows."""
        parts = map(block, blocks(rows))
        if (first := next(parts, None)) is not None:
            header = [title for title, _ in first]
            self.table(kind, header, rows, map(cell_lines, chain([first], parts)))

    def table(
        self, kind: str, header: Sequence[str], rows: int, blocks: Iterable[Sequence[str]]
    ) -> None:
        """Write a table; no file if it has no rows.

        Blocks of any size have lines without line ends, `rows` in total.
        """
        if rows <= ROWS_A_FILE:
            names = [f"{kind}_{self._time}.csv"] if rows else []
        else:
            count = -(-rows // ROWS_A_FILE)
            names = [f"{kind}_slice_{number}_{self._time}.csv" for number in range(count)]
        self._files.tables(names, ",".join(header), blocks, rows_each=ROWS_A_FILE)

    def timeline(self, kind: str, blocks: Iterable[Sequence[str]]) -> None:
        """Write a list of trace events; no file if there are no events.

        Blocks of any size have events as JSON texts.
        """
        filled = (events for events in blocks if events)
        first = next(filled, None)
        if first is None:
            return
        with self._files.text(f"{kind}_{self._time}.json") as text:
            separator = "["
            for events in chain([first], filled):
                text.stream.write(separator + ",".join(events))
                text.entries += len(events)
                separator = ","
            text.stream.write("]")


def as_json(value: object) -> str:
    """Return a value as JSON in msprof's style: no spaces, no escapes of non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_MILLI = 1000
# Beyond this value a float64 has no exact thousandths.
_EXACT_THOUSANDTHS = float(1 << 52)
_EXACT_INTEGERS = 1 << 53
_SQLITE_EXPONENT_FROM = 1e15


def microseconds(ns: Ints) -> list[str]:
    """Return times or durations as microseconds with exactly three decimals.

    Missing and negative values become N/A.
    """
    whole, rest = np.divmod(ns, _MILLI)
    return [
        f"{us}.{thousandth:03d}" if us >= 0 else NOT_AVAILABLE
        for us, thousandth in zip(whole.tolist(), rest.tolist(), strict=True)
    ]


def tabbed_us(ns: Ints) -> list[str]:
    """Return `microseconds` with a trailing tab, which keeps spreadsheets from rounding them."""
    return [f"{cell}\t" for cell in microseconds(ns)]


def as_doubles(ns: Ints) -> Floats:
    """Return times in microseconds as the nearest float64, as if parsed from their text."""
    whole, rest = np.divmod(ns, _MILLI)
    # Numbers beyond 2**53 would be rounded before the division. Their whole microseconds are exact,
    # and adding the thousandths rounds once.
    large = whole.astype(np.float64) + rest.astype(np.float64) / _MILLI
    return np.where(ns < _EXACT_INTEGERS, ns.astype(np.float64) / _MILLI, large)


def integers(values: Ints) -> list[str]:
    """Return integers as texts; missing values become N/A."""
    return [NOT_AVAILABLE if value == MISSING else str(value) for value in values.tolist()]


def trimmed(value: float) -> str:
    """Return a number with at most three decimals and no trailing zeros: `6`, `11.33`."""
    text = f"{value:.3f}"
    return text.rstrip("0").rstrip(".")


def half_away(value: float) -> float:
    """Round to thousandths like C: multiply, round halves away from zero, divide."""
    scaled = abs(value) * 1000.0
    below = math.floor(scaled)
    return math.copysign((below + (scaled - below >= 0.5)) / 1000.0, value)


def thousandths(values: Floats) -> Ints:
    """Round to whole thousandths as SQLite's `round(x, 3)`: exact halves go away from zero.

    Values must be below 2**52 thousandths. Scaling a float64 has an error below one unit in the
    last place, so only values that close to a half are checked individually.
    """
    scaled = np.abs(values) * _MILLI
    below = np.floor(scaled)
    above_half = scaled - below - 0.5
    result = below + (above_half >= 0)
    close = np.abs(above_half) <= np.maximum(np.spacing(scaled), 1e-12)
    for place in np.flatnonzero(close).tolist():
        numerator, denominator = abs(float(values[place])).as_integer_ratio()
        quotient, rest = divmod(numerator * _MILLI, denominator)
        result[place] = quotient + (2 * rest >= denominator)
    return np.asarray(np.copysign(result, values).astype(np.int64))


def rounded(values: Floats) -> list[str]:
    """Return numbers as SQLite prints `round(x, 3)`: `0.0`, `1.412`; NaN as N/A."""
    known = np.isfinite(values)
    large = known & (np.abs(values) >= _EXACT_THOUSANDTHS / _MILLI)
    plain = known & ~large
    whole_thousandths = thousandths(np.where(plain, values, 0.0))
    cells = by_value(whole_thousandths, of_thousandths)
    for place in np.flatnonzero(~plain).tolist():
        cells[place] = as_sqlite(float(values[place])) if known[place] else NOT_AVAILABLE
    return cells


def as_sqlite(value: float) -> str:
    """Return a float64 as SQLite's text: 15 digits, always with a decimal point."""
    if abs(value) < _SQLITE_EXPONENT_FROM:
        text = f"{value:.15g}"
        if "e" not in text:
            return text if "." in text else f"{text}.0"
    mantissa, _, exponent = f"{value:.14e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent):+03d}"


def cycles(values: Floats) -> list[str]:
    """Return counts, without decimals if they are whole; NaN as N/A."""
    return [
        NOT_AVAILABLE
        if math.isnan(value)
        else str(int(value))
        if value.is_integer()
        else f"{value}"
        for value in values.tolist()
    ]


def kilobytes(size_bytes: Ints) -> list[str]:
    """Return bytes as KB, rounded to three decimals; exact halves to even, as in Python."""
    return by_value(
        size_bytes, lambda one: NOT_AVAILABLE if one == MISSING else str(round(one / 1024, 3))
    )


def by_value(values: Ints, text: Callable[[int], str]) -> list[str]:
    """Return a text for each number; `text` is called once for each distinct number."""
    distinct, places = np.unique(values, return_inverse=True)
    texts = list(map(text, distinct.tolist()))
    return [texts[place] for place in places.reshape(-1).tolist()]


def of_thousandths(value: int) -> str:
    """Return thousandths as a number with one to three decimals: `0.0`, `1.412`."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    decimals = f"{value % _MILLI:03d}".rstrip("0") or "0"
    return f"{sign}{value // _MILLI}.{decimals}"


BLOCK_ROWS = 32_768  # Rows that are converted to text at a time.

# Type of the device tasks of marks, which are not listed as tasks.
MARK = "MsTx"
COPY = "MEMCPY_ASYNC"

_WITHOUT_CONTEXTS = ("Ascend910A", "Ascend310P")  # Chips that have no contexts and no MIX kernels.
# Chips whose text export is msprof's Python program, which writes another layout.
_PYTHON_EXPORT = (*_WITHOUT_CONTEXTS, "Ascend310B")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Part of a file of the text export that cannot be written."""

    deliverable: str
    what: str
    why: str


class Recording:
    """Msprof database, with the data that the files of the text export need."""

    def __init__(self, source: Source, *, raw: bool = False) -> None:
        self.source = source
        # True to write names without protection from formulas.
        self.raw = raw
        self.findings = Findings()
        self._left_out: dict[tuple[str, str], LeftOut] = {}
        # Tables whose rows with invalid times were counted.
        self._counted_tables: set[str] = set()

    @property
    def left_out(self) -> list[LeftOut]:
        """Parts left out so far."""
        return list(self._left_out.values())

    def leave_out(self, deliverable: str, what: str, why: str) -> None:
        """Record once that a part of a file is left out."""
        self._left_out.setdefault((deliverable, what), LeftOut(deliverable, what, why))

    @cached_property
    def _texts(self) -> dict[int, str]:
        rows = self.source.rows("SELECT id, value FROM STRING_IDS WHERE value IS NOT NULL")
        return {number: str(text) for number, text in rows}

    @cached_property
    def tasks(self) -> Tasks:
        """The rows of TASK, without the device tasks of marks."""
        return Tasks(self, is_mark=False)

    @cached_property
    def mark_tasks(self) -> Tasks:
        """The rows of TASK that are device tasks of marks."""
        return Tasks(self, is_mark=True)

    @cached_property
    def kernels(self) -> Kernels:
        """The rows of COMPUTE_TASK_INFO."""
        return Kernels(self)

    @cached_property
    def collectives(self) -> Collectives:
        """The rows of COMMUNICATION_OP."""
        return Collectives(self)

    @property
    def task_counters(self) -> str:
        """Table of the AI core counters of tasks."""
        return task_counters(self.source)

    @cached_property
    def has_contexts(self) -> bool:
        """True if the chip has contexts; unknown chips count as having them."""
        return not self.has_chip(*_WITHOUT_CONTEXTS)

    @cached_property
    def python_export(self) -> bool:
        """True if msprof exports the recordings of this chip with its Python program."""
        return self.has_chip(*_PYTHON_EXPORT)

    def has_chip(self, *names: str) -> bool:
        """Return True if the name of a device begins with one of `names`."""
        found = self.source.rows("SELECT name FROM NPU_INFO")
        return any(str(name).startswith(names) for (name,) in found)

    @cached_property
    def is_copy(self) -> Bools:
        """Mask of the rows of `tasks` that are asynchronous copies."""
        return np.isin(self.tasks.type, self.ids([COPY]))

    def kernel_name(self, tasks: Ints, info: Ints) -> Ints:
        """Return the text id of each task's kernel name, or MISSING.

        `info` are rows of `kernels`; -1 if a task has none.
        """
        result = np.full(len(tasks), MISSING, np.int64)
        if self.python_export and len(self._collective_tasks["globalTaskId"]):
            rows = Lookup(self._collective_tasks["globalTaskId"]).rows(self.tasks.id[tasks])
            types = self._collective_tasks["taskType"][rows].astype(np.int64)
            result = np.where(rows >= 0, types, result)
        if len(self.kernels):
            name = self.kernels.columns["name"][info].astype(np.int64)
            result = np.where(info >= 0, name, result)
        return result

    @cached_property
    def _collective_tasks(self) -> dict[str, Ints]:
        return self.integers("COMMUNICATION_TASK_INFO", ["globalTaskId", "taskType"])

    def ids(self, wanted: Collection[str]) -> Ints:
        """Return the ids of texts; a file may have several ids for one text."""
        return np.array([one for one, text in self._texts.items() if text in wanted], np.int64)

    def text(self, number: int) -> str:
        """Return a text by its id, or N/A."""
        return self._texts.get(number, NOT_AVAILABLE)

    def enum(self, table: str) -> dict[int, str]:
        """Return an ENUM_ table as number -> name."""
        rows = (
            self.source.rows(f"SELECT id, name FROM {table}") if table in self.source.tables else ()
        )
        return {number: str(name) for number, name in rows if isinstance(number, int)}

    def integers(
        self, table: str, columns: Iterable[str], narrow: Collection[str] = ()
    ) -> dict[str, Ints]:
        """Return integer columns in the file's order of rows; empty if the table is missing.

        Table and columns have the names of the newest schema; columns in `narrow` may be returned
        as int32, to save memory.
        """
        # In double quotes, SQLite would read a missing column as a text.
        return self.source.integers(table, {name: f"[{name}]" for name in columns}, narrow=narrow)

    def reals(
        self, table: str, columns: Sequence[str], condition: str = "", values: Sequence[Any] = ()
    ) -> dict[str, Floats]:
        """Return numeric columns as float64, with NaN for values that are not numbers.

        `condition` selects rows of the table, by default all.
        """
        if table not in self.source.tables:
            return {name: np.empty(0) for name in columns}
        numbers = "iif(typeof([{0}]) IN ('integer', 'real'), CAST([{0}] AS REAL), NULL) AS [{0}]"
        select = ", ".join(map(numbers.format, columns))
        found = self.source.columns(f"SELECT {select} FROM {condition or table}", values)
        # NULL is masked.
        return {name: np.ma.filled(found[name].astype(np.float64), np.nan) for name in columns}

    def cell(self, text: str) -> str:
        """Return a text as a cell of a table."""
        return cell(text, raw=self.raw)

    def cells(self, numbers: Ints) -> list[str]:
        """Return the table cells of texts, by their ids."""
        return by_value(numbers, lambda number: self.cell(self.text(number)))

    def timed(
        self, table: str, columns: Sequence[str], narrow: Collection[str] = ()
    ) -> dict[str, Ints]:
        """Return columns of the rows with valid times; the first column is their start.

        `endNs` is the end if it is one of the columns, otherwise rows have a single time.
        """
        found = self.integers(table, columns, narrow)
        start = found[columns[0]]
        keep = self.times(table, start, found.get("endNs", start))
        return found if keep.all() else {name: values[keep] for name, values in found.items()}

    def times(self, table: str, start: Ints, end: Ints) -> Bools:
        """Return a mask of the rows with valid times; the others are counted."""
        possible = (start >= 0) & (end >= start)
        if not possible.all() and table not in self._counted_tables:
            self._counted_tables.add(table)
            bad = len(possible) - int(possible.sum())
            reason = f"{bad} rows of {table} have invalid times and are left out"
            self.findings.add("impossible_time", reason, bad)
        return possible


class Tasks:
    """Rows of TASK with valid times as columns, in the order of the file."""

    _COLUMNS = (
        *("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid"),
        *("taskType", "contextId", "streamId", "taskId", "modelId"),
    )
    _SMALL = ("deviceId", "globalTaskId", "taskType", "streamId", "taskId")

    def __init__(self, recording: Recording, *, is_mark: bool) -> None:
        found = recording.timed("TASK", self._COLUMNS, self._SMALL)
        keep = np.isin(found["taskType"], recording.ids([MARK])) == is_mark
        if not keep.all():
            found = {name: values[keep] for name, values in found.items()}
        self.start_ns = found["startNs"]
        self.end_ns = found["endNs"]
        self.device = found["deviceId"]
        connection = found["connectionId"]
        self.connection = np.where(connection == OLD_NO_CONNECTION, NO_CONNECTION, connection)
        self.id = found["globalTaskId"]
        self.process = found["globalPid"]
        self.type = found["taskType"]
        self.context = found["contextId"]
        self.stream = found["streamId"]
        self.number = found["taskId"]
        self.model = found["modelId"]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """Durations of the tasks."""
        return self.end_ns - self.start_ns

    @cached_property
    def launch(self) -> Ints:
        """Number of the launch that each row belongs to.

        A launch of a MIX or FFTS+ kernel has one row for itself and one per context, all with the
        same device, stream and task number. Rows of another host call with the same numbers are
        another launch. A context without a known host call belongs to the preceding row.
        """
        order = np.lexsort((self.start_ns, self.number, self.stream, self.device))
        places = Runs(self.device[order], self.stream[order], self.number[order])
        caller = self.connection[order]
        follows = (caller == NO_CONNECTION) & self.has_context[order]
        follows[places.starts] = False
        leader = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
        caller = caller[leader]
        callers, code = np.unique(caller, return_inverse=True)
        result = np.empty(len(order), np.int64)
        result[order] = places.number() * len(callers) + code.reshape(-1)
        return result

    @cached_property
    def has_context(self) -> Bools:
        """Mask of the rows that are contexts of a task."""
        return np.asarray(self.context != NO_CONTEXT)


class Kernels:
    """Rows of COMPUTE_TASK_INFO as columns of text ids."""

    COLUMNS = (
        *("name", "globalTaskId", "blockNum", "mixBlockNum", "taskType", "opType"),
        *("inputFormats", "inputDataTypes", "inputShapes"),
        *("outputFormats", "outputDataTypes", "outputShapes"),
        *("opState", "hf32Eligible", "gridDim", "blockDim"),
    )

    def __init__(self, recording: Recording) -> None:
        self.columns = recording.integers("COMPUTE_TASK_INFO", self.COLUMNS, self.COLUMNS)
        self._lookup = Lookup(self.columns["globalTaskId"])

    def __len__(self) -> int:
        return len(self.columns["globalTaskId"])

    def rows_of(self, task_ids: Ints) -> Ints:
        """Return the row of each task, or -1."""
        return self._lookup.rows(task_ids).astype(np.int64)


class Collectives:
    """Rows of COMMUNICATION_OP as columns."""

    _COLUMNS = (
        *("startNs", "endNs", "opName", "connectionId", "groupName", "opId", "relay", "retry"),
        *("dataType", "algType", "count", "opType", "deviceId", "rankSize"),
    )

    def __init__(self, recording: Recording) -> None:
        self.columns = recording.timed("COMMUNICATION_OP", self._COLUMNS)
        self.start_ns = self.columns["startNs"]
        self.end_ns = self.columns["endNs"]
        self.device = self.columns["deviceId"]
        self._recording = recording

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """Durations of the operators."""
        return self.end_ns - self.start_ns

    @cached_property
    def model(self) -> Ints:
        """Model of each operator, taken from its tasks."""
        members = self._recording.integers("COMMUNICATION_TASK_INFO", ["globalTaskId", "opId"])
        tasks = self._recording.tasks
        rows = Lookup(tasks.id).rows(members["globalTaskId"])
        known = rows >= 0
        of_operator = Lookup(members["opId"][known]).rows(self.columns["opId"])
        models = tasks.model[rows[known]]
        result = np.full(len(self), NO_MODEL, np.int64)
        result[of_operator >= 0] = models[of_operator[of_operator >= 0]]
        return result


def blocks(count: int) -> Iterator[slice]:
    """Yield slices that divide `count` rows into blocks of BLOCK_ROWS."""
    for start in range(0, count, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, count))


def in_order_of_text(ns: Ints) -> Ints:
    """Return keys that sort times as decimal texts: `10` before `9`."""
    if not len(ns) or len(str(int(ns.min()))) == len(str(int(ns.max()))):
        return ns
    return ranks_of_texts(ns)


def ranks_of_texts(values: NDArray[np.integer]) -> Ints:
    """Return keys that sort `values` as decimal texts: `10` before `9`."""
    distinct, places = np.unique(values, return_inverse=True)
    order = sorted(range(len(distinct)), key=[str(one) for one in distinct.tolist()].__getitem__)
    rank = np.empty(len(distinct), np.int64)
    rank[order] = np.arange(len(distinct))
    return np.asarray(rank[places.reshape(-1)])


def first_known(*columns: Iterable[int]) -> int | None:
    """Return the first known value of the columns, or None."""
    return next((int(v) for column in columns for v in column if v != MISSING and v >= 0), None)
