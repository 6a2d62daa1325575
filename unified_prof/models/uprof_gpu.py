"""What a recorded GPU trace says and the msprof format has no place for.

Columns documented as a string id point to STRING_IDS. Times are Unix ns.
"""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from unified_prof.models.uprof import UprofBase


class GpuTask(UprofBase):
    """What is known of one task of TASK beyond it: name, launch, resources."""

    __tablename__ = "UPROF_GPU_TASKS"
    global_task_id: Mapped[int] = mapped_column(
        "globalTaskId", primary_key=True, doc="TASK.globalTaskId"
    )
    name: Mapped[int] = mapped_column(doc="string id: kernel, or kind of copy with its memories")
    operation: Mapped[int] = mapped_column(doc="string id: framework operation, or N/A")
    external_id: Mapped[int | None] = mapped_column("externalId", doc="as recorded")
    context_id: Mapped[int | None] = mapped_column("contextId", doc="CUDA context")
    size_bytes: Mapped[int | None] = mapped_column("sizeBytes", doc="bytes copied or set")
    bandwidth_gbps: Mapped[float | None] = mapped_column(
        "bandwidthGBps", doc="of a copy or set, 10**9 bytes a second, as recorded"
    )
    grid_dim: Mapped[int] = mapped_column("gridDim", doc="string id: blocks `x,y,z`, or N/A")
    block_dim: Mapped[int] = mapped_column("blockDim", doc="string id: threads `x,y,z`, or N/A")
    registers_per_thread: Mapped[int | None] = mapped_column("registersPerThread", doc="count")
    shared_memory_bytes: Mapped[int | None] = mapped_column(
        "sharedMemoryBytes", doc="per block, bytes"
    )
    blocks_per_sm: Mapped[float | None] = mapped_column("blocksPerSm", doc="blocks / processors")
    warps_per_sm: Mapped[float | None] = mapped_column("warpsPerSm", doc="warps / processors")
    occupancy_percent: Mapped[float | None] = mapped_column(
        "occupancyPercent", doc="estimated achieved occupancy"
    )
    queued_ns: Mapped[int | None] = mapped_column("queuedNs", doc="as recorded; mostly 0")
    graph_id: Mapped[int | None] = mapped_column("graphId", doc="CUDA graph it ran in")
    graph_node_id: Mapped[int | None] = mapped_column("graphNodeId", doc="node of that graph")


class GpuCollective(UprofBase):
    """Parameters of one row of COMMUNICATION_OP that it has no column for."""

    __tablename__ = "UPROF_COLLECTIVES"
    op_id: Mapped[int] = mapped_column("opId", primary_key=True, doc="COMMUNICATION_OP.opId")
    group_description: Mapped[int] = mapped_column("groupDescription", doc="string id, or N/A")
    group_size: Mapped[int | None] = mapped_column("groupSize", doc="ranks in the group")
    group_ranks: Mapped[int] = mapped_column("groupRanks", doc="string id: list of ranks, or N/A")
    data_type: Mapped[int] = mapped_column("dataType", doc="string id: torch's name, or N/A")
    in_elements: Mapped[int | None] = mapped_column("inElements", doc="of the message sent")
    out_elements: Mapped[int | None] = mapped_column("outElements", doc="of the one received")
    in_split: Mapped[int] = mapped_column("inSplit", doc="string id: elements per rank, or N/A")
    out_split: Mapped[int] = mapped_column("outSplit", doc="string id: elements per rank, or N/A")
    sequence: Mapped[int | None] = mapped_column(doc="number of the call within its group")


class OperationInputs(UprofBase):
    """Inputs of one operation of PYTORCH_API, found by start, thread and name."""

    __tablename__ = "UPROF_OPERATION_INPUTS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="PYTORCH_API.startNs")
    global_tid: Mapped[int] = mapped_column("globalTid", doc="PYTORCH_API.globalTid")
    name: Mapped[int] = mapped_column(doc="PYTORCH_API.name")
    external_id: Mapped[int | None] = mapped_column("externalId", doc="as recorded")
    input_strides: Mapped[int] = mapped_column("inputStrides", doc="string id, or N/A")
    concrete_inputs: Mapped[int] = mapped_column(
        "concreteInputs", doc="string id: JSON list of scalar inputs, or N/A"
    )
    module_hierarchy: Mapped[int] = mapped_column("moduleHierarchy", doc="string id, or N/A")
    __mapper_args__ = {"primary_key": [start_ns, global_tid, name]}  # noqa: RUF012


