"""The Skyline run time report (also DeepView.Profile's), revision 1."""

from __future__ import annotations

from sqlalchemy import REAL, TEXT, PrimaryKeyConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class SkylineRunTimeBase(DeclarativeBase):
    """Registry of the run time report's tables."""

    type_annotation_map = {str: TEXT(), float: REAL()}  # noqa: RUF012 (SQLAlchemy's own protocol)


class RunTimeEntry(SkylineRunTimeBase):
    """One invocation of one operation in a training iteration."""

    __tablename__ = "run_time_entries"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number of the entry, in forward order")
    operation_name: Mapped[str] = mapped_column(doc="torch's name of the call, such as conv2d")
    forward_ms: Mapped[float] = mapped_column(doc="time of the forward call, milliseconds")
    backward_ms: Mapped[float | None] = mapped_column(
        doc="time of its backward, milliseconds; NULL: it took no part in the backward pass"
    )


class RunTimeStackFrame(SkylineRunTimeBase):
    """One frame of the call stack, in a file of the user's project, that led to an entry."""

    __tablename__ = "stack_frames"
    ordering: Mapped[int] = mapped_column(doc="0 is the frame closest to the operation")
    file_path: Mapped[str] = mapped_column(doc="relative to the project root")
    line_number: Mapped[int] = mapped_column(doc="line in the file, from 1")
    entry_id: Mapped[int] = mapped_column(doc="run_time_entries.id")

    __table_args__ = (PrimaryKeyConstraint("entry_id", "ordering"),)
