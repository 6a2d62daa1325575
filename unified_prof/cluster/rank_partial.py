"""A partial: what the cluster needs of one rank, as a few compact columns.

Written as one Parquet file (needs pyarrow): one table of all rows, `part` telling which room they
are of, so that an engine may read the communication of ten thousand ranks by a plain query; texts
about the rank stand in the file's metadata. In memory NumPy alone is needed.

What the ranks of a run were read from, and what could not be.

Where a summed-up run lies; asked of every path, so nothing else is imported.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Ints
from unified_prof.errors import StoreError, UsageError

PARTIAL_VERSION = 3
"""Part of the files' names: partials of another version are made anew."""

Columns = Mapping[str, Ints]

NO_VALUE = -1
"""In columns of non-negative numbers: not known, or none."""

# The parts and their columns, all int64 in memory. `kind`, `name` and `module` are numbers of
# texts in the file's metadata.
COMMUNICATION_COLUMNS = (
    *("group", "kind", "seq", "start", "end", "bytes", "peer", "move", "step"),
    *("covered",),
)
"""One row a collective or transfer, by start. `seq` counts from 0 within group and kind (of
transfers: and peer); `move` is the time in which data moved, `covered` is how much of it kernels
cover."""

MARK_COLUMNS = ("time", "op", "what", "lead", "busy", "tail", "kernels")
"""The rank's timeline, cut where communication or a step begins or ends: of the stretch from here
to the next mark, the time before the first kernel, with kernels, after the last one."""
MARK_START, MARK_END, MARK_STEP = 0, 1, 2

STEP_COLUMNS = ("step", "start", "end", "compute", "communication", "exposed", "idle", "input")
KERNEL_COLUMNS = ("step", "name", "module", "n", "total", "min", "max")
LINK_COLUMNS = ("src", "dst", "n", "bytes", "total", "p50", "p99")
"""Parts of collectives from rank to rank; the rates are bytes/s."""

OPERATIONS_IN_MEMORY = 4_000_000
"""Of all ranks; of a run with more the first steps are held."""

_ROWS_OF_THEIR_OWN = 4096

