"""Models of host tables: API calls, marks, resource usage, and the tables that torch_npu appends.

The tables that torch_npu appends record PyTorch's activity on the host. They are not part of any
revision of the msprof schema, have neither keys nor indexes, and use NULL for unknown values.
"""

from __future__ import annotations

from sqlalchemy import TEXT
from sqlalchemy.orm import Mapped, relationship

from unified_prof.schema.msprof.session import (
    BYTES,
    NUMERIC,
    PERCENT,
    Interval,
    MsprofBase,
    RowIdentity,
    column,
    enum_id,
    rate,
    string_id,
    time_ns,
    written,
)
from unified_prof.schema.msprof.tasks import Task

_GLOBAL_TID = "process number in the upper 32 bits, thread number in the lower 32"


class CannApi(Interval, MsprofBase):
    """A call of a CANN API, at any level of the software stack."""

    __tablename__ = "CANN_API"
    __table_args__ = written("--ascendcl")
    start_ns = time_ns("startNs", "start of the call")
    end_ns = time_ns("endNs", "end of the call")
    type_id, type = enum_id("type", "ENUM_API_TYPE", "level of the stack")
    global_tid = column("globalTid", f"thread: {_GLOBAL_TID}")
    connection_id = column(
        "connectionId", "number by which TASK and COMMUNICATION_OP refer to the call", key=True
    )
    name_id, name = string_id("name", "name of the call, such as launch")

    tasks: Mapped[list[Task]] = relationship(
        primaryjoin="CannApi.connection_id == foreign(Task.connection_id)",
        viewonly=True,
        order_by="Task.start_ns",
        doc="the tasks that it launched",
    )


class MstxEvent(Interval, RowIdentity, MsprofBase):
    """A mark or range that the application set with mstx."""

    __tablename__ = "MSTX_EVENTS"
    __table_args__ = written("--msproftx, if the application sets marks")
    start_ns = time_ns("startNs", "the mark, or the start of the range")
    end_ns = time_ns("endNs", "the mark, or the end of the range")
    event_type_id, event_type = enum_id(
        "eventType", "ENUM_MSTX_EVENT_TYPE", "mark or kind of range"
    )
    range_id = column("rangeId", "unused: 4294967295")
    category = column("category", "category; 4294967295: none")
    message_id, message = string_id("message", "the application's text")
    global_tid = column("globalTid", f"thread at the start: {_GLOBAL_TID}")
    end_global_tid = column("endGlobalTid", "thread at the end, like globalTid")
    domain_id, domain = string_id("domainId", "name of the domain")
    connection_id = column(
        "connectionId",
        "TASK.connectionId of its mark on the device, from 4000000001; 4000000000: host only"
        " (4294967295 before 2024-10-31)",
    )


class OsrtApi(Interval, RowIdentity, MsprofBase):
    """A system call or a call of the thread library."""

    __tablename__ = "OSRT_API"
    __table_args__ = written("--host-sys=osrt")
    name_id, name = string_id("name", "name of the call", NUMERIC)
    global_tid = column("globalTid", f"thread: {_GLOBAL_TID}", NUMERIC)
    start_ns = time_ns("startNs", "start of the call", NUMERIC)
    end_ns = time_ns("endNs", "end of the call", NUMERIC)


class CpuUsage(RowIdentity, MsprofBase):
    """Usage of one CPU by the recorded process in one sampling interval."""

    __tablename__ = "CPU_USAGE"
    __table_args__ = written("--host-sys=cpu")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    cpu_id = column("cpuId", "the CPU", NUMERIC)
    usage = column("usage", "share of the interval in which it was used", NUMERIC, unit=PERCENT)


class HostMemoryUsage(RowIdentity, MsprofBase):
    """Host memory usage of the recorded process."""

    __tablename__ = "HOST_MEM_USAGE"
    __table_args__ = written("--host-sys=mem")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    usage = column("usage", "share of the host's memory", NUMERIC, unit=PERCENT)


class HostDiskUsage(RowIdentity, MsprofBase):
    """Host disk usage of the recorded process."""

    __tablename__ = "HOST_DISK_USAGE"
    __table_args__ = written("--host-sys=disk")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    read_rate = rate("readRate", "read")
    write_rate = rate("writeRate", "written")
    usage = column("usage", "share of the time spent waiting for disks", NUMERIC, unit=PERCENT)


class HostNetworkUsage(RowIdentity, MsprofBase):
    """Usage of the host's network cards by all processes."""

    __tablename__ = "HOST_NETWORK_USAGE"
    __table_args__ = written("--host-sys=network")
    timestamp_ns = time_ns("timestampNs", "the sample", NUMERIC)
    usage = column("usage", "share of the cards' bandwidth", NUMERIC, unit=PERCENT)
    speed = rate("speed", "sent and received")


