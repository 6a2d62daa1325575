"""Batches of columns, which decoders and storage exchange: interfaces and special values.

A decoder writes to a `Sink` and does not depend on a database; `unified_prof.sqlite` implements the
interface, and a test can use a list. Decoders read tabular input through `Tables`.

Decoders, the tracker, writers and readers count anomalies (skipped, unmatched or unknown data) in a
`Ledger`, which is stored as `UPROF_ANOMALIES`. `Coverage` counts how much of a recording was
decoded, the rows of UPROF_COVERAGE.

The special values of msprof databases are placeholders and enum numbers. Their meaning was derived
from the exporter's output; `scripts/make_schema_docs.py` prints the columns. "Exporter" and "uprof"
name the writer of a value. Released migrations contain copies of the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.text import some_of

# Column of a batch: an array, a sequence (None is NULL), or one value for all rows.
Column = NDArray[Any] | Sequence[Any] | int | float | str | None

MISSING = -1  # Stands for an id that an event does not have.


def ints(values: Iterable[int]) -> NDArray[np.int64]:
    """Convert Python integers to a column, faster than `numpy.array`.

    Raises TypeError if a value is not an integer, and OverflowError if a value does not fit into
    int64.
    """
    return np.frombuffer(array("q", values), dtype=np.int64)


def null_where(missing: NDArray[np.bool_], values: NDArray[Any]) -> Column:
    """Return a column that is NULL where `missing` is true."""
    if not missing.any():
        return values
    return None if missing.all() else np.ma.masked_array(values, missing)


def null_if_missing(values: NDArray[np.int64]) -> Column:
    """Return a column that is NULL where values are `MISSING`."""
    return null_where(values == MISSING, values)


# Context manager around a named part of the work, for timing and progress.
Stage = Callable[[str], AbstractContextManager[Any]]


class Strings(Protocol):
    """Pool of STRING_IDS: dense ids from 0 in order of first use."""

    def intern(self, text: str) -> int:
        """Return the id of `text`, allocating one on first use."""

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of `texts` in order."""


class Sink(Protocol):
    """Receiver of decoded rows; tables may be written in any order and with any batch size."""

    @property
    def strings(self) -> Strings:
        """String pool of the file."""

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Append one batch to `table` and return its number of rows.

        Column names are those of the newest schema revision. Arrays and sequences of a batch have
        the same length; a scalar applies to all rows. Missing columns are NULL. Unsigned 64-bit
        values wrap to signed ones (UINT64_MAX is stored as -1).
        """

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Count skipped, truncated, unmatched or unknown data under `name`.

        Counts of the same name add up; the first `detail` is kept. A count of zero adds nothing.
        """


def count_marked(sink: Sink, name: str, mask: NDArray[np.bool_], detail: str) -> None:
    """Count the rows in a mask as an anomaly."""
    sink.anomaly(name, int(np.count_nonzero(mask)), detail)


def kept(
    rows: NDArray[Any], good: NDArray[np.bool_], sink: Sink, name: str, detail: str
) -> NDArray[Any]:
    """Return the rows in a mask; the others are counted as an anomaly."""
    if good.all():
        return rows
    count_marked(sink, name, ~good, detail)
    return rows[good]


Cells = Mapping[str, Any]  # Rows by column: int64 or float64 arrays, or lists of texts and None.


class Query(NamedTuple):
    """Columns and rows to read from a table; see `Tables.slices`."""

    table: str
    existing: Collection[str]  # The columns that the table has.
    numbers: Mapping[str, int]
    reals: Sequence[str]
    texts: Sequence[str]
    only: tuple[str, Collection[int] | None] | None
    unreadable: Counter[str]  # Counts values of other types, by `TABLE.column`.

    @property
    def found(self) -> list[str]:
        """The requested columns that exist in the table."""
        return [name for name in (*self.numbers, *self.reals, *self.texts) if name in self.existing]

    def missing_columns(self, rows: int) -> dict[str, Any]:
        """Return the requested columns that the table does not have."""
        cells: dict[str, Any] = {
            name: np.full(rows, default, np.int64)
            for name, default in self.numbers.items()
            if name not in self.existing
        }
        cells |= {name: np.full(rows, np.nan) for name in self.reals if name not in self.existing}
        cells |= {name: [None] * rows for name in self.texts if name not in self.existing}
        return cells


