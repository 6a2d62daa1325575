"""What uprof adds to a report, in tables of its own: never in a vendor's table.

The same tables serve both families; each exists only where it has rows.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import DOUBLE
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class UprofBase(DeclarativeBase):
    """Registry of the UPROF_ tables."""

    # SQLAlchemy 2.0 would write FLOAT, 2.1 writes DOUBLE.
    type_annotation_map: ClassVar[dict[type, TypeEngine[Any]]] = {float: DOUBLE()}


class Run(UprofBase):
    """One fact about how the report came to be (provenance)."""

    __tablename__ = "UPROF_RUN"
    name: Mapped[str] = mapped_column(primary_key=True, doc="what the fact is about")
    value: Mapped[str | None] = mapped_column(doc="the fact; lists and mappings are JSON")


class Anomaly(UprofBase):
    """Something that was skipped, truncated, unmatched, unknown or could not be measured."""

    __tablename__ = "UPROF_ANOMALIES"
    name: Mapped[str] = mapped_column(primary_key=True, doc="kind of anomaly, snake_case")
    count: Mapped[int] = mapped_column(doc="how often")
    detail: Mapped[str | None] = mapped_column(doc="the first case, in words")


class Iteration(UprofBase):
    """One measured iteration of a Skyline run."""

    __tablename__ = "UPROF_ITERATIONS"
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="number from 0, warm-up excluded")
    total_ms: Mapped[float] = mapped_column(doc="wall or device time of the whole iteration, ms")
    forward_ms: Mapped[float | None] = mapped_column(doc="outside backward and optimizer, ms")
    backward_ms: Mapped[float | None] = mapped_column(doc="inside the autograd engine, ms")
    peak_usage_bytes: Mapped[int | None] = mapped_column(doc="peak of this iteration, bytes")
    matched: Mapped[int] = mapped_column(
        doc="1: same operation sequence as the report's entries; 0: differs, not averaged"
    )
    waited_ms: Mapped[float | None] = mapped_column(
        doc="part of total_ms in which the program's thread waited for a processor, ms; "
        "NULL: not known, or total_ms is a device's time"
    )
    forward_waited_ms: Mapped[float | None] = mapped_column(
        doc="part of forward_ms in which it waited so, ms; NULL likewise"
    )
    backward_waited_ms: Mapped[float | None] = mapped_column(
        doc="part of backward_ms in which it waited so, ms; NULL likewise"
    )


class RunTimeSample(UprofBase):
    """One operation's time in one iteration: the sample behind a run_time_entries median."""

    __tablename__ = "UPROF_RUN_TIME_SAMPLES"
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="run_time_entries.id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    forward_ms: Mapped[float] = mapped_column(doc="forward time of this call, ms")
    backward_ms: Mapped[float | None] = mapped_column(doc="backward time of this call, ms, or NULL")


class Gap(UprofBase):
    """Time before an operation in which no operation ran: the lines of the project that took it."""

    __tablename__ = "UPROF_GAPS"
    entry_id: Mapped[int] = mapped_column(
        primary_key=True, doc="run_time_entries.id of the operation that follows"
    )
    file_path: Mapped[str] = mapped_column(doc="relative to the project root")
    first_line: Mapped[int] = mapped_column(doc="first line that can have taken it, from 1")
    last_line: Mapped[int] = mapped_column(doc="last such line; often the same")


class GapSample(UprofBase):
    """One such time in one iteration."""

    __tablename__ = "UPROF_GAP_SAMPLES"
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_GAPS.entry_id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    gap_ms: Mapped[float] = mapped_column(doc="between the two operations, ms")


class ModulePath(UprofBase):
    """The qualified nn.Module path an entry belongs to, such as `encoder.layers.0.linear1`."""

    __tablename__ = "UPROF_MODULES"
    kind: Mapped[str] = mapped_column(primary_key=True, doc="operation, weight or activation")
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="id in the kind's entry table")
    module_path: Mapped[str] = mapped_column(doc="as in named_modules(); '' is the root model")
    module_class: Mapped[str | None] = mapped_column(doc="class name of that module")


class Region(UprofBase):
    """A region that the program marks: record_function, or a range of NVTX."""

    __tablename__ = "UPROF_REGIONS"
    region_id: Mapped[int] = mapped_column(primary_key=True, doc="number from 1")
    name: Mapped[str] = mapped_column(doc="as the program names it")
    around: Mapped[int | None] = mapped_column(
        doc="UPROF_REGIONS.region_id of the one that it was opened in; NULL: in none"
    )
    peak_usage_bytes: Mapped[int | None] = mapped_column(
        doc="highest allocation while it was open, bytes; NULL: not measured"
    )


class RegionCount(UprofBase):
    """How often a region was opened in one iteration; no row where it was not."""

    __tablename__ = "UPROF_REGION_COUNTS"
    region_id: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_REGIONS.region_id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    count: Mapped[int] = mapped_column(doc="how often")


class RegionEntry(UprofBase):
    """The innermost region around an operation; its backward pass belongs there too."""

    __tablename__ = "UPROF_REGION_ENTRIES"
    kind: Mapped[str] = mapped_column(primary_key=True, doc="operation or activation")
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="id in the kind's entry table")
    region_id: Mapped[int] = mapped_column(doc="UPROF_REGIONS.region_id")
