"""Tables that uprof adds to a report; it never changes a vendor's table.

All families use the same tables; each table exists only if it has rows. The GPU tables store data
of GPU traces that the msprof format cannot store. Columns documented as `string id` refer to
STRING_IDS; times are Unix ns.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import DOUBLE
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class UprofBase(DeclarativeBase):
    """Base class of the models of UPROF_ tables."""

    # SQLAlchemy 2.0 would write FLOAT, 2.1 writes DOUBLE.
    type_annotation_map: ClassVar[dict[type, TypeEngine[Any]]] = {float: DOUBLE()}


class Run(UprofBase):
    """A fact about the origin of the report (provenance)."""

    __tablename__ = "UPROF_RUN"
    name: Mapped[str] = mapped_column(primary_key=True, doc="name of the fact")
    value: Mapped[str | None] = mapped_column(doc="the fact; lists and mappings are JSON")


class Anomaly(UprofBase):
    """Data that was skipped, truncated, unmatched, unknown or could not be measured."""

    __tablename__ = "UPROF_ANOMALIES"
    name: Mapped[str] = mapped_column(primary_key=True, doc="kind of anomaly, snake_case")
    count: Mapped[int] = mapped_column(doc="number of occurrences")
    detail: Mapped[str | None] = mapped_column(doc="description of the first occurrence")


class Coverage(UprofBase):
    """Size of one kind of data in a converted recording; the last three columns add up to it."""

    __tablename__ = "UPROF_COVERAGE"
    kind: Mapped[str] = mapped_column(primary_key=True, doc="kind of file, table or event")
    unit: Mapped[str] = mapped_column(primary_key=True, doc="bytes, rows or events")
    total: Mapped[int] = mapped_column(doc="size in the recording, decompressed")
    decoded: Mapped[int] = mapped_column(doc="decoded to rows, names or times of this database")
    skipped: Mapped[int] = mapped_column(doc="damaged, inconsistent or not evaluated")
    without_table: Mapped[int] = mapped_column(doc="of a kind that no decoder reads")


class Iteration(UprofBase):
    """A measured iteration of a Skyline run."""

    __tablename__ = "UPROF_ITERATIONS"
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="number from 0, warm-up excluded")
    total_ms: Mapped[float] = mapped_column(doc="wall or device time of the whole iteration, ms")
    forward_ms: Mapped[float | None] = mapped_column(
        doc="forward time: outside backward pass and optimizer, ms"
    )
    backward_ms: Mapped[float | None] = mapped_column(
        doc="backward time: inside the autograd engine, ms"
    )
    peak_usage_bytes: Mapped[int | None] = mapped_column(doc="peak memory of this iteration, bytes")
    matched: Mapped[int] = mapped_column(
        doc="1: same operation sequence as the report's entries; 0: differs, not averaged"
    )
    waited_ms: Mapped[float | None] = mapped_column(
        doc="part of total_ms in which the program's thread waited for a CPU, ms; "
        "NULL: unknown, or total_ms is device time"
    )
    forward_waited_ms: Mapped[float | None] = mapped_column(doc="the same part of forward_ms, ms")
    backward_waited_ms: Mapped[float | None] = mapped_column(doc="the same part of backward_ms, ms")
    cpu_ms: Mapped[float | None] = mapped_column(
        doc="CPU time of all threads of the process, ms; NULL: unknown, or total_ms is device time"
    )
    forward_cpu_ms: Mapped[float | None] = mapped_column(doc="the same within forward_ms, ms")
    backward_cpu_ms: Mapped[float | None] = mapped_column(doc="the same within backward_ms, ms")


class IterationPart(UprofBase):
    """Time of a part of an iteration outside its forward and backward passes."""

    __tablename__ = "UPROF_ITERATION_PARTS"
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    part: Mapped[str] = mapped_column(primary_key=True, doc="optimizer, data_loading and others")
    ms: Mapped[float] = mapped_column(doc="time of the part without waiting for a CPU, ms")


class RunTimeSample(UprofBase):
    """Time of an operation in one iteration; run_time_entries has the median of these samples."""

    __tablename__ = "UPROF_RUN_TIME_SAMPLES"
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="run_time_entries.id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    forward_ms: Mapped[float] = mapped_column(doc="forward time of this call, ms")
    backward_ms: Mapped[float | None] = mapped_column(doc="backward time of this call, ms, or NULL")


class Recomputation(UprofBase):
    """Time of recomputing an operation (activation checkpointing), in one iteration."""

    __tablename__ = "UPROF_RECOMPUTATION"
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="run_time_entries.id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    recomputed_ms: Mapped[float] = mapped_column(
        doc="recomputation time of this call in the backward pass, ms; in no other column"
    )


class Gap(UprofBase):
    """Time before an operation in which no operation ran, with the lines that may have spent it."""

    __tablename__ = "UPROF_GAPS"
    entry_id: Mapped[int] = mapped_column(
        primary_key=True, doc="run_time_entries.id of the operation that follows"
    )
    file_path: Mapped[str] = mapped_column(doc="relative to the project root")
    first_line: Mapped[int] = mapped_column(doc="first line that may have spent it, from 1")
    last_line: Mapped[int] = mapped_column(doc="last such line")


class GapSample(UprofBase):
    """Duration of a gap in one iteration."""

    __tablename__ = "UPROF_GAP_SAMPLES"
    entry_id: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_GAPS.entry_id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    gap_ms: Mapped[float] = mapped_column(doc="time between the two operations, ms")


class ModulePath(UprofBase):
    """Qualified nn.Module path of an entry, such as `encoder.layers.0.linear1`."""

    __tablename__ = "UPROF_MODULES"
    kind: Mapped[str] = mapped_column(primary_key=True, doc="operation, weight or activation")
    entry_id: Mapped[int] = mapped_column(
        primary_key=True, doc="id in the entry table of this kind"
    )
    module_path: Mapped[str] = mapped_column(doc="as in named_modules(); '' is the root model")
    module_class: Mapped[str | None] = mapped_column(doc="class name of that module")


class Region(UprofBase):
    """A region marked by the program: record_function or an NVTX range."""

    __tablename__ = "UPROF_REGIONS"
    region_id: Mapped[int] = mapped_column(primary_key=True, doc="number from 1")
    name: Mapped[str] = mapped_column(doc="name given by the program")
    around: Mapped[int | None] = mapped_column(
        doc="UPROF_REGIONS.region_id of the enclosing region; NULL: none"
    )
    peak_usage_bytes: Mapped[int | None] = mapped_column(
        doc="peak allocation while it was open, bytes; NULL: not measured"
    )


class RegionCount(UprofBase):
    """Number of times that a region was opened in one iteration; no row if never."""

    __tablename__ = "UPROF_REGION_COUNTS"
    region_id: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_REGIONS.region_id")
    iteration: Mapped[int] = mapped_column(primary_key=True, doc="UPROF_ITERATIONS.iteration")
    count: Mapped[int] = mapped_column(doc="number of occurrences")


class RegionEntry(UprofBase):
    """The innermost region around an operation and its backward pass."""

    __tablename__ = "UPROF_REGION_ENTRIES"
    kind: Mapped[str] = mapped_column(primary_key=True, doc="operation or activation")
    entry_id: Mapped[int] = mapped_column(
        primary_key=True, doc="id in the entry table of this kind"
    )
    region_id: Mapped[int] = mapped_column(doc="UPROF_REGIONS.region_id")


class GpuTask(UprofBase):
    """Name, launch and resources of one task of TASK."""

    __tablename__ = "UPROF_GPU_TASKS"
    global_task_id: Mapped[int] = mapped_column(
        "globalTaskId", primary_key=True, doc="TASK.globalTaskId"
    )
    name: Mapped[int] = mapped_column(doc="string id: kernel, or kind of copy with its memories")
    operation: Mapped[int] = mapped_column(doc="string id: framework operation, or N/A")
    external_id: Mapped[int | None] = mapped_column("externalId", doc="as recorded")
    context_id: Mapped[int | None] = mapped_column("contextId", doc="CUDA context")
    size_bytes: Mapped[int | None] = mapped_column("sizeBytes", doc="number of bytes copied or set")
    bandwidth_gbps: Mapped[float | None] = mapped_column(
        "bandwidthGBps", doc="bandwidth of a copy or memset in 10**9 bytes per second, as recorded"
    )
    grid_dim: Mapped[int] = mapped_column("gridDim", doc="string id: blocks `x,y,z`, or N/A")
    block_dim: Mapped[int] = mapped_column("blockDim", doc="string id: threads `x,y,z`, or N/A")
    registers_per_thread: Mapped[int | None] = mapped_column("registersPerThread", doc="count")
    shared_memory_bytes: Mapped[int | None] = mapped_column(
        "sharedMemoryBytes", doc="shared memory per block, bytes"
    )
    blocks_per_sm: Mapped[float | None] = mapped_column("blocksPerSm", doc="blocks / processors")
    warps_per_sm: Mapped[float | None] = mapped_column("warpsPerSm", doc="warps / processors")
    occupancy_percent: Mapped[float | None] = mapped_column(
        "occupancyPercent", doc="estimated achieved occupancy"
    )
    queued_ns: Mapped[int | None] = mapped_column("queuedNs", doc="as recorded; mostly 0")
    graph_id: Mapped[int | None] = mapped_column("graphId", doc="CUDA graph in which it ran")
    graph_node_id: Mapped[int | None] = mapped_column("graphNodeId", doc="node in that graph")


class GpuCollective(UprofBase):
    """Further parameters of one row of COMMUNICATION_OP."""

    __tablename__ = "UPROF_COLLECTIVES"
    op_id: Mapped[int] = mapped_column("opId", primary_key=True, doc="COMMUNICATION_OP.opId")
    group_description: Mapped[int] = mapped_column("groupDescription", doc="string id, or N/A")
    group_size: Mapped[int | None] = mapped_column("groupSize", doc="ranks in the group")
    group_ranks: Mapped[int] = mapped_column("groupRanks", doc="string id: list of ranks, or N/A")
    data_type: Mapped[int] = mapped_column(
        "dataType", doc="string id: data type in PyTorch, or N/A"
    )
    in_elements: Mapped[int | None] = mapped_column("inElements", doc="number of elements sent")
    out_elements: Mapped[int | None] = mapped_column(
        "outElements", doc="number of elements received"
    )
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
    """Device time of a user annotation on one stream."""

    __tablename__ = "UPROF_GPU_ANNOTATIONS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int] = mapped_column("endNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="NPU_INFO.id")
    stream_id: Mapped[int] = mapped_column("streamId", doc="as TASK.streamId")
    name: Mapped[int] = mapped_column(doc="string id")
    external_id: Mapped[int | None] = mapped_column("externalId", doc="as recorded")
    __mapper_args__ = {"primary_key": [start_ns, device_id, stream_id, name]}  # noqa: RUF012


class GpuSync(UprofBase):
    """A synchronization recorded by the device: a wait for a stream or an event."""

    __tablename__ = "UPROF_GPU_SYNCS"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int] = mapped_column("endNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="NPU_INFO.id")
    stream_id: Mapped[int | None] = mapped_column(
        "streamId", doc="waiting stream; NULL: the whole device or the host"
    )
    context_id: Mapped[int | None] = mapped_column("contextId", doc="CUDA context")
    kind: Mapped[int] = mapped_column(doc="string id: Stream Wait Event, Context Sync, ...")
    correlation_id: Mapped[int | None] = mapped_column(
        "correlationId", doc="CANN_API.connectionId of the call, if recorded"
    )
    wait_stream: Mapped[int | None] = mapped_column("waitStream", doc="stream that is waited for")
    wait_event: Mapped[int | None] = mapped_column("waitEvent", doc="CUDA event that is waited for")
    wait_record: Mapped[int | None] = mapped_column(
        "waitRecord", doc="correlation id of the call that recorded the event"
    )
    __mapper_args__ = {"primary_key": [start_ns, device_id, kind, correlation_id]}  # noqa: RUF012


class PythonFrame(UprofBase):
    """One call of a Python function of at least 0.5 ms; shorter calls are only in call chains."""

    __tablename__ = "UPROF_PYTHON_FRAMES"
    start_ns: Mapped[int] = mapped_column("startNs", doc="Unix ns")
    end_ns: Mapped[int] = mapped_column("endNs", doc="Unix ns")
    global_tid: Mapped[int] = mapped_column("globalTid", doc="process id << 32 | thread id")
    name: Mapped[int] = mapped_column(doc="string id: `file.py(line): function`")
    __mapper_args__ = {"primary_key": [start_ns, global_tid, name]}  # noqa: RUF012


class Thread(UprofBase):
    """A recorded host thread."""

    __tablename__ = "UPROF_THREADS"
    global_tid: Mapped[int] = mapped_column(
        "globalTid", primary_key=True, doc="process id << 32 | thread id"
    )
    process: Mapped[str] = mapped_column(doc="process id as recorded")
    thread: Mapped[str] = mapped_column(doc="thread id as recorded")
    process_name: Mapped[str | None] = mapped_column("processName", doc="as recorded")
    thread_name: Mapped[str | None] = mapped_column("threadName", doc="as recorded")


class GpuDevice(UprofBase):
    """A property of a device on the recorded host, whether or not the device was used."""

    __tablename__ = "UPROF_GPU_DEVICES"
    device_id: Mapped[int] = mapped_column("deviceId", primary_key=True, doc="as NPU_INFO.id")
    name: Mapped[str] = mapped_column(primary_key=True, doc="property, such as totalGlobalMem")
    value: Mapped[str | None] = mapped_column(doc="as recorded; lists and mappings are JSON")


class TraceEvent(UprofBase):
    """A recorded event that no other table can store."""

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
    """A sample of a device counter, such as Nsight Systems' GPU metrics."""

    __tablename__ = "UPROF_GPU_METRICS"
    timestamp_ns: Mapped[int] = mapped_column("timestampNs", doc="Unix ns")
    device_id: Mapped[int] = mapped_column("deviceId", doc="as NPU_INFO.id")
    name: Mapped[int] = mapped_column(doc="string id: the counter, with its unit as recorded")
    value: Mapped[float | None] = mapped_column(doc="as recorded")
    __mapper_args__ = {"primary_key": [timestamp_ns, device_id, name]}  # noqa: RUF012


