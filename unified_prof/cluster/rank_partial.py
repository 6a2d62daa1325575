"""Partials: the data of one rank that the analysis of a run needs, in compact columns.

A partial is stored as one Parquet file, which needs pyarrow: one table with a column `part`, so
that other engines can query the communication of all ranks; strings are in the file's metadata.
Partials in memory need only NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.packed import narrowest
from unified_prof.errors import StoreError, UsageError

PARTIAL_VERSION = 3  # Part of the file names: partials of other versions are rebuilt.

Columns = Mapping[str, Ints]

NO_VALUE = -1  # Marks unknown or missing values in columns of non-negative numbers.

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
    notes: tuple[str, ...] = ()  # Descriptions of missing data.


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
    until: int | None = None  # The last step whose communication is included; None if all of it is.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as one block of numbers, which is faster than one per column."""
        texts = (self.facts, self.groups, self.kinds, self.names, self.modules, self.until)
        parts = [(getattr(self, part), columns) for part, columns in PARTIAL_PARTS.items()]
        sizes = [len(part[columns[0]]) for part, columns in parts]
        block = np.concatenate([part[name] for part, columns in parts for name in columns])
        return _from_block, (texts, sizes, block)


def _from_block(texts: tuple[Any, ...], sizes: list[int], block: Ints) -> Partial:
    result: dict[str, dict[str, Ints]] = {}
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


class _PackedColumns(Mapping[str, Ints]):
    """Rows of columns in narrow types: a column is widened whenever it is used."""

    def __init__(self, columns: Columns, rows: slice) -> None:
        self._packed = {name: narrowest(values[rows]) for name, values in columns.items()}

    def __getitem__(self, name: str) -> Ints:
        return self._packed[name].astype(np.int64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


def limit_to_first_steps(partial: Partial, operations: int) -> Partial:
    """Reduce a rank to its first steps with at most `operations` operations, but at least one step.

    Sums per step stay complete; `until` is the last step whose communication is included.
    """
    if len(partial.communication["start"]) <= operations or len(partial.steps["end"]) < 2:
        return partial
    ends = np.sort(partial.steps["end"])
    before = np.searchsorted(partial.communication["start"], ends)
    chosen = max(int(np.searchsorted(before, operations, side="right")) - 1, 0)
    end = ends[chosen]
    kept = int(np.searchsorted(partial.communication["start"], end))
    inside = int(np.searchsorted(partial.marks["time"], end))
    return replace(
        partial,
        communication=_PackedColumns(partial.communication, slice(None, kept)),
        marks=_PackedColumns(partial.marks, slice(None, inside)),
        until=int(partial.steps["step"][np.argsort(partial.steps["end"])[chosen]]),
    )


def partial_to_parquet(partial: Partial) -> bytes:
    """Return the Parquet file of a partial.

    Raises:
        UsageError: Pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    sizes = [len(getattr(partial, part)[columns[0]]) for part, columns in PARTIAL_PARTS.items()]
    rows = sum(sizes)
    begin = 0
    merged: dict[str, tuple[Ints, NDArray[np.bool_]]] = {}
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
        # Communication can then be read without the other parts.
        writer.write_table(table, sizes[0] if sizes[0] >= _MIN_OWN_ROW_GROUP else None)
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
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(arrow.BufferReader(data))
        metadata = file.metadata
        about = json.loads((metadata.metadata or {})[b"uprof"])
        if about["version"] != PARTIAL_VERSION:
            raise StoreError(
                f"{name} is a partial of version {about['version']}, expected {PARTIAL_VERSION}",
                slug="other-version",
            )
        # Communication with its own row groups is read without the columns of the other parts.
        first, *others = PARTIAL_PARTS
        wanted = [PARTIAL_PARTS] if metadata.num_row_groups == 1 else [[first], others]
        parts = {name: part for names in wanted for name, part in _parts(file, names).items()}
        return _partial(parts, about)
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as err:
        raise StoreError(
            f"{name} is not a partial of a rank, or it is damaged: {err}", slug="damaged-file"
        ) from err


def read_communication(data: bytes, name: str) -> Columns:
    """Return only the communication that a Parquet file contains.

    Raises:
        StoreError: The data is damaged, or not a partial.
    """
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(arrow.BufferReader(data))
        return _parts(file, ["communication"])["communication"]
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as err:
        raise StoreError(
            f"{name} is not a partial of a rank, or it is damaged: {err}", slug="damaged-file"
        ) from err


def _parts(file: Any, wanted: Collection[str]) -> dict[str, dict[str, Ints]]:
    """Read the wanted parts of a file, without the row groups and columns that they do not use."""
    numbers = {number for number, part in enumerate(PARTIAL_PARTS) if part in wanted}
    groups = []
    for number in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(number).column(0).statistics  # of `part`
        if (
            statistics is None
            or not statistics.has_min_max
            or any(statistics.min <= part <= statistics.max for part in numbers)
        ):
            groups.append(number)
    # A slice would keep the whole column in memory, with the empty cells of other parts.
    is_mixed = len(wanted) > 1
    columns = ["part", *dict.fromkeys(name for part in wanted for name in PARTIAL_PARTS[part])]
    table = file.read_row_groups(groups, columns=columns, use_threads=False)
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
    groups = (RankGroup(**{**group, "ranks": tuple(group["ranks"])}) for group in about["groups"])
    columns: dict[str, Any] = {name: tuple(about[name]) for name in ("kinds", "names", "modules")}
    return Partial(RankFacts(**facts), tuple(groups), **{**columns, **parts})


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as err:
        raise UsageError(
            "partials are Parquet files, which need pyarrow",
            hint="run `pip install 'unified-prof[cluster]'`",
            slug="missing-package",
        ) from err


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