class GpuAnnotation(UprofBase):
    """The time on one stream that a user annotation's work took."""

    __tablename__ = "UPROF_GPU_ANNOTATIONS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int] = mapped_column("endNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="NPU_INFO.id")
    stream_id: Mapped[int] = mapped_column("streamId", doc="as TASK.streamId")
    name: Mapped[int] = mapped_column(doc="string id")
    external_id: Mapped[int | None] = mapped_column("externalId", doc="as recorded")
    __mapper_args__ = {"primary_key": [start_ns, device_id, stream_id, name]}  # noqa: RUF012


class GpuSync(UprofBase):
    """One synchronisation as the device saw it: somebody waits for a stream or an event."""

    __tablename__ = "UPROF_GPU_SYNCS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int] = mapped_column("endNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="NPU_INFO.id")
    stream_id: Mapped[int | None] = mapped_column(
        "streamId", doc="that waits; NULL: the whole device or the host"
    )
    context_id: Mapped[int | None] = mapped_column("contextId", doc="CUDA context")
    kind: Mapped[int] = mapped_column(doc="string id: Stream Wait Event, Context Sync, ...")
    correlation_id: Mapped[int | None] = mapped_column(
        "correlationId", doc="CANN_API.connectionId of the call, where it was recorded"
    )
    wait_stream: Mapped[int | None] = mapped_column("waitStream", doc="stream waited for")
    wait_event: Mapped[int | None] = mapped_column("waitEvent", doc="CUDA event waited for")
    wait_record: Mapped[int | None] = mapped_column(
        "waitRecord", doc="correlation id of the call that recorded the event"
    )
    __mapper_args__ = {"primary_key": [start_ns, device_id, kind, correlation_id]}  # noqa: RUF012


class Thread(UprofBase):
    """One thread of the host that did something in the recording."""

    __tablename__ = "UPROF_THREADS"
    global_tid: Mapped[int] = mapped_column(
        "globalTid", primary_key=True, doc="process id << 32 | thread id"
    )
    process: Mapped[str] = mapped_column(doc="process id as recorded")
    thread: Mapped[str] = mapped_column(doc="thread id as recorded")
    process_name: Mapped[str | None] = mapped_column("processName", doc="as recorded")
    thread_name: Mapped[str | None] = mapped_column("threadName", doc="as recorded")


class GpuDevice(UprofBase):
    """One property of a device of the recorded host, used or not."""

    __tablename__ = "UPROF_GPU_DEVICES"
    device_id: Mapped[int] = mapped_column("deviceId", primary_key=True, doc="as NPU_INFO.id")
    name: Mapped[str] = mapped_column(primary_key=True, doc="property, such as totalGlobalMem")
    value: Mapped[str | None] = mapped_column(doc="as recorded; lists and mappings are JSON")


class TraceEvent(UprofBase):
    """An event of the recording that no other table has a place for."""

    __tablename__ = "UPROF_TRACE_EVENTS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int | None] = mapped_column("endNs", doc="Unix ns; NULL: an instant")
    category: Mapped[int] = mapped_column(doc="string id: category as recorded")
    name: Mapped[int] = mapped_column(doc="string id")
    process: Mapped[str] = mapped_column(doc="process id as recorded, or a device")
    thread: Mapped[str] = mapped_column(doc="thread id as recorded, or a stream")
    args: Mapped[str | None] = mapped_column(doc="JSON object")
    __mapper_args__ = {"primary_key": [start_ns, category, name]}  # noqa: RUF012


class GpuMetric(UprofBase):
    """One sample of a counter of a device, such as Nsight Systems' GPU metrics."""

    __tablename__ = "UPROF_GPU_METRICS"
    timestamp_ns: Mapped[int] = mapped_column("timestampNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="as NPU_INFO.id")
    name: Mapped[int] = mapped_column(doc="string id: the counter, with its unit as recorded")
    value: Mapped[float | None] = mapped_column(doc="as recorded")
    __mapper_args__ = {"primary_key": [timestamp_ns, device_id, name]}  # noqa: RUF012


class MemoryBlock(UprofBase):
    """One row of OP_MEMORY of a snapshot of the allocator: where it lay and who asked for it."""

    __tablename__ = "UPROF_MEMORY_BLOCKS"
    device_id: Mapped[int] = mapped_column("deviceId", doc="as NPU_INFO.id")
    address: Mapped[int] = mapped_column(doc="on the device")
    size_bytes: Mapped[int] = mapped_column("sizeBytes", doc="OP_MEMORY.size")
    allocation_ns: Mapped[int | None] = mapped_column(
        "allocationNs", doc="Unix ns; NULL: before the history began"
    )
    release_ns: Mapped[int | None] = mapped_column(
        "releaseNs", doc="Unix ns; NULL: in use at the end"
    )
    callchain_id: Mapped[int | None] = mapped_column(
        "callchainId", doc="PYTORCH_CALLCHAINS.id of where it was allocated"
    )
    __mapper_args__ = {"primary_key": [device_id, address, allocation_ns]}  # noqa: RUF012
