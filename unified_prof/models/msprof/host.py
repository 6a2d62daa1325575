"""Tables about what the host did: API calls, marks, use of CPU, memory, disk and network."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, relationship

from unified_prof.models.msprof.base import (
    BYTES_PER_S,
    NUMERIC,
    PERCENT,
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
from unified_prof.models.msprof.tasks import Task

_GLOBAL_TID = "process number in the upper 32 bits, thread number in the lower 32"


class CannApi(Interval, MsprofBase):
    """One call of an interface of CANN, at any level of its stack."""

    __tablename__ = "CANN_API"
    __table_args__ = written("--ascendcl")
    start_ns: Mapped[int | None] = time_ns("startNs", "when it was called")
    end_ns: Mapped[int | None] = time_ns("endNs", "when it returned")
    type_id: Mapped[int | None] = enum_id("type", "ENUM_API_TYPE", "level of the stack")
    global_tid: Mapped[int | None] = column("globalTid", f"thread: {_GLOBAL_TID}")
    connection_id: Mapped[int] = column(
        "connectionId", "number that TASK and COMMUNICATION_OP refer to the call by", key=True
    )
    name_id: Mapped[int | None] = string_id("name", "name of the call, such as launch")

    type = Text("type_id")
    name = Text("name_id")

    tasks: Mapped[list[Task]] = relationship(
        primaryjoin="CannApi.connection_id == foreign(Task.connection_id)",
        viewonly=True,
        order_by="Task.start_ns",
        doc="the tasks it launched",
    )


class MstxEvent(Interval, RowIdentity, MsprofBase):
    """One mark or range that the application set with mstx."""

    __tablename__ = "MSTX_EVENTS"
    __table_args__ = written("--msproftx, where the application sets marks")
    start_ns: Mapped[int | None] = time_ns("startNs", "the mark, or the start of the range")
    end_ns: Mapped[int | None] = time_ns("endNs", "the mark, or the end of the range")
    event_type_id: Mapped[int | None] = enum_id(
        "eventType", "ENUM_MSTX_EVENT_TYPE", "mark or kind of range"
    )
    range_id: Mapped[int | None] = column("rangeId", "unused: 4294967295")
    category: Mapped[int | None] = column("category", "category; 4294967295: none")
    message_id: Mapped[int | None] = string_id("message", "the application's text")
    global_tid: Mapped[int | None] = column("globalTid", f"thread at the start: {_GLOBAL_TID}")
    end_global_tid: Mapped[int | None] = column("endGlobalTid", "thread at the end, like globalTid")
    domain_id: Mapped[int | None] = string_id("domainId", "name of the domain")
    connection_id: Mapped[int | None] = column(
        "connectionId",
        "TASK.connectionId of its mark on the device, from 4000000001; 4000000000: host only"
        " (4294967295 before 2024-10-31)",
    )

    event_type = Text("event_type_id")
    message = Text("message_id")
    domain = Text("domain_id")


class OsrtApi(Interval, RowIdentity, MsprofBase):
    """One system call or call of the thread library."""

    __tablename__ = "OSRT_API"
    __table_args__ = written("--host-sys=osrt")
    name_id: Mapped[int | None] = string_id("name", "name of the call", NUMERIC)
    global_tid: Mapped[int | None] = column("globalTid", f"thread: {_GLOBAL_TID}", NUMERIC)
    start_ns: Mapped[int | None] = time_ns("startNs", "when it was called", NUMERIC)
    end_ns: Mapped[int | None] = time_ns("endNs", "when it returned", NUMERIC)

    name = Text("name_id")


class CpuUsage(RowIdentity, MsprofBase):
    """Use of one CPU by the recorded process in one sampling interval."""

    __tablename__ = "CPU_USAGE"
    __table_args__ = written("--host-sys=cpu")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    cpu_id: Mapped[int | None] = column("cpuId", "the CPU", NUMERIC)
    usage: Mapped[float | None] = column("usage", "share of its time", NUMERIC, unit=PERCENT)


class HostMemoryUsage(RowIdentity, MsprofBase):
    """Use of the host's memory by the recorded process."""

    __tablename__ = "HOST_MEM_USAGE"
    __table_args__ = written("--host-sys=mem")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    usage: Mapped[float | None] = column("usage", "share of all memory", NUMERIC, unit=PERCENT)


class HostDiskUsage(RowIdentity, MsprofBase):
    """Use of the host's disks by the recorded process."""

    __tablename__ = "HOST_DISK_USAGE"
    __table_args__ = written("--host-sys=disk")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    read_rate: Mapped[float | None] = column("readRate", "read", NUMERIC, unit=BYTES_PER_S)
    write_rate: Mapped[float | None] = column("writeRate", "written", NUMERIC, unit=BYTES_PER_S)
    usage: Mapped[float | None] = column(
        "usage", "share of the time spent waiting for disks", NUMERIC, unit=PERCENT
    )


class HostNetworkUsage(RowIdentity, MsprofBase):
    """Use of the host's network cards by everything that runs there."""

    __tablename__ = "HOST_NETWORK_USAGE"
    __table_args__ = written("--host-sys=network")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample", NUMERIC)
    usage: Mapped[float | None] = column(
        "usage", "share of what the cards can carry", NUMERIC, unit=PERCENT
    )
    speed: Mapped[float | None] = column("speed", "sent and received", NUMERIC, unit=BYTES_PER_S)
