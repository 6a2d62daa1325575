"""Summary of a multi-rank run on disk: the tables of `cluster.sqlite` as records and columns.

Field names of the records are the columns of their tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from unified_prof.cluster.clocks import CommonClock
from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME, completion_hint
from unified_prof.errors import StoreError
from unified_prof.schema.catalogue import CLUSTER
from unified_prof.sqlite.reader import Report, open_report

Record = TypeVar("Record")
Checked = TypeVar("Checked")
# Columns of STEP_RANK with the parts of a step.
STEP_PARTS = (
    *("compute_ns", "communication_ns", "exposed_communication_ns", "wait_ns", "exposed_wait_ns"),
    *("setup_ns", "bubble_ns", "input_late_ns", "idle_ns"),
)
READ_STATES = ("read", "partly")  # Values of RANK.status of ranks that have figures.


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One row of RANK: identity of a rank, and whether it was read."""

    rank: int
    host: str | None
    device_id: int | None
    device_name: str | None
    vendor: str | None
    file: str | None
    partial: str | None
    status: str
    why: str | None
    tp: int | None
    dp: int | None
    pp: int | None
    ep: int | None
    cp: int | None
    clock_offset_ns: int | None
    clock_error_ns: int | None
    clock_island: int | None


@dataclass(frozen=True, slots=True)
class BlameRecord:
    """One row of BLAME: waits that a rank causes."""

    caused_wait_ns: int | None  # None if no collective of the run is complete.
    times: int
    work_ns: int
    stage_work_ns: int | None
    work_ratio: float | None
    host_gap_ns: int | None
    stage_host_gap_ns: int | None
    input_late_ns: int | None
    saved_ns_per_step: float | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One row of GROUP: a communicator."""

    id: int
    kind: str
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    size: int
    hosts: int | None


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One row of COLLECTIVE: collectives of one group, kind and size in one step."""

    group_id: int
    kind: str
    step: int | None
    bytes: int | None
    n: int
    complete_n: int
    transfer_ns: int
    wait_ns: int
    setup_ns: int
    transfer_p50_ns: int | None
    transfer_p99_ns: int | None
    bus_gb_per_s: float | None


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One row of LINK: data moved from one rank to another."""

    src_rank: int
    dst_rank: int
    kind: str
    across_hosts: Literal[0, 1] | None
    n: int
    bytes: int
    transfer_ns: int
    wait_ns: int | None
    gb_per_s_p50: float | None
    gb_per_s_p99: float | None
    like_gb_per_s: float | None

    @property
    def ratio(self) -> float | None:
        """Ratio of the bandwidth to that of comparable links; below 1, the link is slower."""
        if not self.like_gb_per_s or self.gb_per_s_p50 is None:
            return None
        return self.gb_per_s_p50 / self.like_gb_per_s


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One row of OPERATION_RANK: kernels of one kind on one rank."""

    rank: int
    name: str
    module: str
    n: int
    total_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """One row of FINDING: a fault that costs time."""

    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    cost_ms_per_step: float
    figures: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class AnomalyRecord:
    """A problem of the recordings: how often it occurred, and the first occurrence."""

    name: str
    count: int
    detail: str


@dataclass(frozen=True)
class _Drift:
    """Drift of the ranks' clocks, from META_DATA."""

    ppb: Mapping[str, float] = field(default_factory=dict)
    at_ns: int = 0


@dataclass(frozen=True)
class StepTable:
    """The table STEP_RANK as columns, sorted by step and rank."""

    step: NDArray[np.int64]
    rank: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]  # End of each step on the rank's own clock.
    # STEP_PARTS -> ns; NaN if unknown.
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def span_ns(self) -> NDArray[np.float64]:
        """Length of each step of each rank, ns."""
        return (self.end_ns - self.start_ns).astype(np.float64)

    def means(self, rows: slice | NDArray[np.int64]) -> dict[str, float | None]:
        """Return the means of `span_ns` and STEP_PARTS over the rows where they are known."""
        found = {"span_ns": self.span_ns, **self.parts}
        known = {name: values[rows][~np.isnan(values[rows])] for name, values in found.items()}
        return {name: float(one.mean()) if len(one) else None for name, one in known.items()}