class Tables(ABC):
    """Tables written by another tool, independent of file format and size.

    Attributes:
        names: Names of the tables.
        unreadable: Number of values with the wrong type so far, by `TABLE.column`.
        read_rows: Number of rows read of each table so far, by the condition on them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.unreadable: Counter[str] = Counter()
        self.read_rows: dict[str, dict[Any, int]] = {}

    @abstractmethod
    def columns(self, table: str) -> Collection[str]:
        """Return the column names of `table`; empty if it does not exist."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Return the number of rows of a table. Raises UprofError if the file is damaged."""

    @abstractmethod
    def read(self, query: Query) -> Iterator[Cells]:
        """Yield the rows of a table, all of whose requested columns must be in each batch."""

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of `table` in order, a few thousand at a time.

        Args:
            table: Name; a missing table has no rows.
            numbers: Integer columns and their value for NULL, non-numbers and missing columns.
            reals: Columns of measurements; NaN for NULL.
            texts: Text columns, None for NULL; very long texts are truncated.
            only: A column, and the integers in it that select rows; None for all rows.

        Raises:
            UprofError: The file is damaged.
        """
        chosen = None if only is None else (only[0], only[1] and frozenset(only[1]))
        read, rows = self.read_rows.setdefault(table, {}), 0
        read.setdefault(chosen, 0)
        existing = self.columns(table)
        if not existing or (only is not None and only[0] not in existing):
            return
        for cells in self.read(
            Query(table, existing, numbers, reals, texts, only, self.unreadable)
        ):
            rows += len(next(iter(cells.values()), ()))
            read[chosen] = max(read[chosen], rows)
            yield cells


def text_of(value: object) -> str | None:
    """Return a value of a text column of another tool as text; None for NULL."""
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


class Entry(NamedTuple):
    """Count of an anomaly and the description of its first case."""

    cases: int
    detail: str  # Empty if there is no description.


class Ledger(Mapping[str, Entry]):
    """Name of an anomaly (snake_case) -> count and first case, in order of first occurrence."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, detail: str = "", count: int = 1) -> None:
        """Add `count` occurrences of `name`; a count of zero adds nothing.

        Counts of the same name add up; the first non-empty `detail` is kept.
        """
        if count:
            before, first = self._entries.get(name, (0, ""))
            self._entries[name] = Entry(before + int(count), first or detail)

    def merge(self, others: Mapping[str, tuple[int, str]]) -> None:
        """Add the counts of another ledger."""
        for name, (count, detail) in others.items():
            self.add(name, detail, count)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._entries!r})"


# Unknown text, for names, tensors and attributes. Exporter; stored as a text in STRING_IDS.
NOT_AVAILABLE = "N/A"

NO_NUMBER = 0xFFFFFFFF  # Missing value of 32-bit columns. Exporter, with the following meanings.

NO_CONTEXT = NO_NUMBER  # TASK.contextId: not a context of an FFTS+ task.

# TASK.modelId: the launch was outside a MODEL call, and its stream was not captured.
NO_MODEL = NO_NUMBER

# TASK.taskId of device work from other profilers, which have no such number. uprof.
NO_TASK = NO_NUMBER

# COMMUNICATION_TASK_INFO.srcRank, dstRank and planeId: no transfer or no peer. Also
# COMMUNICATION_OP.rankSize of collectives on AI CPUs: not recorded.
NO_RANK = NO_NUMBER

NO_CATEGORY = NO_NUMBER  # MSTX_EVENTS.category and rangeId: the mark has none.

# Column with an id of STRING_IDS: no text. Exporter, and torch_npu's empty text.
NO_TEXT = NO_NUMBER

NO_CONNECTION = -1  # TASK.connectionId: the launching host call is unknown. Current exporter.

# The same before 2025-02-18; before 2024-10-31 also for host-only marks.
OLD_NO_CONNECTION = NO_NUMBER

# MSTX_EVENTS.connectionId: the mark has no device part. Current exporter; readers take it for a
# connection shared by all such marks, because they exclude only `NO_MARK_CONNECTION`.
HOST_ONLY_CONNECTION = 4_000_000_000

# The same for marks of other profilers. uprof, as readers of the format expect it.
NO_MARK_CONNECTION = NO_NUMBER

# MSTX_EVENTS.connectionId and TASK.connectionId of mark 0; the others follow.
FIRST_MARK_CONNECTION = 4_000_000_001

# MSTX_EVENTS.domainId of all marks in exporters of four days in February 2025.
OLD_NO_DOMAIN = 65535

TYPE_NOT_AVAILABLE = 65534  # All HCCL enums: unknown. Exporter since 2024-07-11.

TYPE_INVALID = 65535  # All HCCL enums: a type without number. Exporter.

COPY_OTHER = 65535  # ENUM_MEMCPY_OPERATION: another direction. Exporter.

# TASK.streamId if device records have no stream and the launch is unknown. Stream ids have 16 bits
# and never this value. Exporter, in its 16-bit field.
NO_STREAM = 0xFFFF

