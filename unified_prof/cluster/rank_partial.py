"""Partials: the data of one rank that the analysis of a run needs, in compact columns.

A partial is stored as one Parquet file, which needs pyarrow: one table with a column `part`, so
that other engines can query the communication of all ranks; strings are in the file's metadata.
Partials in memory need only NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unified_prof.arrays.grouping import NO_VALUE, Bools, Ints
from unified_prof.cluster.sequences import RankSequences, SharedColumns, sequences_of
from unified_prof.errors import StoreError, missing_package

PARTIAL_VERSION = 4  # Part of the file names: partials of other versions are rebuilt.
# Version with the same columns and the steps of the host, which can still be shown.
_HOST_STEPS_VERSION = 3

Columns = Mapping[str, Ints]

# The parts and their columns, int64 in memory. `kind`, `name` and `module` are indices of texts in
# the metadata; times are ns.

# One row per collective or transfer, by start. `seq` counts from 0 within group and kind (of
# transfers: and peer); `move` is how long data moved, `covered` how much of it kernels cover.
COMMUNICATION_COLUMNS = (
    *("group", "kind", "seq", "start", "end", "bytes", "peer", "move", "step"),
    *("covered",),
)
# The rank's timeline, cut where communication or a step starts or ends: of the interval from a mark
# to the next one, the time before the first kernel, with kernels, and after the last kernel.
MARK_COLUMNS = ("time", "op", "what", "lead", "busy", "tail", "kernels")
MARK_START, MARK_END, MARK_STEP = 0, 1, 2

STEP_COLUMNS = ("step", "start", "end", "compute", "communication", "exposed", "idle", "input")
KERNEL_COLUMNS = ("step", "name", "module", "n", "total", "min", "max")
# Parts of collectives from rank to rank; rates are bytes/s.
LINK_COLUMNS = ("src", "dst", "n", "bytes", "total", "p50", "p99")

# Maximum number of operations, over all ranks, held in memory; larger runs keep the first steps.
OPERATIONS_IN_MEMORY = 4_000_000

# Minimum number of operations for communication to get its own row groups.
_MIN_OWN_ROW_GROUP = 4096

PARTIAL_PARTS: Mapping[str, tuple[str, ...]] = {
    "communication": COMMUNICATION_COLUMNS,
    "marks": MARK_COLUMNS,
    "steps": STEP_COLUMNS,
    "kernels": KERNEL_COLUMNS,
    "links": LINK_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A communicator of the rank."""

    name: str
    kind: str  # tp, dp, pp, ep, cp, world or other.
    title: str
    ranks: tuple[int, ...]  # Global ranks by position; empty if not recorded.
    size: int = NO_VALUE  # Number of ranks, if known without their numbers.


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Identity of a rank and what its recording contains."""

    rank: int
    world_size: int | None = None
    host: str | None = None
    device_id: int | None = None
    device_name: str | None = None
    vendor: str | None = None
    # Recorded sizes of tp, pp, dp, ep and cp.
    shape: Mapping[str, int] = field(default_factory=dict)
    # True if steps were recorded; otherwise the whole recording is one step.
    steps_recorded: bool = False
    loader_recorded: bool = False
    # True if the rank was only watched: the passes of its steps take the place of kernels.
    watched: bool = False
    sampled: bool = False  # True if most operations were removed from its trace.
    clock_mhz: float | None = None  # Mean clock of the device while kernels run.
    notes: tuple[str, ...] = ()  # Descriptions of missing data.


class MarkFigures(NamedTuple):
    """Figures of the marks of a rank, ns."""

    begin: int | None = None  # None if there are no marks.
    end: int = 0
    gap: float = 0.0  # Mean time between consecutive kernels.
    median_gap: float = 0.0


def figures_of(marks: Columns) -> MarkFigures:
    """Return the figures of marks.

    Between two marks only the mean time between kernels is recorded; the median counts it once for
    each gap.
    """
    time = marks["time"]
    if not len(time):
        return MarkFigures()
    span = int(time[0]), int(time[-1])
    lead, busy, tail, begun = (marks[name][:-1] for name in ("lead", "busy", "tail", "kernels"))
    # If an interval begins within a kernel, that kernel counts as well.
    gaps = np.where(busy > 0, begun - (lead > 0), 0)
    count = int(gaps[gaps > 0].sum())
    if not count:
        return MarkFigures(*span)
    idle, gaps = (np.diff(time) - lead - busy - tail)[gaps > 0], gaps[gaps > 0]
    order = np.argsort(idle / gaps, kind="stable")
    at = int(np.searchsorted(np.cumsum(gaps[order]), count / 2))
    return MarkFigures(*span, float(idle.sum()) / count, float((idle / gaps)[order[at]]))


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """One rank's columns."""

    facts: RankFacts
    groups: tuple[RankGroup, ...]
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    communication: Columns
    marks: Columns
    steps: Columns
    kernels: Columns
    links: Columns
    # The last step whose communication and marks are included; None if all steps are. Sums per
    # step are always complete.
    until: int | None = None
    # Its operations if `communication` is not in memory, until they are matched.
    held: RankSequences | None = None
    figures: MarkFigures | None = None  # Those of its marks if they are known.
    read_again: Callable[[], Partial] | None = None  # Reads the file again.

    def sequences(self) -> RankSequences:
        """Return the communication by sequence."""
        return self.held or sequences_of(self.communication, self.kinds)

    def reload(self) -> Partial:
        """Return the partial with its operations."""
        return self if self.read_again is None else self.read_again()

    @property
    def operations(self) -> int:
        """Number of the operations in `communication`."""
        if self.held is not None:
            return int(self.held.first.edges[-1])
        return len(self.communication["start"])

    def mark_figures(self) -> MarkFigures:
        """Return the figures of its marks."""
        return self.figures or figures_of(self.marks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as one block of numbers, which is faster than one per column."""
        if self.held is not None:
            return Partial, tuple(getattr(self, field.name) for field in fields(self))
        texts = (self.facts, self.groups, self.kinds, self.names, self.modules, self.until)
        parts = [(getattr(self, part), columns) for part, columns in PARTIAL_PARTS.items()]
        sizes = [len(part[columns[0]]) for part, columns in parts]
        block = np.concatenate([part[name] for part, columns in parts for name in columns])
        return _from_block, (texts, sizes, block)


def _from_block(texts: tuple[Any, ...], sizes: list[int], block: Ints) -> Partial:
    result: dict[str, Any] = {}
    begin = 0
    for (part, columns), size in zip(PARTIAL_PARTS.items(), sizes, strict=True):
        result[part] = {}
        for name in columns:
            result[part][name] = block[begin : begin + size]
            begin += size
    facts, groups, kinds, names, modules, until = texts
    return Partial(facts, groups, kinds, names, modules, until=until, **result)


_FACTS, _GROUP = fields(RankFacts), fields(RankGroup)


def empty_columns(part: str) -> dict[str, Ints]:
    """Return the columns of a part without rows."""
    return {name: np.empty(0, np.int64) for name in PARTIAL_PARTS[part]}


def named_columns(part: str, *values: Any) -> dict[str, Ints]:
    """Return the columns of a part by name."""
    return dict(zip(PARTIAL_PARTS[part], values, strict=True))


class _StoredColumns(Mapping[str, Ints]):
    """The first rows of a part, read from the file of the partial when they are used."""

    __hash__ = object.__hash__

    def __init__(self, read: Callable[[], bytes], part: str, rows: int) -> None:
        self.read, self.part, self.rows = read, part, rows

    def __getitem__(self, name: str) -> Ints:
        return _load(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(PARTIAL_PARTS[self.part])

    def __len__(self) -> int:
        return len(PARTIAL_PARTS[self.part])


@lru_cache(maxsize=4)
def _load(stored: _StoredColumns) -> Columns:
    with _opened(stored.read(), stored.part) as file:
        columns = file.read([stored.part], stored.rows)[stored.part]
    return {name: values[: stored.rows] for name, values in columns.items()}


def partial_to_parquet(partial: Partial) -> bytes:
    """Return the Parquet file of a partial.

    Raises:
        UsageError: Pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    sizes = [len(getattr(partial, part)[columns[0]]) for part, columns in PARTIAL_PARTS.items()]
    rows = sum(sizes)
    begin = 0
    merged: dict[str, tuple[Ints, Bools]] = {}
    for (part, names), size in zip(PARTIAL_PARTS.items(), sizes, strict=True):
        for name in names:
            unset = (np.zeros(rows, np.int64), np.ones(rows, bool))
            values, absent = merged.setdefault(name, unset)
            values[begin : begin + size] = getattr(partial, part)[name]
            absent[begin : begin + size] = False
        begin += size
    part_of_rows = np.repeat(np.arange(len(PARTIAL_PARTS), dtype=np.int8), sizes)
    arrays = {"part": arrow.array(part_of_rows)}
    for name, (values, absent) in merged.items():
        arrays[name] = arrow.array(values, mask=absent)
    table = arrow.table(arrays)
    sink = arrow.BufferOutputStream()
    with parquet.ParquetWriter(
        sink,
        table.schema,
        # Times ascend and numbers are small: delta encoding takes two thirds of the size of zstd
        # and half of its time.
        column_encoding="DELTA_BINARY_PACKED",
        compression="lz4",
        use_dictionary=False,
        write_statistics=["part"],
        store_schema=False,
    ) as writer:
        # Communication, and the marks of the first steps, can then be read without the rest.
        own = sizes[0] if sizes[0] >= _MIN_OWN_ROW_GROUP else 0
        if own:
            writer.write_table(table.slice(0, own))
        writer.write_table(table.slice(own), _MIN_OWN_ROW_GROUP if own else None)
        writer.add_key_value_metadata(
            {
                "uprof": json.dumps(
                    {
                        "version": PARTIAL_VERSION,
                        "facts": {one.name: getattr(partial.facts, one.name) for one in _FACTS},
                        "groups": [
                            {one.name: getattr(group, one.name) for one in _GROUP}
                            for group in partial.groups
                        ],
                        "kinds": partial.kinds,
                        "names": partial.names,
                        "modules": partial.modules,
                    }
                )
            }
        )
    return bytes(sink.getvalue())


def partial_from_parquet(data: bytes, name: str) -> Partial:
    """Return the partial that a Parquet file contains.

    Raises:
        StoreError: The data is damaged, of another version, or not a partial.
        UsageError: Pyarrow is not installed.
    """
    with _opened(data, name) as file:
        return _partial(file.all_parts(), file.about)


def read_first_steps(
    read: Callable[[], bytes],
    name: str,
    operations: int,
    shared: SharedColumns | None = None,
    *,
    whole: bool = True,
) -> Partial:
    """Return the partial of a file with its first steps in memory, but at least one step.

    Args:
        read: Returns the file; called again if communication or marks are used.
        name: Name of the file for messages.
        operations: Maximum number of operations of these steps.
        shared: Columns that other ranks have as well.
        whole: True to keep all operations by sequence.

    Raises:
        StoreError: The data is damaged, of another version, or not a partial.
        UsageError: Pyarrow is not installed.
    """
    with _opened(read(), name) as file:
        parts: dict[str, Columns]
        if file.own_operations() <= operations:
            parts = {**file.all_parts()}
        else:
            parts = {**file.read(["communication"]), **file.read(["steps", "kernels", "links"])}
        steps, starts = parts["steps"], parts["communication"]["start"]
        if len(starts) <= operations or len(steps["end"]) < 2:
            parts = parts if "marks" in parts else {**parts, **file.read(["marks"])}
            return replace(_partial(parts, file.about), figures=figures_of(parts["marks"]))
        ends = np.sort(steps["end"])
        before = np.searchsorted(starts, ends)
        chosen = max(int(np.searchsorted(before, operations, side="right")) - 1, 0)
        end, kept = int(ends[chosen]), int(before[chosen])
        rows = 2 * kept + len(ends)
        while True:
            marks = file.read(["marks"], rows)["marks"]
            if len(marks["time"]) < rows or marks["time"][-1] >= end:
                break
            rows *= 2
        inside = int(np.searchsorted(marks["time"], end))
        held = sequences_of(parts["communication"], file.about["kinds"], kept, shared)
        if not whole:
            held.whole.columns.clear()
        parts["communication"] = _StoredColumns(read, "communication", kept)
        parts["marks"] = _StoredColumns(read, "marks", inside)
        return replace(
            _partial(parts, file.about),
            until=int(steps["step"][np.argsort(steps["end"])[chosen]]),
            held=held,
            read_again=partial(read_first_steps, read, name, operations, whole=whole),
            figures=figures_of({name: values[:inside] for name, values in marks.items()}),
        )


def read_communication(data: bytes, name: str) -> tuple[Columns, tuple[str, ...]]:
    """Return only the communication that a Parquet file contains, and its kinds.

    Raises:
        StoreError: The data is damaged, or not a partial.
    """
    with _opened(data, name) as file:
        return file.read(["communication"])["communication"], tuple(file.about["kinds"])


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[_PartialFile]:
    """Open a Parquet file; errors in the block become StoreError."""
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(arrow.BufferReader(data))
        about = json.loads((file.metadata.metadata or {})[b"uprof"])
        if about["version"] not in (PARTIAL_VERSION, _HOST_STEPS_VERSION):
            raise StoreError(
                f"{name} is a partial of version {about['version']}, expected {PARTIAL_VERSION}",
                slug="other-version",
            )
        yield _PartialFile(file, about)
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as err:
        raise StoreError(
            f"{name} is not a partial of a rank, or it is damaged: {err}", slug="damaged-file"
        ) from err


class _PartialFile:
    """Reads parts without the row groups and columns that they do not use."""

    def __init__(self, file: Any, about: Mapping[str, Any]) -> None:
        self._file, self.about = file, about
        groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        self._sizes = [group.num_rows for group in groups]
        found = [group.column(0).statistics for group in groups]  # of `part`
        self._spans = [
            (one.min, one.max) if one is not None and one.has_min_max else (0, len(PARTIAL_PARTS))
            for one in found
        ]

    def own_operations(self) -> int:
        """Return the size of the first row group if it contains only communication; otherwise 0."""
        return self._sizes[0] if self._spans and self._spans[0] == (0, 0) else 0

    def all_parts(self) -> dict[str, dict[str, Ints]]:
        """Return all parts; communication in its own row group is read alone."""
        first, *others = PARTIAL_PARTS
        if not self.own_operations():
            return self.read(PARTIAL_PARTS)
        return {**self.read([first]), **self.read(others)}

    def read(self, wanted: Collection[str], rows: int | None = None) -> dict[str, dict[str, Ints]]:
        """Return parts; if `rows` is given, not all row groups after that many rows."""
        numbers = {number for number, part in enumerate(PARTIAL_PARTS) if part in wanted}
        groups = [
            at
            for at, (least, most) in enumerate(self._spans)
            if any(least <= part <= most for part in numbers)
        ]
        if rows is not None:
            ends = np.cumsum([self._sizes[at] for at in groups])
            groups = groups[: int(np.searchsorted(ends, rows)) + 1]
        # A slice would keep the whole column in memory, with the empty cells of other parts.
        is_mixed = len(wanted) > 1
        columns = ["part", *dict.fromkeys(name for part in wanted for name in PARTIAL_PARTS[part])]
        table = self._file.read_row_groups(groups, columns=columns, use_threads=False)
        edges = np.searchsorted(
            table.column("part").to_numpy(), np.arange(len(PARTIAL_PARTS) + 1)
        ).tolist()
        return {
            part: {
                name: table.column(name)
                .slice(begin, end - begin)
                .to_numpy()
                .astype(np.int64, copy=is_mixed)
                for name in columns
            }
            for (part, columns), begin, end in zip(
                PARTIAL_PARTS.items(), edges[:-1], edges[1:], strict=True
            )
            if part in wanted
        }


def _partial(parts: Mapping[str, Columns], about: Mapping[str, Any]) -> Partial:
    facts = dict(about["facts"])
    facts["notes"] = tuple(facts["notes"])
    groups = (
        RankGroup(**{**one, "ranks": _shared_tuple(tuple(one["ranks"]))}) for one in about["groups"]
    )
    columns: dict[str, Any] = {name: tuple(about[name]) for name in ("kinds", "names", "modules")}
    return Partial(RankFacts(**facts), tuple(groups), **{**columns, **parts})


@lru_cache(maxsize=1 << 14)
def _shared_tuple(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return an equal tuple: every rank of a group lists all ranks of the group."""
    return ranks


def _pyarrow() -> tuple[Any, Any]:
    hint = "run `pip install 'unified-prof[cluster]'`"
    with missing_package("partials are Parquet files, which need pyarrow", hint=hint):
        return import_module("pyarrow"), import_module("pyarrow.parquet")


@dataclass(frozen=True, slots=True)
class PartialSource:
    """Paths of a rank's recording and partial."""

    file: str | None = None
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableRecording:
    """A recording that could not be read."""

    file: str
    why: str
    rank: int | None = None  # None if unknown.
    hint: str | None = field(default=None, compare=False)  # How to fix it; not stored in summaries.


# File names within the directory of a run.
SUMMARY_FILE_NAME = "cluster.sqlite"
PARTIALS_DIRECTORY = "partials"


def is_run_directory(path: Path) -> bool:
    """Return True if a path is the directory of a run with a summary."""
    return path.is_dir() and (path / SUMMARY_FILE_NAME).is_file()


def completion_hint(path: Path) -> str | None:
    """Return a hint if a directory has partials but no summary; otherwise None."""
    partials = path / PARTIALS_DIRECTORY
    if (
        is_run_directory(path)
        or not partials.is_dir()
        or next(partials.glob("*.parquet"), None) is None
    ):
        return None
    return f"{path} is an incomplete run; continue with `uprof cluster build RECORDINGS -o {path}`"
