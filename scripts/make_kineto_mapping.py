"""Print the source of every column of a converted torch.profiler trace, as a page of the site.

A test decodes a trace with all kinds of events and compares the written tables and columns with
those declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unified_prof.base.columns import (
    API_OPERATION,
    KERNEL_CORE,
    NO_MARK_CONNECTION,
    NO_NUMBER,
    NO_RANK,
)
from unified_prof.decoders.gpu.host_tables import HOST_COMPONENT, RANGE_EVENT
from unified_prof.decoders.gpu.rows import DEVICE_COMPONENT, GRAPH
from unified_prof.decoders.gpu.task_tables import COPY_DIRECTIONS, TASK_TYPES
from unified_prof.decoders.kineto.events import CATEGORIES, Kind


@dataclass(frozen=True, slots=True)
class TableMapping:
    """One table, the events its rows come from, and the source of every column written."""

    table: str
    kinds: tuple[Kind, ...]
    """Kinds of events that become its rows; empty: top-level keys of the trace."""
    columns: Mapping[str, str]
    note: str = ""


_TIMES = {"startNs": "`ts` + base time", "endNs": "`ts` + `dur` + base time"}
_NOT_RECORDED = "not recorded: N/A"
_NOT_APPLICABLE = f"does not apply: {NO_NUMBER}"

_DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.SET)
_HOST_KINDS = (Kind.OPERATION, Kind.ANNOTATION)

MAPPINGS: tuple[TableMapping, ...] = (
    TableMapping(
        "TASK",
        _DEVICE_KINDS,
        _TIMES
        | {
            "deviceId": "`device`, else the pid",
            "connectionId": "`connectionId` of the call with the same `correlation`",
            "globalTaskId": "dense from 0, by start",
            "globalPid": "process of the launching call, else the busiest one",
            "taskType": ", ".join(
                sorted({text for kind, text in TASK_TYPES.items() if kind != GRAPH})
            ),
            "contextId": _NOT_APPLICABLE + " (not a CUDA context)",
            "streamId": "`stream`, else the tid",
            "taskId": _NOT_APPLICABLE,
            "modelId": _NOT_APPLICABLE,
        },
        "Without a `correlation`, connectionId is a number that no call has.",
    ),
    TableMapping(
        "COMPUTE_TASK_INFO",
        (Kind.KERNEL,),
        {
            "name": "`name`",
            "globalTaskId": "of TASK",
            "blockNum": "product of `grid`",
            "mixBlockNum": "0",
            "taskType": f"{KERNEL_CORE}, where viewers of msprof databases look",
            "opType": "operation that launched it: the innermost around the launching call on its"
            " thread, else the one its `External id` names",
            "inputFormats": "of that operation, from `Input Strides`: NCHW, NHWC, NCDHW, NDHWC, ND",
            "inputDataTypes": "of that operation, `Input type` in msprof's names",
            "inputShapes": 'of that operation, `Input Dims` as `"2,3;4"`',
            "outputFormats": _NOT_RECORDED,
            "outputDataTypes": _NOT_RECORDED,
            "outputShapes": _NOT_RECORDED,
            "attrInfo": _NOT_RECORDED,
            "opState": _NOT_RECORDED,
            "hf32Eligible": _NOT_RECORDED,
            "gridDim": "`grid` as `x,y,z`",
            "blockDim": "`block` as `x,y,z`",
        },
        "Kernels of collectives (NCCL, RCCL, MSCCL, servers, torch's symmetric memory) are in"
        " COMMUNICATION_OP instead.",
    ),
    TableMapping(
        "MEMCPY_INFO",
        (Kind.COPY,),
        {
            "globalTaskId": "of TASK",
            "size": "`bytes`, else `size` of the HIP call",
            "memcpyOperation": "from `name`: "
            + ", ".join(f"{word} {number}" for word, number in COPY_DIRECTIONS.items()),
        },
        "Bytes of memory sets are in UPROF_GPU_TASKS.",
    ),
    TableMapping(
        "COMMUNICATION_OP",
        (Kind.KERNEL,),
        _TIMES
        | {
            "opName": "`<Collective name>__<Process Group Name>_<Seq, else running number>_1`;"
            " `recv` is `receive` in it",
            "connectionId": "of TASK",
            "groupName": "`Process Group Name`",
            "opId": "dense from 0, by start",
            "relay": "0",
            "retry": "0",
            "dataType": "`dtype` in ENUM_HCCL_DATA_TYPE; 65534 not recorded, 65535 not in it",
            "algType": "algorithm and protocol in the kernel's name, such as RING-LL",
            "count": "`In msg nelems`",
            "opType": "`Collective name`, else from the kernel's name",
            "deviceId": "of TASK",
            "rankSize": "`Group size`",
        },
        "Kernels named nccl*, rccl* or msccl*Kernel, and those without such a library: vLLM's and"
        " SGLang's cross_device_reduce, multimem and one- and two-shot all-reduces, dispatch and"
        " combine of deep_ep. Parameters are those of the kernel, else of the `record_param_comms`"
        " operation around its launch, else of an `nccl:` annotation.",
    ),
    TableMapping(
        "COMMUNICATION_TASK_INFO",
        (Kind.KERNEL,),
        {
            "name": "`name`",
            "globalTaskId": "of TASK",
            "taskType": TASK_TYPES[0],
            "planeId": "0",
            "groupName": "of COMMUNICATION_OP",
            "notifyId": "-1: none",
            "rdmaType": "65534: not recorded",
            "srcRank": "in the group: rank of the trace for a send, `Src Rank` for a receive, else"
            f" {NO_RANK}",
            "dstRank": "in the group: `Dst Rank` for a send, rank of the trace for a receive, else"
            f" {NO_RANK}",
            "transportType": "65534: not recorded",
            "size": "bytes of the larger message",
            "dataType": "of COMMUNICATION_OP",
            "linkType": "65534: not recorded",
            "opId": "of COMMUNICATION_OP",
            "isMaster": "1",
            "bandwidth": "size / duration, bytes per second",
        },
    ),
    TableMapping(
        "OVERLAP_ANALYSIS",
        _DEVICE_KINDS,
        {
            "id": "dense from 0",
            "deviceId": "of TASK",
            "startNs": "start of an interval",
            "endNs": "its end",
            "type": "0 COMPUTE, 1 COMMUNICATION, 2 communication that is not overlapped, 3 FREE",
        },
        "Only in revisions that have the table (`--schema latest`, `--layout ascend-pt`). Every"
        " device has at least one row of types 0, 2 and 3, because viewers add them up.",
    ),
    TableMapping(
        "CANN_API",
        (Kind.CALL,),
        _TIMES
        | {
            "type": "5000 runtime",
            "globalTid": "pid << 32 | tid",
            "connectionId": "`correlation`; a new number if an earlier call has the same one",
            "name": "`name`",
        },
    ),
    TableMapping(
        "PYTORCH_API",
        (Kind.OPERATION,),
        _TIMES
        | {
            "globalTid": "pid << 32 | tid",
            "connectionId": "CONNECTION_IDS.id; NULL: no call directly inside",
            "name": "`name`",
            "sequenceNumber": "`Sequence number`, else -1",
            "fwdThreadId": "globalTid of the forward thread, from `fwdbwd` flows; without flows "
            "`Fwd thread id`; above 0 in backward operations",
            "inputDtypes": "`Input type`",
            "inputShapes": "`Input Dims`",
            "callchainId": "PYTORCH_CALLCHAINS.id of the Python functions around it; a backward"
            " operation and what it calls get the chain of the forward operation with the same"
            " sequence number",
            "type": f"{API_OPERATION} op",
        },
        "Times are decimal text.",
    ),
    TableMapping(
        "CONNECTION_IDS",
        (Kind.OPERATION, Kind.CALL),
        {"id": "PYTORCH_API.connectionId", "connectionId": "CANN_API.connectionId"},
        "One row for each runtime call directly inside an operation.",
    ),
    TableMapping(
        "PYTORCH_CALLCHAINS",
        (Kind.FRAME, Kind.OPERATION),
        {"id": "chain", "stack": "`name` of the function", "stackDepth": "0 is the innermost"},
        "Chains of operations; from `Call stack` if the trace has it."
        " Addresses in names of built-in methods are removed.",
    ),
    TableMapping(
        "ENUM_API_TYPE",
        (Kind.OPERATION,),
        {"id": str(API_OPERATION), "name": "op"},
        "The row that torch_npu adds.",
    ),
    TableMapping(
        "STEP_TIME",
        (Kind.ANNOTATION,),
        _TIMES | {"id": "number in `ProfilerStep#<number>`"},
        "Steps that were complete when the recording ended.",
    ),
    TableMapping(
        "MSTX_EVENTS",
        (Kind.ANNOTATION,),
        _TIMES
        | {
            "eventType": f"{RANGE_EVENT} start/end",
            "rangeId": _NOT_APPLICABLE,
            "category": _NOT_APPLICABLE,
            "message": "`name`",
            "globalTid": "pid << 32 | tid",
            "endGlobalTid": "the same",
            "domainId": "default",
            "connectionId": f"{NO_MARK_CONNECTION}: on the host only",
        },
        "All user annotations and NVTX ranges, including profiler steps.",
    ),
    TableMapping(
        "MEMORY_RECORD",
        (Kind.INSTANT,),
        {
            "component": f"{DEVICE_COMPONENT} (torch's allocator on the device) or"
            f" {HOST_COMPONENT}",
            "timestamp": "`ts` + base time",
            "totalAllocated": "`Total Allocated`",
            "totalReserved": "`Total Reserved`",
            "deviceId": "`Device Id`; -1: the host",
        },
        "Events named `[memory]`.",
    ),
    TableMapping(
        "OP_MEMORY",
        (Kind.INSTANT,),
        {
            "name": "innermost operation around the allocation",
            "size": "`Bytes`",
            "allocationTime": "of the event with positive `Bytes`",
            "releaseTime": "of the next event of that `Addr` with negative `Bytes`",
            "duration": "releaseTime - allocationTime",
            "allocationTotalAllocated": "`Total Allocated` at allocationTime",
            "allocationTotalReserved": "`Total Reserved` at allocationTime",
            "releaseTotalAllocated": "`Total Allocated` at releaseTime",
            "releaseTotalReserved": "`Total Reserved` at releaseTime",
            "deviceId": "`Device Id`; -1: the host",
        },
        "Columns of the release are NULL if there is none.",
    ),
    TableMapping(
        "GC_RECORD", (Kind.GARBAGE_COLLECTION,), _TIMES | {"globalTid": "pid << 32 | tid"}
    ),
    TableMapping(
        "SESSION_TIME_INFO",
        (),
        {"startTimeNs": "first start of any event", "endTimeNs": "last end of any event"},
    ),
    TableMapping(
        "NPU_INFO",
        (),
        {"id": "devices with events", "name": "`deviceProperties.name`, else UNKNOWN"},
        "Without devices one row (-1, UNKNOWN).",
    ),
    TableMapping(
        "RANK_DEVICE_MAP",
        (),
        {"rankId": "`distributedInfo.rank`, else -1", "deviceId": "NPU_INFO.id"},
    ),
    TableMapping("HOST_INFO", (), {"hostUid": "0", "hostName": "`host_name`, else UNKNOWN"}),
    TableMapping(
        "META_DATA",
        (),
        {
            "name": "parallel_group_info",
            "value": "`distributedInfo.pg_config` in the form of torch_npu",
        },
    ),
    TableMapping(
        "UPROF_GPU_TASKS",
        _DEVICE_KINDS,
        {
            "globalTaskId": "of TASK",
            "name": "`name`",
            "operation": "as COMPUTE_TASK_INFO.opType, also for copies and collectives",
            "externalId": "`External id`",
            "contextId": "`context`",
            "sizeBytes": "`bytes` of copies and sets",
            "bandwidthGBps": "`memory bandwidth (GB/s)`",
            "gridDim": "`grid`",
            "blockDim": "`block`",
            "registersPerThread": "`registers per thread`",
            "sharedMemoryBytes": "`shared memory`",
            "blocksPerSm": "`blocks per SM`",
            "warpsPerSm": "`warps per SM`",
            "occupancyPercent": "`est. achieved occupancy %`",
            "queuedNs": "`queued`",
            "graphId": "`graph id`",
            "graphNodeId": "`graph node id`",
        },
    ),
    TableMapping(
        "UPROF_COLLECTIVES",
        (Kind.KERNEL,),
        {
            "opId": "of COMMUNICATION_OP",
            "groupDescription": "`Process Group Description`",
            "groupSize": "`Group size`",
            "groupRanks": "`Process Group Ranks`",
            "dataType": "`dtype`",
            "inElements": "`In msg nelems`",
            "outElements": "`Out msg nelems`",
            "inSplit": "`In split size`",
            "outSplit": "`Out split size`",
            "sequence": "`Seq`",
        },
    ),
    TableMapping(
        "UPROF_OPERATION_INPUTS",
        (Kind.OPERATION,),
        {
            "startNs": "of PYTORCH_API",
            "globalTid": "of PYTORCH_API",
            "name": "of PYTORCH_API",
            "externalId": "`External id`",
            "inputStrides": "`Input Strides`",
            "concreteInputs": "`Concrete Inputs`",
            "moduleHierarchy": "`Module Hierarchy`",
        },
        "Only operations with one of them.",
    ),
    TableMapping(
        "UPROF_GPU_ANNOTATIONS",
        (Kind.GPU_ANNOTATION,),
        _TIMES
        | {
            "deviceId": "`device`, else the pid",
            "streamId": "`stream`, else the tid",
            "name": "`name`",
            "externalId": "`External id`",
        },
    ),
    TableMapping(
        "UPROF_GPU_SYNCS",
        (Kind.SYNC,),
        _TIMES
        | {
            "deviceId": "`device`, else the pid",
            "streamId": "`stream`; NULL: the device or the host waits",
            "contextId": "`context`",
            "kind": "`name`",
            "correlationId": "`correlation`",
            "waitStream": "`wait_on_stream`",
            "waitEvent": "`wait_on_cuda_event_id`",
            "waitRecord": "`wait_on_cuda_event_record_corr_id`",
        },
        "Waits have no row in TASK.",
    ),
    TableMapping(
        "UPROF_PYTHON_FRAMES",
        (Kind.FRAME,),
        _TIMES | {"globalTid": "of UPROF_THREADS", "name": "`name`"},
        "Calls of at least 0.5 ms.",
    ),
    TableMapping(
        "UPROF_COVERAGE",
        (),
        {
            "kind": "`trace`, or a kind of event",
            "unit": "`bytes` or `events`",
            "total": "decompressed size, or number of events",
            "decoded": "the rest of `total`",
            "skipped": "damaged events, bytes after the last complete event",
            "without_table": "events of other phases, such as `C`",
        },
    ),
    TableMapping(
        "UPROF_TRACE_EVENTS",
        (Kind.OTHER, Kind.INSTANT, Kind.UNKNOWN),
        _TIMES
        | {
            "category": "`cat`",
            "name": "`name`",
            "process": "`pid`",
            "thread": "`tid`",
            "args": "`args`",
        },
        "Unknown categories are also counted as the anomaly `unknown_category`.",
    ),
    TableMapping(
        "UPROF_THREADS",
        (*_HOST_KINDS, Kind.CALL, Kind.LABEL),
        {
            "globalTid": "pid << 32 | tid; ids that do not fit are replaced and counted",
            "process": "`pid`",
            "thread": "`tid`",
            "processName": "`process_name`",
            "threadName": "`thread_name`",
        },
    ),
    TableMapping(
        "UPROF_GPU_DEVICES",
        (),
        {"deviceId": "`deviceProperties.id`", "name": "each other key", "value": "its value"},
    ),
)

# Events without a row, and the reason.
NOT_KEPT = {
    "flows (`ph` s, t, f)": "`fwdbwd` flows give fwdThreadId; others repeat `correlation`",
    "`process_labels`, `*_sort_index`": "they only order the lanes of a viewer",
    "times of single Python functions": "call chains are kept instead",
}


def as_markdown() -> str:
    """Return the documentation of the mapping."""
    lines = [
        "# Tables of an imported torch.profiler trace",
        "",
        "All times are exact: `ts` and `dur` are decimal microseconds, `baseTimeNanoseconds` is"
        " added, and digits beyond the nanosecond are dropped. Texts are ids of STRING_IDS. Missing"
        " texts are N/A; missing numbers in tables of uprof are NULL. UPROF_RUN has the kind of"
        " device (`device_kind`, `device_vendor`) and the profiler's keys (`trace_metadata`); of"
        " keys that a program added it has the names (`trace_metadata_left_out`). Secrets are"
        " masked.",
        "",
        "## Categories",
        "",
        "| kind | categories (any case) |",
        "|---|---|",
    ]
    for kind in Kind:
        names = ", ".join(f"`{name}`" for name, its_kind in CATEGORIES.items() if its_kind is kind)
        if names:
            lines.append(f"| {kind.value} | {names} |")
    lines += ["", "## Tables", ""]
    for mapping in MAPPINGS:
        kinds = ", ".join(kind.value for kind in mapping.kinds) or "top-level keys"
        lines += [f"### {mapping.table}", "", f"From: {kinds}. {mapping.note}".rstrip(), ""]
        lines += ["| column | source |", "|---|---|"]
        for column, source in mapping.columns.items():
            cell = source.replace("|", "\\|")
            lines.append(f"| {column} | {cell} |")
        lines.append("")
    lines += ["## Not kept", "", "| event | reason |", "|---|---|"]
    lines += [f"| {event} | {reason} |" for event, reason in NOT_KEPT.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