PARTIAL_PARTS: Mapping[str, tuple[str, ...]] = {
    "communication": COMMUNICATION_COLUMNS,
    "marks": MARK_COLUMNS,
    "steps": STEP_COLUMNS,
    "kernels": KERNEL_COLUMNS,
    "links": LINK_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A communicator that the rank takes part in."""

    name: str
    kind: str
    """tp, dp, pp, ep, cp, world or other, as far as its title says."""
    title: str
    ranks: tuple[int, ...]
    """Global ranks by their place; empty: not told."""
    size: int = NO_VALUE
    """How many they are, where that is known without their numbers."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Who a rank is."""

    rank: int
    world_size: int | None = None
    host: str | None = None
    device_id: int | None = None
    device_name: str | None = None
    vendor: str | None = None
    shape: Mapping[str, int] = field(default_factory=dict)
    """tp, pp, dp, ep, cp: how many each, where the recording says it."""
    steps_recorded: bool = False
    """Whether steps are the recording's own; else all of it is one."""
    loader_recorded: bool = False
    notes: tuple[str, ...] = ()
    """What is missing, in words."""


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
    until: int | None = None
    """The last step of which there is communication here; None: all of it is."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to other processes as one block of numbers, not as one a column."""
        texts = (self.facts, self.groups, self.kinds, self.names, self.modules, self.until)
        parts = [(getattr(self, part), columns) for part, columns in PARTIAL_PARTS.items()]
        sizes = [len(part[columns[0]]) for part, columns in parts]
        block = np.concatenate([part[name] for part, columns in parts for name in columns])
        return _from_block, (texts, sizes, block)


def _from_block(texts: tuple[Any, ...], sizes: list[int], block: Ints) -> Partial:
    found: dict[str, dict[str, Ints]] = {}
    begin = 0
    for (part, columns), size in zip(PARTIAL_PARTS.items(), sizes, strict=True):
        found[part] = {}
        for name in columns:
            found[part][name] = block[begin : begin + size]
            begin += size
    facts, groups, kinds, names, modules, until = texts
    return Partial(facts, groups, kinds, names, modules, until=until, **found)


_FACTS, _GROUP = fields(RankFacts), fields(RankGroup)


def empty_columns(part: str) -> dict[str, Ints]:
    """Return the columns of a part without rows."""
    return {name: np.empty(0, np.int64) for name in PARTIAL_PARTS[part]}


def limit_to_first_steps(partial: Partial, operations: int) -> Partial:
    """Return a rank's first steps, with so many operations at most, but one step at least.

    What is summed up by step stays whole; `until` is the last step that is there.
    """
    if len(partial.communication["start"]) <= operations or len(partial.steps["end"]) < 2:
        return partial
    ends = np.sort(partial.steps["end"])
    before = np.searchsorted(partial.communication["start"], ends)
    chosen = max(int(np.searchsorted(before, operations, side="right")) - 1, 0)
    end = ends[chosen]
    kept = partial.communication["start"] < end
    inside = partial.marks["time"] < end
    return replace(
        partial,
        communication={name: values[kept] for name, values in partial.communication.items()},
        marks={name: values[inside] for name, values in partial.marks.items()},
        until=int(partial.steps["step"][np.argsort(partial.steps["end"])[chosen]]),
    )


def partial_to_parquet(partial: Partial) -> bytes:
    """Return the Parquet file of a partial.

    Raises:
        UsageError: pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    sizes = [len(getattr(partial, part)[columns[0]]) for part, columns in PARTIAL_PARTS.items()]
    rows = sum(sizes)
    begin = 0
    merged: dict[str, tuple[Ints, NDArray[np.bool_]]] = {}
    for (part, names), size in zip(PARTIAL_PARTS.items(), sizes, strict=True):
        for name in names:
            if name not in merged:
                merged[name] = (np.zeros(rows, np.int64), np.ones(rows, bool))
            values, absent = merged[name]
            values[begin : begin + size] = getattr(partial, part)[name]
            absent[begin : begin + size] = False
        begin += size
    part_of_rows = np.repeat(np.arange(len(PARTIAL_PARTS), dtype=np.int8), sizes)
    titles, arrays = ["part"], [arrow.array(part_of_rows)]
    for name, (values, absent) in merged.items():
        titles.append(name)
        arrays.append(arrow.array(values, mask=absent))
    table = arrow.Table.from_arrays(arrays, names=titles)
    sink = arrow.BufferOutputStream()
    with parquet.ParquetWriter(
        sink,
        table.schema,
        # Times ascend and numbers are small: differences take two thirds of what zstd makes of
        # the numbers, and half the time.
        column_encoding="DELTA_BINARY_PACKED",
        compression="lz4",
        use_dictionary=False,
        write_statistics=["part"],
        store_schema=False,
    ) as writer:
        # Of many rows communication is row groups of its own, see `communication`.
        writer.write_table(table, sizes[0] if sizes[0] >= _ROWS_OF_THEIR_OWN else None)
        writer.add_key_value_metadata({"uprof": json.dumps(_about(partial))})
    return bytes(sink.getvalue())


def partial_from_parquet(data: bytes, name: str) -> Partial:
    """Return the partial that a Parquet file holds.

    Raises:
        StoreError: it is damaged, of another version, or no partial; `name` says which.
        UsageError: pyarrow is not installed.
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
        if metadata.num_row_groups == 1:
            return _partial(_parts(file, PARTIAL_PARTS), about)
        # Each part without the columns that only others have.
        return _partial(
            {name: found for part in PARTIAL_PARTS for name, found in _parts(file, [part]).items()},
            about,
        )
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as err:
        raise StoreError(
            f"{name} is not a partial of a rank, or it is damaged: {err}", slug="damaged-file"
        ) from err


def read_communication(data: bytes, name: str) -> Columns:
    """Return the communication that a Parquet file holds, and nothing else of it.

    Raises:
        StoreError: it is damaged, or no partial.
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
    """Read some parts of a file, and no row groups and columns that these have nothing in."""
    numbers = {number for number, part in enumerate(PARTIAL_PARTS) if part in wanted}
    groups = []
    for number in range(file.metadata.num_row_groups):
        told = file.metadata.row_group(number).column(0).statistics  # of `part`
        if (
            told is None
            or not told.has_min_max
            or any(told.min <= part <= told.max for part in numbers)
        ):
            groups.append(number)
    # A slice keeps all of its column in memory, with the empty cells of other parts.
    is_mixed = len(wanted) == len(PARTIAL_PARTS)
    if not is_mixed:
        columns = ["part", *dict.fromkeys(name for part in wanted for name in PARTIAL_PARTS[part])]
        table = file.read_row_groups(groups, columns=columns, use_threads=False)
    else:
        table = file.read_row_groups(groups, use_threads=False)
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


def _about(partial: Partial) -> dict[str, Any]:
    return {
        "version": PARTIAL_VERSION,
        "facts": {one.name: getattr(partial.facts, one.name) for one in _FACTS},
        "groups": [
            {one.name: getattr(group, one.name) for one in _GROUP} for group in partial.groups
        ],
        "kinds": partial.kinds,
        "names": partial.names,
        "modules": partial.modules,
    }


def _partial(parts: Mapping[str, Columns], about: Mapping[str, Any]) -> Partial:
    facts = dict(about["facts"])
    facts["notes"] = tuple(facts["notes"])
    return Partial(
        facts=RankFacts(**facts),
        groups=tuple(
            RankGroup(**{**group, "ranks": tuple(group["ranks"])}) for group in about["groups"]
        ),
        kinds=tuple(about["kinds"]),
        names=tuple(about["names"]),
        modules=tuple(about["modules"]),
        communication=parts["communication"],
        marks=parts["marks"],
        steps=parts["steps"],
        kernels=parts["kernels"],
        links=parts["links"],
    )


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
    """Where a rank's columns come from."""

    file: str | None = None
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableRecording:
    """A recording that could not be read."""

    file: str
    why: str
    rank: int | None = None
    """None: it does not say whose it is."""
    hint: str | None = field(default=None, compare=False)
    """What to do about that; a summary does not keep it."""


SUMMARY_FILE_NAME = "cluster.sqlite"
"""Name of the summary in a run's folder."""
PARTIALS_DIRECTORY = "partials"
"""The folder of partials in a run's folder."""


def is_run_directory(path: Path) -> bool:
    """Whether a path is the folder of a summed-up run, by the file that it has."""
    return path.is_dir() and (path / SUMMARY_FILE_NAME).is_file()


def completion_hint(path: Path) -> str | None:
    """Return what completes a run that has partials and no summary; None: it is no such folder."""
    partials = path / PARTIALS_DIRECTORY
    if (
        is_run_directory(path)
        or not partials.is_dir()
        or next(partials.glob("*.parquet"), None) is None
    ):
        return None
    return f"{path} is an incomplete run; continue with `uprof cluster build RECORDINGS -o {path}`"
