"""Tables that torch_npu appends to an msprof database: what PyTorch did on the host.

They are no part of the msprof schema and of no revision of it, have neither keys nor indexes,
and hold NULL where something is not known.
"""

from __future__ import annotations

from sqlalchemy import TEXT
from sqlalchemy.orm import Mapped, relationship

from unified_prof.models.msprof.base import (
    BYTES,
    Interval,
    MsprofBase,
    RowIdentity,
    Text,
    column,
    enum_id,
    string_id,
    time_ns,
    written,
)

_THREAD = "process number in the upper 32 bits, thread number in the lower 32"
_BY = "torch_npu's profiler"


class PytorchApi(RowIdentity, MsprofBase):
    """One operation, queue step or mark on PyTorch's side of the host."""

    __tablename__ = "PYTORCH_API"
    __table_args__ = written("torch_npu's profiler, for host activities")
    start_ns_text: Mapped[str | None] = time_ns("startNs", "when it began, as text", TEXT)
    end_ns_text: Mapped[str | None] = time_ns("endNs", "when it ended, as text", TEXT)
    global_tid: Mapped[int | None] = column("globalTid", f"thread: {_THREAD}")
    connection_id: Mapped[int | None] = column(
        "connectionId", "its connections; NULL: none", refers="CONNECTION_IDS.id"
    )
    name_id: Mapped[int | None] = string_id("name", "name of the operation, such as aten::mm")
    sequence_number: Mapped[int | None] = column(
        "sequenceNumber", "autograd's number, shared by forward and backward; -1 or NULL: none"
    )
    fwd_thread_id: Mapped[int | None] = column("fwdThreadId", "thread of the forward call")
    input_dtypes_id: Mapped[int | None] = string_id("inputDtypes", "types of the inputs")
    input_shapes_id: Mapped[int | None] = string_id("inputShapes", "shapes of the inputs")
    callchain_id: Mapped[int | None] = column(
        "callchainId", "where it was called from", refers="PYTORCH_CALLCHAINS.id"
    )
    type_id: Mapped[int | None] = enum_id("type", "ENUM_API_TYPE", "operation, queue step or mark")

    name = Text("name_id")
    input_dtypes = Text("input_dtypes_id")
    input_shapes = Text("input_shapes_id")
    type = Text("type_id")

    frames: Mapped[list[PytorchCallchain]] = relationship(
        primaryjoin="PytorchApi.callchain_id == foreign(PytorchCallchain.id)",
        viewonly=True,
        order_by="PytorchCallchain.stack_depth",
        doc="the call stack, innermost frame first",
    )

    @property
    def start_ns(self) -> int | None:
        """When it began, ns since 1970."""
        return None if self.start_ns_text is None else int(self.start_ns_text)

    @property
    def end_ns(self) -> int | None:
        """When it ended, ns since 1970."""
        return None if self.end_ns_text is None else int(self.end_ns_text)

    @property
    def duration_ns(self) -> int | None:
        """The time from start to end in ns."""
        start, end = self.start_ns, self.end_ns
        return None if start is None or end is None else end - start


class PytorchConnection(RowIdentity, MsprofBase):
    """One connection of an operation: to another operation, or to what the device executed."""

    __tablename__ = "CONNECTION_IDS"
    __table_args__ = written("torch_npu's profiler, for host activities")
    id: Mapped[int | None] = column("id", "number that PYTORCH_API.connectionId refers to")
    connection_id: Mapped[int | None] = column(
        "connectionId", "shared by what is connected; also CANN_API.connectionId, TASK's"
    )


class PytorchCallchain(RowIdentity, MsprofBase):
    """One frame of one call stack."""

    __tablename__ = "PYTORCH_CALLCHAINS"
    __table_args__ = written("torch_npu's profiler, with_stack=True")
    id: Mapped[int | None] = column("id", "number that PYTORCH_API.callchainId refers to")
    stack_id: Mapped[int | None] = string_id("stack", "the frame: file(line): function")
    stack_depth: Mapped[int | None] = column("stackDepth", "0 is the innermost frame")

    stack = Text("stack_id")


class StepTime(Interval, RowIdentity, MsprofBase):
    """One step of the training loop."""

    __tablename__ = "STEP_TIME"
    __table_args__ = written("torch_npu's profiler, where step() is called")
    id: Mapped[int | None] = column("id", "number of the step")
    start_ns: Mapped[int | None] = time_ns("startNs", "its start")
    end_ns: Mapped[int | None] = time_ns("endNs", "its end")


class MemoryRecord(RowIdentity, MsprofBase):
    """The state of one allocator after it changed."""

    __tablename__ = "MEMORY_RECORD"
    __table_args__ = written("torch_npu's profiler, profile_memory=True")
    component_id: Mapped[int | None] = string_id("component", "the allocator, such as PTA or GE")
    timestamp: Mapped[int | None] = time_ns("timestamp", "when it changed")
    total_allocated: Mapped[int | None] = column("totalAllocated", "in use by tensors", unit=BYTES)
    total_reserved: Mapped[int | None] = column("totalReserved", "held from the driver", unit=BYTES)
    total_active: Mapped[int | None] = column(
        "totalActive", "in use, or waiting for a stream", unit=BYTES
    )
    stream_ptr: Mapped[int | None] = column("streamPtr", "address of the stream")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")

    component = Text("component_id")


class OpMemory(RowIdentity, MsprofBase):
    """One piece of device memory that an operation allocated, from then to its release."""

    __tablename__ = "OP_MEMORY"
    __table_args__ = written("torch_npu's profiler, profile_memory=True")
    name_id: Mapped[int | None] = string_id("name", "the operation that allocated it")
    size: Mapped[int | None] = column("size", "its size", unit=BYTES)
    allocation_time: Mapped[int | None] = time_ns("allocationTime", "when it was allocated")
    release_time: Mapped[int | None] = time_ns("releaseTime", "when it was released; NULL: never")
    active_release_time: Mapped[int | None] = time_ns(
        "activeReleaseTime", "when no stream needed it any more"
    )
    duration: Mapped[int | None] = column("duration", "allocation to release", unit="ns")
    active_duration: Mapped[int | None] = column(
        "activeDuration", "allocation to the end of its use", unit="ns"
    )
    allocation_total_allocated: Mapped[int | None] = column(
        "allocationTotalAllocated", "in use by tensors after its allocation", unit=BYTES
    )
    allocation_total_reserved: Mapped[int | None] = column(
        "allocationTotalReserved", "held from the driver after its allocation", unit=BYTES
    )
    allocation_total_active: Mapped[int | None] = column(
        "allocationTotalActive", "in use or waiting after its allocation", unit=BYTES
    )
    release_total_allocated: Mapped[int | None] = column(
        "releaseTotalAllocated", "in use by tensors after its release", unit=BYTES
    )
    release_total_reserved: Mapped[int | None] = column(
        "releaseTotalReserved", "held from the driver after its release", unit=BYTES
    )
    release_total_active: Mapped[int | None] = column(
        "releaseTotalActive", "in use or waiting after its release", unit=BYTES
    )
    stream_ptr: Mapped[int | None] = column("streamPtr", "address of the stream")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")

    name = Text("name_id")


class GcRecord(Interval, RowIdentity, MsprofBase):
    """One run of Python's garbage collector."""

    __tablename__ = "GC_RECORD"
    __table_args__ = written("torch_npu's profiler, where garbage collection is recorded")
    start_ns: Mapped[int | None] = time_ns("startNs", "its start")
    end_ns: Mapped[int | None] = time_ns("endNs", "its end")
    global_tid: Mapped[int | None] = column("globalTid", f"thread: {_THREAD}")
