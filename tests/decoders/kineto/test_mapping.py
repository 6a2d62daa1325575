"""Rows decoded from small traces."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import (
    PID,
    TID,
    call,
    complete,
    copy,
    decode,
    decode_events,
    kernel,
    operation,
    write,
)
from unified_prof.base.columns import NO_MARK_CONNECTION

MAIN_THREAD = PID << 32 | TID


def test_kernel_is_joined_to_its_launch_and_operation(tmp_path: Path) -> None:
    shapes = {
        "External id": 1,
        "Input type": ["float", "c10::Half", "Scalar"],
        "Input Dims": [[8, 3, 4, 4], [2, 3], []],
        "Input Strides": [[48, 1, 12, 3], [3, 1], []],
    }
    sink = decode_events(
        tmp_path,
        operation("aten::mm", 10, 20, args=shapes),
        call(15, 5, 77),
        kernel(40.125, 2.5, 77),
    )
    assert sink.rows(
        "TASK",
        *("startNs", "endNs", "deviceId", "streamId", "connectionId", "globalTaskId"),
        *("globalPid", "taskType"),
        texts=["taskType"],
    ) == [(40_125, 42_625, 0, 7, 77, 0, PID, "KERNEL")]
    assert sink.rows("CANN_API", "startNs", "endNs", "type", "globalTid", "connectionId") == [
        (15_000, 20_000, 5000, MAIN_THREAD, 77)
    ]
    assert sink.rows(
        "COMPUTE_TASK_INFO",
        *("name", "opType", "inputDataTypes", "inputShapes", "inputFormats", "outputShapes"),
        *("gridDim", "blockDim"),
        texts=[
            *("name", "opType", "inputDataTypes", "inputShapes", "inputFormats", "outputShapes"),
            *("gridDim", "blockDim"),
        ],
    ) == [
        (
            "gemm_kernel",
            "aten::mm",
            "FLOAT;FLOAT16;Scalar",
            '"8,3,4,4;2,3;"',
            "NHWC;ND;ND",
            "N/A",
            "2,3,1",
            "128,1,1",
        )
    ]
    assert sink.rows("COMPUTE_TASK_INFO", "globalTaskId", "blockNum") == [(0, 6)]
    # Viewers select kernels by core type; TASK keeps the device's type.
    assert sink.rows("COMPUTE_TASK_INFO", "taskType", texts=["taskType"]) == [("AI_CORE",)]
    api = sink.tables["PYTORCH_API"][0]
    assert (sink.text(api["name"]), api["startNs"], api["type"]) == ("aten::mm", 10_000, 50001)
    assert sink.text(api["inputShapes"]) == "8,3,4,4;\r\n2,3;\r\n"
    assert sink.rows("CONNECTION_IDS", "id", "connectionId") == [(api["connectionId"], 77)]
    assert sink.anomalies == {}


def test_kernel_belongs_to_the_innermost_operation_of_the_launching_thread(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::linear", 0, 100),
        operation("aten::addmm", 10, 50),
        operation("aten::other_thread", 12, 10, tid=TID + 1),
        complete("user_annotation", "my range", 11, 20),
        call(15, 5, 1),
        call(70, 5, 2),
        call(200, 5, 3),
        kernel(20, 1, 1),
        kernel(80, 1, 2),
        kernel(210, 1, 3, args={"External id": 99}),
    )
    names = sink.rows("COMPUTE_TASK_INFO", "opType", texts=["opType"])
    assert names == [("aten::addmm",), ("aten::linear",), ("N/A",)]


def test_external_id_names_the_operation_if_no_operation_contains_the_launch(
    tmp_path: Path,
) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::mm", 0, 10, args={"External id": 5}),
        call(50, 5, 70, args={"External id": 5, "correlation": 70}),
        kernel(60, 1, 70, args={"External id": 5}),
    )
    columns = ["opType"]

    assert sink.rows("COMPUTE_TASK_INFO", *columns, texts=columns) == [("aten::mm",)]
    sink = decode_events(
        tmp_path,
        operation("aten::unrelated", 0, 10, args={"External id": 70}),
        call(50, 5, 70, args={"External id": 70, "correlation": 70}),
        kernel(60, 1, 70, args={"External id": 70}),
    )
    assert sink.rows("COMPUTE_TASK_INFO", *columns, texts=columns) == [("N/A",)], "a correlation id"


def test_copies_and_memsets_have_direction_and_size(tmp_path: Path) -> None:
    memset = complete(
        "gpu_memset", "Memset (Device)", 50, 1, pid=0, tid=7, args={"correlation": 9, "bytes": 64}
    )
    sink = decode_events(
        tmp_path,
        *(call(t, 1, c) for t, c in ((1, 5), (3, 6), (5, 7), (7, 8), (9, 9))),
        copy(10, 2, 5, "Memcpy HtoD (Pinned -> Device)", 4096),
        copy(20, 2, 6, "Memcpy DtoH (Device -> Pageable)", 16),
        copy(30, 2, 7, "Memcpy PtoP (Device -> Device)", 8),
        copy(40, 2, 8, "Memcpy XtoX (Unknown)", 4),
        memset,
    )
    assert sink.rows("MEMCPY_INFO", "globalTaskId", "size", "memcpyOperation") == [
        (0, 4096, 1),
        (1, 16, 2),
        (2, 8, 3),
        (3, 4, 65535),
    ]
    kinds = sink.rows("TASK", "taskType", texts=["taskType"])
    assert kinds == [("MEMCPY_ASYNC",)] * 4 + [("MEMSET",)]
    assert sink.rows("UPROF_GPU_TASKS", "name", "sizeBytes", texts=["name"])[::4] == [
        ("Memcpy HtoD (Pinned -> Device)", 4096),
        ("Memset (Device)", 64),
    ]


def test_size_and_grid_of_hip_are_read_from_the_call(tmp_path: Path) -> None:
    copying = call(1, 1, 5, args={"correlation": 5, "size": "2560", "kind": "1"})
    launching = call(
        3, 1, 6, args={"correlation": 6, "grid": [4, 1, 1], "block": [64, 1, 1], "shared memory": 0}
    )
    task = {"device": 2, "stream": 0}
    sink = decode_events(
        tmp_path,
        copying | {"name": "hipMemcpyWithStream"},
        launching | {"name": "hipLaunchKernel"},
        complete(
            "gpu_memcpy", "Memcpy HtoD (Host -> Device)", 5, 1, args=task | {"correlation": 5}
        ),
        complete("kernel", "Cijk_Alik", 9, 1, args=task | {"correlation": 6}),
    )
    assert sink.rows("MEMCPY_INFO", "size", "memcpyOperation") == [(2560, 1)]
    assert sink.rows("COMPUTE_TASK_INFO", "blockNum", "blockDim", texts=["blockDim"]) == [
        (4, "64,1,1")
    ]
    assert sink.rows("NPU_INFO", "id", "name") == [(2, "UNKNOWN")]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
PARAMETERS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 8,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "dp_0",
    "Process Group Description": "data parallel",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}


COLLECTIVE_COLUMNS = ("opName", "groupName", "opType", "algType")


def test_collective_parameters_of_a_kernel_are_written(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path, call(15, 5, 3), kernel(30, 10, 3, name=NCCL, args=PARAMETERS | {"Src Rank": 4})
    )
    assert "COMPUTE_TASK_INFO" not in sink.tables
    columns = (*COLLECTIVE_COLUMNS, "count", "startNs", "endNs", "connectionId", "rankSize")
    assert sink.rows("COMMUNICATION_OP", *columns, texts=COLLECTIVE_COLUMNS) == [
        ("allreduce__dp_0_0_1", "dp_0", "allreduce", "RING-LL", 1000, 30_000, 40_000, 3, 8)
    ]
    assert sink.rows(
        "COMMUNICATION_TASK_INFO", "name", "size", "srcRank", "dstRank", "bandwidth", texts=["name"]
    ) == [(NCCL, 2000, 4, 4294967295, 200e6)]
    assert sink.rows(
        "UPROF_COLLECTIVES",
        "groupDescription",
        "groupRanks",
        "inElements",
        texts=["groupDescription", "groupRanks"],
    ) == [("data parallel", "[0, 1, 2, 3, 4, 5, 6, 7]", 1000)]


@pytest.mark.parametrize(
    ("collective", "prefix"),
    [("recv", "receive__dp_0_0"), ("Recv", "receive__"), ("send", "send__"), ("SendRecv", "SendR")],
)
def test_collective_names_are_those_that_viewers_expect(
    collective: str, prefix: str, tmp_path: Path
) -> None:
    args = PARAMETERS | {"Collective name": collective}
    sink = decode_events(tmp_path, call(15, 5, 3), kernel(30, 10, 3, name=NCCL, args=args))
    ((name, kind),) = sink.rows("COMMUNICATION_OP", "opName", "opType", texts=["opName", "opType"])
    assert (name.startswith(prefix), kind) == (True, collective)


def test_collective_parameters_of_older_kernels_come_from_record_param_comms(
    tmp_path: Path,
) -> None:
    sink = decode_events(
        tmp_path,
        operation("record_param_comms", 10, 20, args=PARAMETERS | {"External id": 4}),
        operation("aten::inner", 12, 10),
        call(15, 5, 3),
        kernel(30, 10, 3, name="ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)"),
    )
    assert sink.rows("COMMUNICATION_OP", *COLLECTIVE_COLUMNS, texts=COLLECTIVE_COLUMNS) == [
        ("allreduce__dp_0_0_1", "dp_0", "allreduce", "TREE-LL128")
    ]


def test_collectives_of_oldest_kernels_come_from_annotations(tmp_path: Path) -> None:
    shape = {"Input Dims": [[12, 10]], "Input type": ["float"]}
    sink = decode_events(
        tmp_path,
        operation("record_param_comms", 9, 30, args={"External id": 1}),
        complete("user_annotation", "nccl:all_reduce", 10, 20, args=shape),
        call(15, 5, 3),
        kernel(30, 10, 3, name="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"),
        kernel(50, 10, 4, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    )
    assert sink.rows("COMMUNICATION_OP", "opType", "count", texts=["opType"]) == [
        ("all_reduce", 120),
        ("SendRecv", None),
    ]
    assert sink.rows("COMMUNICATION_TASK_INFO", "size") == [(480,), (None,)]


def test_data_types_are_limited_to_those_of_the_schema_revision(tmp_path: Path) -> None:

    events = [
        kernel(30, 10, 3, name=NCCL, args=PARAMETERS | {"dtype": t})
        for t in ("BFloat16", "Float8_e4m3fn", "Unheard")
    ]
    trace = write(tmp_path / "t.json", events)
    older = decode(trace, data_types={"BFP16": 11, "N/A": 65534})
    newer = decode(trace, data_types={"BFP16": 11, "FP8E4M3": 15, "N/A": 65534})
    assert older.rows("COMMUNICATION_OP", "dataType") == [(11,), (65535,), (65535,)]
    assert newer.rows("COMMUNICATION_OP", "dataType") == [(11,), (15,), (65535,)]


def test_annotations_and_steps_are_written(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        complete("user_annotation", "ProfilerStep#41", 10, 50),
        complete("user_annotation", "## forward ##", 20, 5),
        complete("gpu_user_annotation", "## forward ##", 30, 5, pid=0, tid=7),
        call(90, 1, 1),
    )
    assert sink.rows("STEP_TIME", "id", "startNs", "endNs") == [(41, 10_000, 60_000)]
    columns = ("message", "startNs", "endNs", "globalTid", "connectionId")
    assert sink.rows("MSTX_EVENTS", *columns, texts=["message"]) == [
        ("ProfilerStep#41", 10_000, 60_000, MAIN_THREAD, NO_MARK_CONNECTION),
        ("## forward ##", 20_000, 25_000, MAIN_THREAD, NO_MARK_CONNECTION),
    ]
    assert sink.rows("UPROF_GPU_ANNOTATIONS", "name", "deviceId", "streamId", texts=["name"]) == [
        ("## forward ##", 0, 7)
    ]


def test_synchronizations_are_not_tasks(tmp_path: Path) -> None:
    args = {
        "cuda_sync_kind": "Stream Wait Event",
        "stream": 20,
        "correlation": 12,
        "device": 0,
        "context": 1,
        "wait_on_stream": 7,
        "wait_on_cuda_event_id": 3,
    }
    sink = decode_events(
        tmp_path,
        call(1, 1, 12),
        complete("cuda_sync", "Stream Wait Event", 5, 2, pid=0, tid=20, args=args),
    )
    assert "TASK" not in sink.tables
    columns = ("kind", "streamId", "correlationId", "waitStream", "waitEvent", "waitRecord")
    assert sink.rows("UPROF_GPU_SYNCS", *columns, texts=["kind"]) == [
        ("Stream Wait Event", 20, 12, 7, 3, None)
    ]


def memory(ts: object, size: int, address: int, total: int, device: int = 0) -> dict[str, object]:
    args = {
        "Total Reserved": 4096,
        "Total Allocated": total,
        "Bytes": size,
        "Device Id": device,
        "Device Type": 1 if device >= 0 else 0,
        "Addr": address,
    }
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": ts}
    return event | {"pid": PID, "tid": TID, "args": args}


def test_allocations_are_paired_and_named_after_their_operation(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::empty", 10, 20),
        memory(15, 512, 1000, 512),
        memory(40, -512, 1000, 0),
        memory(50, 64, 1000, 64),
        memory(60, -32, 7777, 32),
        memory(65, 0, 7777, 32),
        memory(70, 16, 1000, 16, device=-1),
    )
    assert sink.rows(
        "MEMORY_RECORD", "timestamp", "totalAllocated", "deviceId", "component", texts=["component"]
    ) == [
        (15_000, 512, 0, "PTA"),
        (40_000, 0, 0, "PTA"),
        (50_000, 64, 0, "PTA"),
        (60_000, 32, 0, "PTA"),
        (70_000, 16, -1, "CPU"),
    ]
    columns = ("name", "size", "allocationTime", "releaseTime", "duration")
    assert sink.rows("OP_MEMORY", *columns, texts=["name"]) == [
        ("aten::empty", 512, 15_000, 40_000, 25_000),
        ("N/A", 64, 50_000, None, None),
        ("N/A", 16, 70_000, None, None),
    ]
    assert sink.anomalies == {"release_without_allocation": 1, "memory_event_without_size": 1}


def test_base_time_after_the_events_is_added_to_times(tmp_path: Path) -> None:
    base = 1711964646000000000
    text = (
        '{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,'
        '"ts":4458676522690.655,"dur":156.777,"args":{}}],'
        f'"displayTimeUnit":"ms","baseTimeNanoseconds":{base}}}'
    )

    trace = tmp_path / "t.json"
    trace.write_text(text)
    sink = decode(trace)
    start = base + 4458676522690655
    assert sink.rows("PYTORCH_API", "startNs", "endNs") == [(start, start + 156777)]
    assert sink.rows("SESSION_TIME_INFO", "startTimeNs", "endTimeNs") == [(start, start + 156777)]


def test_devices_ranks_host_and_groups_of_the_trace_are_written(tmp_path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 3, 5]}
    sink = decode_events(
        tmp_path,
        kernel(1, 1, 1),
        deviceProperties=[
            {"id": 0, "name": "NVIDIA H100", "numSms": 132},
            {"id": 1, "name": "NVIDIA H100"},
        ],
        distributedInfo={"rank": 5, "world_size": 8, "pg_config": [group]},
        host_name="node7",
    )
    assert sink.rows("NPU_INFO", "id", "name") == [(0, "NVIDIA H100")]
    assert sink.rows("RANK_DEVICE_MAP", "rankId", "deviceId") == [(5, 0)]
    assert sink.rows("HOST_INFO", "hostName") == [("node7",)]
    assert (0, "numSms", "132") in sink.rows("UPROF_GPU_DEVICES", "deviceId", "name", "value")
    (meta,) = sink.tables["META_DATA"]
    assert meta["name"] == "parallel_group_info"
    assert '"group_rank": 2' in str(meta["value"])


def test_unknown_categories_are_kept_as_trace_events(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        complete("overhead", "Activity Buffer Request", 1, 2, pid=-1, tid=0, args={}),
        complete("cuda_profiler_range", "gemm", 5, 6, pid=0, tid=1, args={"a.sum": 12}),
        {"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 20},
        complete("brand_new", "thing", 9, 1),
        operation("aten::mm", 1, 1),
    )
    assert sink.rows(
        "UPROF_TRACE_EVENTS",
        "category",
        "name",
        "startNs",
        "endNs",
        "process",
        "args",
        texts=["category", "name"],
    ) == [
        ("overhead", "Activity Buffer Request", 1000, 3000, "-1", "{}"),
        ("cuda_profiler_range", "gemm", 5000, 11_000, "0", '{"a.sum":12}'),
        ("brand_new", "thing", 9000, 10_000, str(PID), "{}"),
        ("instant", "Record Window End", 20_000, None, "", None),
    ]
    assert sink.anomalies == {"unknown_category": 1}


def test_thread_and_process_names_are_written(tmp_path: Path) -> None:
    def label(name: str, tid: int, value: str) -> dict[str, object]:
        return {"ph": "M", "name": name, "ts": 1, "pid": PID, "tid": tid, "args": {"name": value}}

    sink = decode_events(
        tmp_path,
        label("process_name", 0, "python3"),
        label("thread_name", -5, "pt_autograd_0"),
        operation("a", 1, 1),
        operation("b", 2, 1, tid=-5),
    )
    assert sink.rows("UPROF_THREADS", "globalTid", "thread", "processName", "threadName") == [
        (MAIN_THREAD, str(TID), "python3", None),
        (PID << 32 | (2**32 - 5), "-5", "python3", "pt_autograd_0"),
    ]


def test_unfinished_steps_are_annotations_only(tmp_path: Path) -> None:
    unfinished = {"finished": False}
    sink = decode_events(
        tmp_path,
        complete("user_annotation", "ProfilerStep#1", 0, 10),
        complete("user_annotation", "ProfilerStep#2", 10, 5, args=unfinished),
        operation("aten::mm", 12, 3, args=unfinished),
    )
    assert sink.rows("STEP_TIME", "id") == [(1,)]
    assert len(sink.tables["MSTX_EVENTS"]) == 2
    assert len(sink.tables["PYTORCH_API"]) == 1
    assert sink.anomalies == {"unfinished_event": 2}