class StoredRun:
    """The open summary of a run; use `open_run` to create one.

    Attributes:
        path: The run's directory, file or URL, as it was given.
        file: The summary file; of a URL, its local copy.
        facts: META_DATA.
    """

    def __init__(self, path: str | os.PathLike[str], report: Report) -> None:
        self.path = str(path)
        self.file = report.path
        self._report = report
        self.facts: dict[str, str] = {
            str(name): str(value) for name, value in self._rows("META_DATA", ("name", "value"))
        }

    @cached_property
    def ranks(self) -> tuple[RankRecord, ...]:
        """All known ranks, by number."""
        return self._records(RankRecord, "RANK", order="rank")

    def clock(self, rank: RankRecord) -> CommonClock:
        """Return the conversion of a rank's times to the common clock of its island."""
        drift = self._drift.ppb.get(str(rank.rank), 0.0) / 1e9
        return CommonClock(rank.clock_offset_ns or 0, drift, self._drift.at_ns)

    @cached_property
    def _drift(self) -> _Drift:
        found = self._json(self.facts.get("clock_drift", "{}"), "META_DATA")
        return self._checked(found, _Drift, "META_DATA")

    @cached_property
    def blame(self) -> dict[int, BlameRecord]:
        """Rank -> waits that it causes."""
        names = ("rank", *_columns(BlameRecord))
        found = {
            self._checked(rank, int, "BLAME"): self._record(BlameRecord, row, "BLAME")
            for rank, *row in self._rows("BLAME", names)
        }
        if any(one.times for one in found.values()):
            return found
        return {rank: replace(one, caused_wait_ns=None) for rank, one in found.items()}

    @cached_property
    def groups(self) -> tuple[GroupRecord, ...]:
        """All groups, by number."""
        return self._records(GroupRecord, "GROUP", order="id", as_json=("names", "ranks"))

    @cached_property
    def collectives(self) -> tuple[CollectiveRecord, ...]:
        """Collectives by group, kind, size and step."""
        order = "group_id, kind, bytes, step"
        found = self._records(CollectiveRecord, "COLLECTIVE", order=order)
        known = {group.id for group in self.groups}
        if unknown := {one.group_id for one in found} - known:
            raise self._damaged("COLLECTIVE", f"unknown group {min(unknown)}")
        return found

    @cached_property
    def links(self) -> tuple[LinkRecord, ...]:
        """Data moved from rank to rank."""
        return self._records(LinkRecord, "LINK", order="src_rank, dst_rank, kind")

    @cached_property
    def findings(self) -> tuple[FindingRecord, ...]:
        """Findings, costliest first."""
        columns = ("ranks", "hosts", "links", "steps", "figures")
        return self._records(FindingRecord, "FINDING", order="place", as_json=columns)

    @cached_property
    def steps(self) -> StepTable:
        """Breakdown of the time of each step by rank."""
        found = self._report.columns(
            f"SELECT step, rank, start_ns, end_ns, {', '.join(STEP_PARTS)} FROM STEP_RANK"
            " ORDER BY step, rank"
        )
        for name, values in found.items():
            if values.dtype == object:
                raise self._damaged("STEP_RANK", f"{name} has values that are not numbers")
        parts = {name: _floats(found[name]) for name in STEP_PARTS}
        step, rank, start_ns, end_ns = (
            found[name].astype(np.int64) for name in ("step", "rank", "start_ns", "end_ns")
        )
        return StepTable(step, rank, start_ns, end_ns, parts)

    def operations(self, ranks: tuple[int, ...] | None = None) -> Iterator[OperationRecord]:
        """Yield kernels by rank and kind; `ranks` limits them to some ranks."""
        names = ", ".join(_columns(OperationRecord))
        where = "" if ranks is None else f" WHERE rank IN ({', '.join('?' * len(ranks))})"
        sql = f"SELECT {names} FROM OPERATION_RANK{where} ORDER BY rank, name, module"
        rows = self._report.rows(sql, ranks or ())
        return (self._record(OperationRecord, row, "OPERATION_RANK") for row in rows)

    @cached_property
    def anomalies(self) -> tuple[AnomalyRecord, ...]:
        """Unused data of the recordings, and recordings that may be from different runs."""
        left_out = self._json(self.facts.get("left_out", "[]"), "META_DATA")
        found = self._checked(left_out, list[dict[str, Any]], "META_DATA")
        named = [(one.get("what"), one.get("n"), one.get("first")) for one in found]
        return tuple(self._record(AnomalyRecord, one, "META_DATA") for one in named if one[1])

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        recorded = self.facts.get("world_size", "")
        return int(recorded) if recorded.isdecimal() else len(self.ranks)

    @property
    def read(self) -> tuple[RankRecord, ...]:
        """The ranks that were read."""
        return tuple(rank for rank in self.ranks if rank.status in READ_STATES)

    def _records(
        self, record: type[Record], table: str, *, order: str, as_json: Sequence[str] = ()
    ) -> tuple[Record, ...]:
        """Return the rows of a table; decode the columns in `as_json`, with lists as tuples."""
        names = _columns(record)
        decoded = [names.index(name) for name in as_json]
        records: list[Record] = []
        for row in self._rows(table, names, order):
            values = list(row)
            for at in decoded:
                values[at] = self._json(values[at], table)
            records.append(self._record(record, values, table))
        return tuple(records)

    def _record(self, record: type[Record], values: Sequence[Any], table: str) -> Record:
        """Return a row as a record.

        Raises:
            StoreError: a value does not have the type of its field.
        """
        return self._checked(dict(zip(_columns(record), values, strict=True)), record, table)

    def _checked(self, value: Any, kind: type[Checked], table: str) -> Checked:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as err:
            raise self._damaged(table, str(err)) from err

    def _json(self, text: Any, table: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, TypeError, RecursionError) as err:
            raise self._damaged(table, str(err)) from err

    def _damaged(self, table: str, why: str) -> StoreError:
        return StoreError(f"{self.file} is damaged: table {table}: {why}", slug="damaged-file")

    def _rows(
        self, table: str, names: tuple[str, ...], order: str = "rowid"
    ) -> list[tuple[Any, ...]]:
        if order == "rowid":
            order = names[0]
        return self._report.rows(f'SELECT {", ".join(names)} FROM "{table}" ORDER BY {order}')