# COMPUTE_TASK_INFO.taskType of kernels of other devices: viewers look for compute here. uprof; the
# type of the task itself is in TASK.taskType.
KERNEL_CORE = "AI_CORE"

# ENUM_API_TYPE of PYTORCH_API: operator, entry of torch_npu's queue, Python call, user mark.
# Written only by torch_npu.
API_OPERATION, API_QUEUE, API_PYTHON, API_MARK = 50001, 50002, 50003, 50004

# Their names in ENUM_API_TYPE.
API_NAMES = {API_OPERATION: "op", API_QUEUE: "queue", API_PYTHON: "trace", API_MARK: "mstx"}


@lru_cache(maxsize=4096)  # ranks of one run name the same groups
def group_hash(group: str) -> int:
    """Return the number that msprof writes for a communication group (two 32-bit hashes).

    Used in `analysis.db`, and in COMMUNICATION_OP.groupName if the name was not recorded.
    """
    high = low = 0
    for char in group:
        high = (high * 29 + ord(char)) % 2**32
        low = (low * 131 + ord(char)) % 2**32
    return high << 32 | low


class CoveredPart(NamedTuple):
    """Size of one kind of file, table or event; `decoded + skipped + without_table = total`."""

    kind: str
    unit: str
    """bytes, rows or events."""
    total: int
    decoded: int
    skipped: int
    """Damaged, inconsistent or not evaluated data of a kind that is decoded."""
    without_table: int
    """Data of a kind that no decoder reads."""


# Anomalies of data without a place in the chosen schema revision: stored, but no warning.
EXPECTED_ANOMALIES = frozenset({"table_not_in_schema", "column_not_in_schema"})
COVERAGE_TABLE = "UPROF_COVERAGE"
_MAX_NAMED = 3  # Kinds that a sentence names, the largest first.


class Coverage:
    """Collects the kinds of data in a recording."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], tuple[int, int, int]] = {}

    def add(
        self, kind: str, unit: str, total: int, *, skipped: int = 0, without_table: int = 0
    ) -> None:
        """Add data of a kind; all of it is decoded except `skipped` and `without_table`."""
        before = self._parts.get((kind, unit), (0, 0, 0))
        skipped = min(skipped, total - without_table)
        self._parts[kind, unit] = (
            before[0] + total,
            before[1] + skipped,
            before[2] + without_table,
        )

    def add_events(self, counts: Mapping[str, int], skipped: Mapping[str, int]) -> None:
        """Add events by kind."""
        for kind, count in counts.items():
            self.add(kind, "events", count, skipped=skipped.get(kind, 0))

    def write(self, sink: Sink) -> None:
        """Write all kinds of which the recording has data."""
        parts = [
            CoveredPart(*key, total, total - skipped - without, skipped, without)
            for key, (total, skipped, without) in sorted(self._parts.items())
            if total
        ]
        if parts:
            columns = zip(*parts, strict=True)
            sink.write(
                COVERAGE_TABLE, dict(zip(CoveredPart._fields, map(list, columns), strict=True))
            )


def coverage_text(parts: Sequence[CoveredPart]) -> str:
    """Return the share that was decoded, and the largest kinds that were not."""
    shares = []
    for unit in sorted({part.unit for part in parts}):
        of_unit = [part for part in parts if part.unit == unit]
        total, decoded = sum(p.total for p in of_unit), sum(p.decoded for p in of_unit)
        share = decoded * 1000 // total / 10 if total else 100.0
        shares.append(f"{share:g} % of {total:,} {unit}")
    text = ", ".join(shares)
    for label, lost in (
        ("skipped", [(part.skipped, part) for part in parts]),
        ("without a table", [(part.without_table, part) for part in parts]),
    ):
        found = sorted((pair for pair in lost if pair[0]), key=lambda pair: -pair[0])
        named = (f"{part.kind} ({size:,} {part.unit})" for size, part in found)
        text += f"; {label}: {some_of(named, _MAX_NAMED, 'more kinds')}" if found else ""
    return text


def anomaly_lines(anomalies: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Yield a line for each kind of anomaly of a conversion that needs attention."""
    for name, (count, detail) in sorted(anomalies.items()):
        if name not in EXPECTED_ANOMALIES:
            yield f"  anomaly {name}: {count:,}" + (f" ({detail})" if detail else "")


def anomaly_fields(anomalies: Mapping[str, tuple[int, str]]) -> dict[str, dict[str, Any]]:
    """Return the anomalies of a conversion as plain data, sorted by name."""
    return {name: {"count": n, "detail": detail} for name, (n, detail) in sorted(anomalies.items())}