class PytorchApi(RowIdentity, MsprofBase):
    """A PyTorch operation, task queue step or mark on the host."""

    __tablename__ = "PYTORCH_API"
    __table_args__ = written("torch_npu's profiler, for host activities")
    start_ns_text = time_ns("startNs", "start, as text", TEXT)
    end_ns_text = time_ns("endNs", "end, as text", TEXT)
    global_tid = column("globalTid", f"thread: {_GLOBAL_TID}")
    connection_id = column(
        "connectionId", "id of its connections; NULL: none", refers="CONNECTION_IDS.id"
    )
    name_id, name = string_id("name", "name of the operation, such as aten::mm")
    sequence_number = column(
        "sequenceNumber", "autograd's number, shared by forward and backward; -1 or NULL: none"
    )
    fwd_thread_id = column("fwdThreadId", "thread of the forward call")
    input_dtypes_id, input_dtypes = string_id("inputDtypes", "types of the inputs")
    input_shapes_id, input_shapes = string_id("inputShapes", "shapes of the inputs")
    callchain_id = column(
        "callchainId", "call stack from which it was called", refers="PYTORCH_CALLCHAINS.id"
    )
    type_id, type = enum_id("type", "ENUM_API_TYPE", "operation, queue step or mark")

    frames: Mapped[list[PytorchCallchain]] = relationship(
        primaryjoin="PytorchApi.callchain_id == foreign(PytorchCallchain.id)",
        viewonly=True,
        order_by="PytorchCallchain.stack_depth",
        doc="the call stack, innermost frame first",
    )

    @property
    def start_ns(self) -> int | None:
        """Start, ns since 1970."""
        return None if self.start_ns_text is None else int(self.start_ns_text)

    @property
    def end_ns(self) -> int | None:
        """End, ns since 1970."""
        return None if self.end_ns_text is None else int(self.end_ns_text)

    @property
    def duration_ns(self) -> int | None:
        """Duration in ns."""
        start, end = self.start_ns, self.end_ns
        return None if start is None or end is None else end - start


class PytorchConnection(RowIdentity, MsprofBase):
    """A connection from an operation to another operation or to a device task."""

    __tablename__ = "CONNECTION_IDS"
    __table_args__ = written("torch_npu's profiler, for host activities")
    id = column("id", "number that PYTORCH_API.connectionId refers to")
    connection_id = column(
        "connectionId",
        "shared by connected rows; also in CANN_API.connectionId and TASK.connectionId",
    )


class PytorchCallchain(RowIdentity, MsprofBase):
    """A frame of a call stack."""

    __tablename__ = "PYTORCH_CALLCHAINS"
    __table_args__ = written("torch_npu's profiler, with_stack=True")
    id = column("id", "number that PYTORCH_API.callchainId refers to")
    stack_id, stack = string_id("stack", "the frame: file(line): function")
    stack_depth = column("stackDepth", "0 is the innermost frame")


class StepTime(Interval, RowIdentity, MsprofBase):
    """A step of the training loop."""

    __tablename__ = "STEP_TIME"
    __table_args__ = written("torch_npu's profiler, if step() is called")
    id = column("id", "number of the step")
    start_ns = time_ns("startNs", "its start")
    end_ns = time_ns("endNs", "its end")


class MemoryRecord(RowIdentity, MsprofBase):
    """State of an allocator after a change."""

    __tablename__ = "MEMORY_RECORD"
    __table_args__ = written("torch_npu's profiler, profile_memory=True")
    component_id, component = string_id("component", "the allocator, such as PTA or GE")
    timestamp = time_ns("timestamp", "time of the change")
    total_allocated = column("totalAllocated", "in use by tensors", unit=BYTES)
    total_reserved = column("totalReserved", "reserved from the driver", unit=BYTES)
    total_active = column("totalActive", "in use, or waiting for a stream", unit=BYTES)
    stream_ptr = column("streamPtr", "address of the stream")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class OpMemory(RowIdentity, MsprofBase):
    """A block of device memory from its allocation by an operation to its release."""

    __tablename__ = "OP_MEMORY"
    __table_args__ = written("torch_npu's profiler, profile_memory=True")
    name_id, name = string_id("name", "the operation that allocated it")
    size = column("size", "its size", unit=BYTES)
    allocation_time = time_ns("allocationTime", "time of the allocation")
    release_time = time_ns("releaseTime", "time of the release; NULL: never released")
    active_release_time = time_ns("activeReleaseTime", "time from which no stream needed it")
    duration = column("duration", "time from allocation to release", unit="ns")
    active_duration = column(
        "activeDuration", "time from allocation to the end of its use", unit="ns"
    )
    allocation_total_allocated = column(
        "allocationTotalAllocated", "in use by tensors after its allocation", unit=BYTES
    )
    allocation_total_reserved = column(
        "allocationTotalReserved", "reserved from the driver after its allocation", unit=BYTES
    )
    allocation_total_active = column(
        "allocationTotalActive", "in use or waiting after its allocation", unit=BYTES
    )
    release_total_allocated = column(
        "releaseTotalAllocated", "in use by tensors after its release", unit=BYTES
    )
    release_total_reserved = column(
        "releaseTotalReserved", "reserved from the driver after its release", unit=BYTES
    )
    release_total_active = column(
        "releaseTotalActive", "in use or waiting after its release", unit=BYTES
    )
    stream_ptr = column("streamPtr", "address of the stream")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")


class GcRecord(Interval, RowIdentity, MsprofBase):
    """A run of Python's garbage collector."""

    __tablename__ = "GC_RECORD"
    __table_args__ = written("torch_npu's profiler, if garbage collection is recorded")
    start_ns = time_ns("startNs", "its start")
    end_ns = time_ns("endNs", "its end")
    global_tid = column("globalTid", f"thread: {_GLOBAL_TID}")