@contextmanager
def open_run(path: str | os.PathLike[str], location: str | None = None) -> Iterator[StoredRun]:
    """Open the summary of a run in a directory, or the file `cluster.sqlite` in it.

    `location` is the original location of the run if `path` is a copy.

    Raises:
        StoreError: The summary is missing, damaged, or a report of another kind.
        SchemaVersionError: Its revision is unknown.
    """
    path = Path(path)
    file = path / SUMMARY_FILE_NAME if path.is_dir() else path
    if path.is_dir() and not file.exists():
        hint = completion_hint(path)
        raise StoreError(
            f"{path} has no {SUMMARY_FILE_NAME}",
            hint=hint or f"build a run: `uprof cluster build {path} -o RUN`",
            slug="no-cluster-run",
        )
    with open_report(file) as report:
        if report.family != CLUSTER:
            raise StoreError(
                f"{file} is a report of one process ({report.family}), not a multi-rank run",
                hint=f"use `uprof report {file}`",
                slug="wrong-kind-of-report",
            )
        yield StoredRun(location or path, report)


def _columns(record: type) -> tuple[str, ...]:
    return tuple(record.__dataclass_fields__)  # type: ignore[attr-defined]


def _floats(values: NDArray[Any]) -> NDArray[np.float64]:
    if isinstance(values, np.ma.MaskedArray):
        known = np.asarray(values.data, np.float64)
        return np.where(np.ma.getmaskarray(values), np.nan, known)
    return np.asarray(values, np.float64)
