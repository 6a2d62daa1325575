"""Models of tables about device execution: tasks, operators, collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, relationship

from unified_prof.schema.msprof.session import (
    BYTES,
    NUMERIC,
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

if TYPE_CHECKING:
    from unified_prof.schema.msprof.host import CannApi

_TASK = "TASK.globalTaskId"
_CONNECTION = (
    "number shared by a host call and the tasks that it launched; -1: none (4294967295 in files"
    " before 2025-02-18)"
)


class Task(Interval, RowIdentity, MsprofBase):
    """A task executed by a device: a kernel, a copy, an event, a notify or an mstx mark."""

    __tablename__ = "TASK"
    start_ns = time_ns("startNs", "start on the device")
    end_ns = time_ns("endNs", "end on the device")
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    connection_id = column("connectionId", _CONNECTION)
    global_task_id = column(
        "globalTaskId", "number of the task, unique in the file; other tables refer to it"
    )
    global_pid = column("globalPid", "process that launched it")
    task_type_id, task_type = string_id(
        "taskType", "kind of the task on the device, such as KERNEL_AICORE"
    )
    context_id = column(
        "contextId", "part of a subgraph or mix task; 4294967295: the task is not divided"
    )
    stream_id = column("streamId", "stream it ran in")
    task_id = column("taskId", "number in its stream; wraps around")
    model_id = column("modelId", "model to which it belongs; 4294967295: none")

    compute: Mapped[ComputeTask | None] = relationship(
        primaryjoin="foreign(Task.global_task_id) == ComputeTask.global_task_id",
        viewonly=True,
        doc="the operator that it executes",
    )
    schedule: Mapped[CommunicationScheduleTask | None] = relationship(
        primaryjoin="foreign(Task.global_task_id) == CommunicationScheduleTask.global_task_id",
        viewonly=True,
        doc="the scheduling task of collectives that it executes",
    )
    communication: Mapped[CommunicationTask | None] = relationship(
        primaryjoin="Task.global_task_id == foreign(CommunicationTask.global_task_id)",
        viewonly=True,
        doc="the step of a collective that it executes",
    )
    copy: Mapped[MemcpyInfo | None] = relationship(
        primaryjoin="Task.global_task_id == foreign(MemcpyInfo.global_task_id)",
        viewonly=True,
        doc="the memory copy that it executes",
    )
    pmu: Mapped[list[TaskPmu]] = relationship(
        primaryjoin="Task.global_task_id == foreign(TaskPmu.global_task_id)",
        viewonly=True,
        order_by="TaskPmu.rowid",
        doc="values of the hardware counters during it",
    )
    apis: Mapped[list[CannApi]] = relationship(
        primaryjoin="Task.connection_id == foreign(CannApi.connection_id)",
        viewonly=True,
        doc="the host calls that launched it",
    )

    __table_args__ = (
        Index("TaskIndex", "startNs", "globalTaskId"),
        written("--task-time; --msproftx adds the device's mstx marks"),
    )

    @property
    def name(self) -> str | None:
        """Name of the operator or, for other tasks, their type, as viewers display it."""
        part = self.compute or self.communication or self.schedule
        return (part.name if part else None) or self.task_type


class ComputeTask(MsprofBase):
    """An execution of a compute operator."""

    __tablename__ = "COMPUTE_TASK_INFO"
    __table_args__ = written("--task-time")
    name_id, name = string_id("name", "name of the operator")
    global_task_id = column("globalTaskId", "the task", refers=_TASK, key=True)
    block_num = column(
        "blockNum", "number of cores it ran on (block_dim, then blockDim, in older revisions)"
    )
    mix_block_num = column(
        "mixBlockNum",
        "number of cores of the second kind that a mix operator ran on (formerly mixBlockDim)",
    )
    task_type_id, task_type = string_id(
        "taskType", "kind of core on the host side, such as AI_CORE"
    )
    op_type_id, op_type = string_id("opType", "type of the operator, such as MatMul")
    input_formats_id, input_formats = string_id("inputFormats", "formats of the inputs")
    input_data_types_id, input_data_types = string_id("inputDataTypes", "types of the inputs")
    input_shapes_id, input_shapes = string_id(
        "inputShapes", 'shapes of the inputs in double quotes, such as "8,128;128,64"'
    )
    output_formats_id, output_formats = string_id("outputFormats", "formats of the outputs")
    output_data_types_id, output_data_types = string_id("outputDataTypes", "types of the outputs")
    output_shapes_id, output_shapes = string_id(
        "outputShapes", "shapes of the outputs in double quotes"
    )
    attr_info_id, attr_info = string_id("attrInfo", "attributes of the operator")
    op_state_id, op_state = string_id("opState", "dynamic or static shapes; N/A: unknown")
    hf32_eligible_id, hf32_eligible = string_id(
        "hf32Eligible", "YES: HF32 precision may be used; NO: it may not; N/A: unknown"
    )
    grid_dim_id, grid_dim = string_id("gridDim", "grid of a SIMT kernel, x,y,z; or N/A")
    block_dim_id, block_dim = string_id(
        "blockDim",
        "block of a SIMT kernel, x,y,z; or N/A (in older revisions, blockNum had this name)",
    )

    task: Mapped[Task | None] = relationship(
        primaryjoin="ComputeTask.global_task_id == foreign(Task.global_task_id)",
        viewonly=True,
        doc="the task with its time, device and stream",
    )


class CommunicationScheduleTask(MsprofBase):
    """A task with which AI CPUs schedule collectives."""

    __tablename__ = "COMMUNICATION_SCHEDULE_TASK_INFO"
    __table_args__ = written("--task-time, if collectives are scheduled by AI CPUs")
    name_id, name = string_id("name", "name of the operator")
    global_task_id = column("globalTaskId", "the task", refers=_TASK, key=True)
    task_type_id, task_type = string_id("taskType", "kind of core on the host side")
    op_type_id, op_type = string_id("opType", "type of the operator")

    task: Mapped[Task | None] = relationship(
        primaryjoin="CommunicationScheduleTask.global_task_id == foreign(Task.global_task_id)",
        viewonly=True,
        doc="the task with its time, device and stream",
    )


class CommunicationTask(RowIdentity, MsprofBase):
    """A step of a collective: a copy, a reduction or a notify."""

    __tablename__ = "COMMUNICATION_TASK_INFO"
    name_id, name = string_id("name", "name of the step")
    global_task_id = column("globalTaskId", "the task", refers=_TASK)
    task_type_id, task_type = string_id("taskType", "kind of the step")
    plane_id = column("planeId", "network plane it runs in")
    group_name_id, group_name = string_id("groupName", "communicator")
    notify_id = column(
        "notifyId", "number of the notify; -1: none (9223372036854775807 before 1.1.1_20250123)"
    )
    rdma_type_id, rdma_type = enum_id(
        "rdmaType", "ENUM_HCCL_RDMA_TYPE", "purpose of an RDMA transfer"
    )
    src_rank = column("srcRank", "sending rank; 4294967295: none")
    dst_rank = column("dstRank", "receiving rank; 4294967295: none")
    transport_type_id, transport_type = enum_id(
        "transportType", "ENUM_HCCL_TRANSPORT_TYPE", "engine that transfers the data"
    )
    size = column("size", "amount of data", unit=BYTES)
    data_type_id, data_type = enum_id("dataType", "ENUM_HCCL_DATA_TYPE", "type of the elements")
    link_type_id, link_type = enum_id(
        "linkType", "ENUM_HCCL_LINK_TYPE", "link used for the transfer"
    )
    op_id = column("opId", "the collective", refers="COMMUNICATION_OP.opId")
    is_master = column(
        "isMaster",
        "1: in the main stream of the collective, which determines its times; 0: in another stream",
    )
    bandwidth = rate("bandwidth", "rate of the transfer (GB/s * 1024**3 before 2026-05-08)")

    task: Mapped[Task | None] = relationship(
        primaryjoin="foreign(CommunicationTask.global_task_id) == remote(Task.global_task_id)",
        viewonly=True,
        doc="the task with its time, device and stream",
    )
    op: Mapped[CommunicationOp | None] = relationship(
        primaryjoin="foreign(CommunicationTask.op_id) == CommunicationOp.op_id",
        viewonly=True,
        doc="the collective to which the step belongs",
    )

    __table_args__ = (
        Index("CommunicationTaskIndex", "globalTaskId"),
        written("--task-time other than l0, --hccl and --ascendcl, if there are collectives"),
    )


class CommunicationOp(Interval, MsprofBase):
    """A collective, from the start of its first step to the end of its last."""

    __tablename__ = "COMMUNICATION_OP"
    __table_args__ = written("--task-time and --hccl, if there are collectives")
    op_name_id, op_name = string_id(
        "opName", "name of the collective, such as hcom_allReduce__428_0_1"
    )
    start_ns = time_ns("startNs", "start of its first main step")
    end_ns = time_ns("endNs", "end of its last main step")
    connection_id = column(
        "connectionId", "connection id of the host call that launched it; 4294967295: none"
    )
    group_name_id, group_name = string_id("groupName", "communicator")
    op_id = column("opId", "number of the collective, from 0", key=True)
    relay = column("relay", "1: a borrowed link was used; -1: unknown")
    retry = column("retry", "1: data was resent; -1: unknown")
    data_type_id, data_type = enum_id("dataType", "ENUM_HCCL_DATA_TYPE", "type of the elements")
    alg_type_id, alg_type = string_id("algType", "algorithm of each phase, such as HD-MESH")
    count = column("count", "number of elements; -1: unknown", NUMERIC)
    op_type_id, op_type = string_id("opType", "type of the collective, such as hcom_broadcast_")
    device_id = column("deviceId", "the device; -1: not recorded", refers="NPU_INFO.id")
    rank_size = column("rankSize", "ranks in the communicator")

    tasks: Mapped[list[CommunicationTask]] = relationship(
        primaryjoin="CommunicationOp.op_id == foreign(CommunicationTask.op_id)",
        viewonly=True,
        order_by="CommunicationTask.rowid",
        doc="its steps",
    )

    @property
    def name(self) -> str | None:
        """Name of the collective, in the same form as for other operators."""
        return self.op_name


class TaskPmu(RowIdentity, MsprofBase):
    """Value of one hardware counter during one task."""

    __tablename__ = "TASK_PMU_INFO"
    __table_args__ = written("--ai-core with --aic-mode=task-based; --aic-metrics says which")
    global_task_id = column("globalTaskId", "the task", refers=_TASK)
    name_id, name = string_id("name", "the counter, such as mac_ratio")
    value = column("value", "value of the counter, in its unit", NUMERIC)


class MemcpyInfo(RowIdentity, MsprofBase):
    """A memory copy between or within host and device."""

    __tablename__ = "MEMCPY_INFO"
    __table_args__ = written("--runtime-api")
    global_task_id = column("globalTaskId", "the task", NUMERIC, refers=_TASK)
    size = column("size", "amount of data", NUMERIC, unit=BYTES)
    memcpy_operation_id, memcpy_operation = enum_id(
        "memcpyOperation", "ENUM_MEMCPY_OPERATION", "direction of the copy", NUMERIC
    )


class OverlapInterval(Interval, MsprofBase):
    """An interval of a device's time by activity: computing, communicating or idle.

    MindStudio Insight creates a table of this name with different contents in older files.
    """

    __tablename__ = "OVERLAP_ANALYSIS"
    __table_args__ = written("derived, if there are compute operators or collectives")
    id = column("id", "number of the interval, from 0", key=True)
    device_id = column("deviceId", "the device", refers="NPU_INFO.id")
    start_ns = time_ns("startNs", "its start", NUMERIC)
    end_ns = time_ns("endNs", "its end", NUMERIC)
    type_id, type = enum_id("type", "ENUM_OVERLAP_ANALYSIS_TYPE", "kind of activity")


class DpuTask(Interval, RowIdentity, MsprofBase):
    """A task executed by a DPU."""

    __tablename__ = "DPU_TASK"
    __table_args__ = written("if a DPU was recorded")
    dpu_device_id = column("dpuDeviceId", "the DPU")
    global_tid = column("globalTid", "thread id without the process id", NUMERIC)
    start_ns = time_ns("startNs", "its start", NUMERIC)
    end_ns = time_ns("endNs", "its end", NUMERIC)
    global_task_id = column(
        "globalTaskId", "number of the task, unique in the file with those of TASK", NUMERIC
    )
    stream_id = column("streamId", "stream it ran in", NUMERIC)
    task_id = column("taskId", "number in its stream", NUMERIC)
    op_name_id, op_name = string_id("opName", "name of the operator", NUMERIC)
    args_id, args = string_id("args", "JSON mapping with details of the task", NUMERIC)


class CcuTask(Interval, RowIdentity, MsprofBase):
    """A mission of a collective communication unit (Ascend 950)."""

    __tablename__ = "CCU"
    __table_args__ = written("if collective communication units were recorded (Ascend 950)")
    device_id = column("deviceId", "the device", NUMERIC, refers="NPU_INFO.id")
    global_task_id = column("globalTaskId", "the task", NUMERIC, refers=_TASK)
    name_id, name = string_id("name", "name of the mission", NUMERIC)
    start_ns = time_ns("startNs", "its start", NUMERIC)
    end_ns = time_ns("endNs", "its end", NUMERIC)
    args_id, args = string_id("args", "JSON mapping with details of the mission", NUMERIC)
