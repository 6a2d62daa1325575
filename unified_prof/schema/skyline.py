"""Schemas of Skyline run time and memory reports (also used by DeepView.Profile), revision 1."""

from __future__ import annotations

from typing import Any

from sqlalchemy import REAL, TEXT, Index, PrimaryKeyConstraint, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType


class SkylineRunTimeBase(DeclarativeBase):
    """Base class of the run time report's models."""

    type_annotation_map = {str: TEXT(), float: REAL()}  # noqa: RUF012 (SQLAlchemy's own protocol)


class RunTimeEntry(SkylineRunTimeBase):
    """An invocation of an operation in a training iteration."""

    __tablename__ = "run_time_entries"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number of the entry, in forward order")
    operation_name: Mapped[str] = mapped_column(doc="name of the call in PyTorch, such as conv2d")
    forward_ms: Mapped[float] = mapped_column(doc="time of the forward call, milliseconds")
    backward_ms: Mapped[float | None] = mapped_column(
        doc="time of the backward pass, milliseconds; NULL: not part of the backward pass"
    )


class RunTimeStackFrame(SkylineRunTimeBase):
    """A frame of an entry's call stack, in a file of the user's project."""

    __tablename__ = "stack_frames"
    ordering: Mapped[int] = mapped_column(doc="0 is the frame closest to the operation")
    file_path: Mapped[str] = mapped_column(doc="relative to the project root")
    line_number: Mapped[int] = mapped_column(doc="line in the file, from 1")
    entry_id: Mapped[int] = mapped_column(doc="run_time_entries.id")

    __table_args__ = (PrimaryKeyConstraint("entry_id", "ordering"),)


class _Int(UserDefinedType[int]):
    """Type of a column that the format declares as `INT`; SQLAlchemy would write INTEGER."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in DDL."""
        return "INT"


class SkylineMemoryBase(DeclarativeBase):
    """Base class of the memory report's models."""

    type_annotation_map = {str: TEXT()}  # noqa: RUF012 (SQLAlchemy's own protocol)


class WeightEntry(SkylineMemoryBase):
    """A parameter of the model; a tied parameter appears once."""

    __tablename__ = "weight_entries"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number of the entry")
    name: Mapped[str] = mapped_column(doc="attribute name of the parameter in its module")
    size_bytes: Mapped[int] = mapped_column(doc="bytes of the parameter, not rounded")
    grad_size_bytes: Mapped[int] = mapped_column(doc="bytes of its gradient; 0: no gradient")


class ActivationEntry(SkylineMemoryBase):
    """Memory that an operation saves for the backward pass."""

    __tablename__ = "activation_entries"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number of the entry")
    operation_name: Mapped[str] = mapped_column(doc="name of the operation, as in the run times")
    size_bytes: Mapped[int] = mapped_column(doc="bytes first saved by this operation")


class EntryType(SkylineMemoryBase):
    """Kinds of memory entries: 1 Weight, 2 Activation."""

    __tablename__ = "entry_types"
    entry_type: Mapped[int] = mapped_column(primary_key=True, doc="1 or 2")
    name: Mapped[str] = mapped_column(doc="Weight or Activation")


class StackCorrelation(SkylineMemoryBase):
    """Connects a weight or activation entry to its stack frames."""

    __tablename__ = "stack_correlation"
    correlation_id: Mapped[int] = mapped_column(primary_key=True, doc="key in stack_frames")
    entry_id: Mapped[int] = mapped_column(doc="id in the table given by entry_type")
    entry_type: Mapped[int] = mapped_column(doc="1: weight_entries, 2: activation_entries")

    __table_args__ = (
        UniqueConstraint("correlation_id", "entry_id"),
        Index("entry_type_and_id", "entry_type", "entry_id", unique=True),
    )


class MemoryStackFrame(SkylineMemoryBase):
    """A frame of an entry's call stack, in a file of the user's project."""

    __tablename__ = "stack_frames"
    correlation_id: Mapped[int] = mapped_column(
        primary_key=True, doc="stack_correlation.correlation_id"
    )
    ordering: Mapped[int] = mapped_column(
        primary_key=True, doc="0 is the frame closest to the entry"
    )
    file_path: Mapped[str] = mapped_column(doc="relative to the project root")
    line_number: Mapped[int] = mapped_column(doc="line in the file, from 1")


class MiscSize(SkylineMemoryBase):
    """A size that does not belong to an entry; the only key is peak_usage_bytes."""

    __tablename__ = "misc_sizes"
    key: Mapped[str | None] = mapped_column(primary_key=True, nullable=True, doc="name of the size")
    size_bytes: Mapped[int] = mapped_column(_Int(), doc="bytes, not rounded")