class MemoryBlock(UprofBase):
    """Address and origin of a row of OP_MEMORY that comes from an allocator snapshot."""

    __tablename__ = "UPROF_MEMORY_BLOCKS"
    device_id: Mapped[int] = mapped_column("deviceId", doc="as NPU_INFO.id")
    address: Mapped[int] = mapped_column(doc="on the device")
    size_bytes: Mapped[int] = mapped_column("sizeBytes", doc="OP_MEMORY.size")
    allocation_ns: Mapped[int | None] = mapped_column(
        "allocationNs", doc="time of the allocation, Unix ns; NULL: before the history began"
    )
    release_ns: Mapped[int | None] = mapped_column(
        "releaseNs", doc="time of the release, Unix ns; NULL: in use at the end"
    )
    callchain_id: Mapped[int | None] = mapped_column(
        "callchainId", doc="PYTORCH_CALLCHAINS.id of the allocation's call stack"
    )
    __mapper_args__ = {"primary_key": [device_id, address, allocation_ns]}  # noqa: RUF012


class MemorySegment(UprofBase):
    """A segment that torch's allocator reserved on a device, when the snapshot was taken."""

    __tablename__ = "UPROF_MEMORY_SEGMENTS"
    device_id: Mapped[int] = mapped_column("deviceId", doc="as NPU_INFO.id")
    address: Mapped[int] = mapped_column(doc="on the device; -1: not recorded")
    size_bytes: Mapped[int] = mapped_column("sizeBytes", doc="reserved")
    allocated_bytes: Mapped[int] = mapped_column("allocatedBytes", doc="in use by blocks")
    free_bytes: Mapped[int] = mapped_column(
        "freeBytes", doc="neither in use nor waiting for a stream"
    )
    largest_free_bytes: Mapped[int] = mapped_column(
        "largestFreeBytes", doc="largest allocation that fits into the segment"
    )
    blocks: Mapped[int] = mapped_column(doc="number of blocks in use")
    kind: Mapped[int] = mapped_column(doc="string id: small or large; expandable; N/A")
    stream_ptr: Mapped[int | None] = mapped_column("streamPtr", doc="as OP_MEMORY.streamPtr")
    __mapper_args__ = {"primary_key": [device_id, address]}  # noqa: RUF012


class TaskCounter(UprofBase):
    """An AI core counter metric of a task on 910A or 310P, whose msprof databases have none."""

    __tablename__ = "UPROF_TASK_PMU_INFO"
    global_task_id: Mapped[int] = mapped_column("globalTaskId", doc="TASK.globalTaskId")
    name: Mapped[int] = mapped_column(doc="string id: as TASK_PMU_INFO.name")
    value: Mapped[float] = mapped_column(doc="as TASK_PMU_INFO.value")
    __mapper_args__ = {"primary_key": [global_task_id, name]}  # noqa: RUF012
