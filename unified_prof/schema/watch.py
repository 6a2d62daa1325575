"""Schema of watch files: one row per step of one rank, written while the program runs. Revision 1.

Points in time are Unix ns by the host's clock, durations are ns. NULL means unknown. A run of a
rank is one file, or several parts if it was rotated; UPROF_RUN has its rank and origin.
"""

from __future__ import annotations

from sqlalchemy import TEXT
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class WatchBase(DeclarativeBase):
    """Base class of the models of watch files."""

    type_annotation_map = {str: TEXT()}  # noqa: RUF012


class Step(WatchBase):
    """A complete step. Its parts, and other Python code, add up to its length on the CPU."""

    __tablename__ = "STEP"
    step: Mapped[int] = mapped_column(primary_key=True, doc="number from 0 in this run")
    start_ns: Mapped[int] = mapped_column(doc="start, Unix ns")
    length_ns: Mapped[int] = mapped_column(doc="duration on the host")
    data_ns: Mapped[int] = mapped_column(doc="waiting for the DataLoader, on the host")
    forward_ns: Mapped[int | None] = mapped_column(
        doc="forward pass: device time if the device has events, otherwise host time"
    )
    backward_ns: Mapped[int | None] = mapped_column(doc="backward pass, measured as forward_ns")
    optimizer_ns: Mapped[int | None] = mapped_column(
        doc="optimizer, zero_grad and gradient clipping, measured as forward_ns"
    )
    wait_ns: Mapped[int] = mapped_column(
        doc="calls in which the host waits for values of tensors, such as `.item()`"
    )
    gc_ns: Mapped[int] = mapped_column(
        doc="Python's garbage collection; also contained in the parts that it interrupted"
    )
    device_ns: Mapped[int | None] = mapped_column(
        doc="device time of forward, backward and optimizer, which is at least the device's busy "
        "time; on the CPU: CPU time of the process"
    )
    allocated_bytes: Mapped[int | None] = mapped_column(
        doc="allocated device memory at the end; on the CPU: resident memory of the process"
    )
    reserved_bytes: Mapped[int | None] = mapped_column(doc="memory reserved by torch's allocator")
    samples: Mapped[int | None] = mapped_column(
        doc="samples (or tokens) in the step: as passed to step(), otherwise the batch size of the "
        "DataLoader"
    )
    event: Mapped[int | None] = mapped_column(doc="EVENT.id of the capture that slowed this step")


class Event(WatchBase):
    """Something that happened during the run; some events started a capture."""

    __tablename__ = "EVENT"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number from 0 in this run")
    time_ns: Mapped[int] = mapped_column(doc="time, Unix ns")
    step: Mapped[int] = mapped_column(doc="number of the step that ended")
    kind: Mapped[str] = mapped_column(
        doc="slow_step, drift, memory_growth, request, signal, interval, healthy, lost or failed"
    )
    text: Mapped[str] = mapped_column(doc="what happened, in one sentence")
    capture: Mapped[str | None] = mapped_column(
        doc="directory of the capture, relative to the directory of the file; NULL: none"
    )
    status: Mapped[str | None] = mapped_column(
        doc="recording, converting, ready or failed; NULL: no capture"
    )
    finding: Mapped[str | None] = mapped_column(
        doc="first finding of the capture, or why it failed"
    )
