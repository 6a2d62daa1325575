"""Rows of small exports; real exports are tested in tests/pipeline/test_nsys_exports.py."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.nsys.builders import (
    CALLS,
    COPIES,
    KERNELS,
    PID,
    RANGES,
    SETS,
    TID,
    WAITS,
    Row,
    Tables,
    call,
    copy,
    decode_tables,
    kernel,
    memory_event,
    packed,
    pushed,
    small,
    strings,
    write,
)
from unified_prof.decoders import nsys
from unified_prof.decoders.gpu.rows import as_operation
from unified_prof.sqlite.external_tables import foreign_tables

BASE = 1_700_000_000_000_000_000


def test_synchronizations_belong_to_the_device_of_their_context(tmp_path: Path) -> None:
    """Nsight Systems writes device 0 for the synchronizations of all devices."""
    other = {"deviceId": 1, "contextId": 2, "streamId": 15}
    sync = {**copy(30, 40, 3), "contextId": 2, "streamId": 15, "syncType": 3}
    tables: Tables = {
        "StringIds": strings("gemm", "cudaLaunchKernel"),
        KERNELS: [kernel(10, 20, 1), kernel(10, 20, 2, **other)],
        WAITS: [sync, {**copy(30, 40, 4), "syncType": 3}],
    }
    sink = decode_tables(tmp_path, tables)
    assert sink.rows("UPROF_GPU_SYNCS", "deviceId", "streamId") == [(1, 15), (0, 7)]


def test_correlation_ids_are_scoped_to_their_process(tmp_path: Path) -> None:
    other = packed(200)
    tables = {
        KERNELS: [
            kernel(2_000, 3_000, 7),
            kernel(2_000, 3_000, 7, 3, globalPid=other, deviceId=1),
            kernel(4_000, 5_000, 8, 3, globalPid=other, deviceId=1),
        ],
        CALLS: [
            call(1_100, 1_200, 7),
            call(1_300, 1_400, 7, globalTid=packed(200, 201)),
            call(1_500, 1_600, 8),
        ],
        RANGES: [],
        "StringIds": strings("a", "cudaLaunchKernel", "b"),
    }
    sink = decode_tables(tmp_path, small(**tables))
    calls = {row["startNs"] - BASE: row["connectionId"] for row in sink.tables["CANN_API"]}
    assert len(set(calls.values())) == 3
    tasks = [(row["deviceId"], row["connectionId"]) for row in sink.tables["TASK"]]
    assert tasks[:2] == [(0, calls[1_100]), (1, calls[1_300])]
    assert tasks[2][1] not in calls.values()
    assert [row["globalPid"] for row in sink.tables["TASK"]] == [PID, 200, 200]
    assert sink.anomalies == {"task_without_launch": 1}


def test_kernels_of_a_graph_launch_share_its_connection_id(tmp_path: Path) -> None:
    kernels = [kernel(2_000 + i, 2_001 + i, 7, graphId=5, graphNodeId=i) for i in range(3)]
    sink = decode_tables(tmp_path, small(**{KERNELS: kernels}))
    assert [row["connectionId"] for row in sink.tables["TASK"]] == [7, 7, 7]
    assert sink.rows("UPROF_GPU_TASKS", "graphId", "graphNodeId") == [(5, 0), (5, 1), (5, 2)]


def test_graph_replay_is_one_task_and_an_anomaly(tmp_path: Path) -> None:
    replay = {**kernel(2_000, 9_000, 7), "graphId": 3}
    sink = decode_tables(
        tmp_path, small(**{KERNELS: [], "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [replay]})
    )
    assert sink.rows("TASK", "taskType", texts=["taskType"]) == [("CUDA_GRAPH",)]
    assert sink.rows("COMPUTE_TASK_INFO", "name", "taskType", texts=["name", "taskType"]) == [
        ("CUDA graph 3", "AI_CORE")
    ]
    assert sink.anomalies == {"graph_without_kernels": 1}
    assert "--cuda-graph-trace=node" in sink.details["graph_without_kernels"]


def test_cuda_ordinals_are_mapped_to_gpus_by_process(tmp_path: Path) -> None:
    devices = [{"gpuId": 4, "cudaId": 0, "pid": PID}, {"gpuId": 6, "cudaId": 0, "pid": 200}]
    gpus = [{"id": 4, "name": "H100", "smCount": 132}, {"id": 6, "name": "H200"}]
    kernels = [kernel(1, 2, 7), kernel(1, 2, 8, globalPid=packed(200))]
    sink = decode_tables(
        tmp_path, small(TARGET_INFO_CUDA_DEVICE=devices, TARGET_INFO_GPU=gpus, **{KERNELS: kernels})
    )
    assert [row["deviceId"] for row in sink.tables["TASK"]] == [4, 6]
    assert sink.rows("NPU_INFO", "id", "name") == [(4, "H100"), (6, "H200")]
    assert (4, "smCount", "132") in sink.rows("UPROF_GPU_DEVICES", "deviceId", "name", "value")


@pytest.mark.parametrize(
    ("kinds", "name", "direction"),
    [
        ({"copyKind": 1, "srcKind": 0, "dstKind": 2}, "Memcpy HtoD (Pageable -> Device)", 1),
        ({"copyKind": 2, "srcKind": 2, "dstKind": 1}, "Memcpy DtoH (Device -> Pinned)", 2),
        ({"copyKind": 3, "srcKind": 1, "dstKind": 3}, "Memcpy HtoA (Pinned -> Array)", 1),
        ({"copyKind": 4, "srcKind": 3, "dstKind": 1}, "Memcpy AtoH (Array -> Pinned)", 2),
        ({"copyKind": 8, "srcKind": 2, "dstKind": 2}, "Memcpy DtoD (Device -> Device)", 3),
        ({"copyKind": 9, "srcKind": 0, "dstKind": 0}, "Memcpy HtoH (Pageable -> Pageable)", 0),
        ({"copyKind": 10, "srcKind": 2, "dstKind": 2}, "Memcpy PtoP (Device -> Device)", 3),
        ({"copyKind": 11, "srcKind": 4, "dstKind": 4}, "Memcpy HtoD (Unified)", 1),
        ({"copyKind": 13, "srcKind": 4, "dstKind": 4}, "Memcpy DtoD (Unified)", 3),
        ({"copyKind": 99, "srcKind": 99, "dstKind": None}, "Memcpy Unknown", 65535),
    ],
)
def test_copies_have_a_direction(
    tmp_path: Path, kinds: dict[str, int], name: str, direction: int
) -> None:
    sink = decode_tables(tmp_path, small(**{KERNELS: [], COPIES: [copy(2_000, 3_000, 7, **kinds)]}))
    assert sink.rows("UPROF_GPU_TASKS", "name", "sizeBytes", texts=["name"]) == [(name, 4096)]
    assert sink.rows("MEMCPY_INFO", "memcpyOperation", "size") == [(direction, 4096)]


def test_memsets_event_waits_and_event_records_are_written(tmp_path: Path) -> None:
    def wait(start: int, correlation: int, kind: int, event: int, event_sync: int) -> Row:
        row = {**copy(start, start + 10, correlation), "syncType": kind}
        return {**row, "eventId": event, "eventSyncId": event_sync}

    record = {"timestamp": 5, "streamId": 21, "correlationId": 10, "eventId": 5, "eventSyncId": 6}
    tables: Tables = {
        SETS: [{**copy(6_000, 6_100, 9), "memKind": 2, "bytes": 64}],
        WAITS: [wait(10, 11, 2, 5, 6), wait(30, 12, 3, 2**32 - 1, 2**32 - 1)],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [{**copy(0, 0, 10), **record}],
    }
    sink = decode_tables(tmp_path, {**small(), **tables})
    assert sink.rows(
        "UPROF_GPU_SYNCS",
        *("kind", "streamId", "correlationId", "waitStream", "waitEvent", "waitRecord"),
        texts=["kind"],
    ) == [
        ("Event Record", 21, 10, None, 5, None),
        ("Stream Wait Event", 7, 11, 21, 5, 10),
        ("Stream Synchronize", 7, 12, None, None, None),
    ]
    sets = sink.rows("UPROF_GPU_TASKS", "name", "sizeBytes", texts=["name"])
    assert ("Memset (Device)", 64) in sets


# ---- NVTX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::mm, op_id = 314", ("aten::mm", -1, 314, "")),
        ("aten::mm, seq = 5, op_id = 3", ("aten::mm", 5, 3, "")),
        ("aten::mm, seq = 5", ("aten::mm", 5, -1, "")),
        (
            "aten::mm, seq = 5, op_id = 3, sizes = [[2, 3], []], input_op_ids = [(1,0)]",
            ("aten::mm", 5, 3, "[[2, 3], []]"),
        ),
        ("FSDP::all_gather, op_id = 8", ("FSDP::all_gather", -1, 8, "")),
        ("aten::mm", ("aten::mm", -1, -1, "")),
        ("forward, op_id = x", None),
        ("forward", None),
        (", op_id = 3", None),
        ("", None),
    ],
)
def test_operation_names_of_emit_nvtx_are_parsed(text: str, expected: object) -> None:
    assert as_operation(text) == expected


def test_backward_operations_have_their_sequence_number_and_shapes(tmp_path: Path) -> None:
    ranges = [
        pushed(1_000, 1_500, "aten::mm, seq = 4, op_id = 1, sizes = [[2, 3], [3, 4]]"),
        pushed(1_600, 1_700, "MmBackward0, seq = 4, op_id = 2"),
    ]
    sink = decode_tables(tmp_path, small(**{RANGES: ranges}))
    assert sink.rows(
        "PYTORCH_API",
        *("name", "sequenceNumber", "fwdThreadId", "inputShapes"),
        texts=["name", "inputShapes"],
    ) == [("aten::mm", 4, 0, "2,3;\r\n3,4"), ("MmBackward0", 4, 1, "N/A")]


@pytest.mark.parametrize(("pushes", "starts", "marks"), [(59, 60, 34), (70, 71, 65)])
def test_ranges_have_domain_kind_and_thread(
    tmp_path: Path, pushes: int, starts: int, marks: int
) -> None:
    text_of_string = {"text": None, "textId": 1}
    ranges = [
        {**pushed(0, None, "NCCL"), "eventType": 75, "domainId": 3},
        {**pushed(0, None, "main loop"), "eventType": 39},
        pushed(1_000, 1_500, "aten::mm, op_id = 3"),
        pushed(10, 20, "ncclAllReduce", domainId=3, eventType=pushes),
        pushed(10, 30, "ProfilerStep#12"),
        {**pushed(40, 50, None), **text_of_string},
        {**pushed(60, 90, "async", rangeId=44, endGlobalTid=packed(PID, 102)), "eventType": starts},
        {**pushed(70, None, "mark"), "eventType": marks},
        pushed(95, None, "open"),
    ]
    sink = decode_tables(tmp_path, small(**{RANGES: ranges}))
    found = sink.rows(
        "MSTX_EVENTS",
        *("message", "domainId", "eventType", "startNs", "endNs", "rangeId", "endGlobalTid"),
        texts=["message", "domainId"],
    )
    other, thread, none = PID << 32 | 102, PID << 32 | TID, 4294967295
    assert [(*row[:3], row[3] - BASE, row[4] - BASE, *row[5:]) for row in found] == [
        ("ncclAllReduce", "NCCL", 2, 10, 20, none, thread),
        ("ProfilerStep#12", "default", 2, 10, 30, none, thread),
        ("void gemm<float>()", "default", 2, 40, 50, none, thread),
        ("open", "default", 2, 95, 5_000, none, thread),
        ("async", "default", 2, 60, 90, 44, other),
        ("mark", "default", 0, 70, 70, none, thread),
    ]
    assert set(sink.rows("MSTX_EVENTS", "connectionId")) == {(none,)}  # what clients skip
    assert sink.rows("STEP_TIME", "id") == [(12,)]
    assert (thread, "main loop") in sink.rows("UPROF_THREADS", "globalTid", "threadName")
    assert sink.anomalies == {"range_not_ended": 1}


def test_nvtx_payloads_are_written_as_arguments(tmp_path: Path) -> None:
    ranges = [
        pushed(10, 20, "step", uint64Value=5, jsonText=None),
        pushed(30, 40, "nccl", uint64Value=None, jsonText='{"Message size [bytes]": 64}'),
    ]
    sink = decode_tables(tmp_path, small(**{RANGES: ranges}))
    assert sink.rows("UPROF_TRACE_EVENTS", "name", "args", texts=["name"]) == [
        ("step", '{"payload": 5}'),
        ("nccl", '{"payload": {"Message size [bytes]": 64}}'),
    ]


# ---- memory, metrics, metadata


def test_memory_in_use_is_summed_from_cuda_allocations(tmp_path: Path) -> None:

    events = [
        memory_event(5, 0, 100),
        memory_event(6, 0, 50, address=2),
        memory_event(7, 1, 100),
        memory_event(8, 0, 9, kind=1),
    ]
    sink = decode_tables(tmp_path, small(CUDA_GPU_MEMORY_USAGE_EVENTS=events))
    assert sink.rows(
        "MEMORY_RECORD", "component", "totalAllocated", "deviceId", texts=["component"]
    ) == [("CUDA", 100, 0), ("CUDA", 150, 0), ("CUDA", 50, 0), ("CPU", 9, -1)]
    found = sorted((row["size"], row["duration"] or 0) for row in sink.tables["OP_MEMORY"])
    assert found == [(9, 0), (50, 0), (100, 2)]


def test_equal_addresses_in_two_processes_are_separate_allocations(tmp_path: Path) -> None:
    events = [memory_event(5, 0, 100), memory_event(6, 0, 50, pid=200), memory_event(7, 1, 100)]
    sink = decode_tables(tmp_path, small(CUDA_GPU_MEMORY_USAGE_EVENTS=events))
    assert sink.rows("MEMORY_RECORD", "totalAllocated") == [(100,), (150,), (50,)]
    assert sink.rows("OP_MEMORY", "size", "duration") == [(100, 2), (50, None)]
    assert sink.anomalies == {}


def test_diagnostics_of_nsys_are_anomalies(tmp_path: Path) -> None:
    diagnostics = [
        {"severity": 1, "text": "fine"},
        {"severity": 4, "text": "verbose"},
        {"severity": 2, "text": "12 events lost"},
        {"severity": 3, "text": "token=ghp_abcdefghijklmnopqrstuvwxyz0123456789"},
    ]
    thread = {"globalTid": packed(PID, TID)}
    overhead = {"start": 10, "end": 2_000_010, "nameId": 1, "overheadType": 8, **thread}
    library = {"start": 5, "end": 6, "nameId": 2, **thread}
    tables = small(
        DIAGNOSTIC_EVENT=diagnostics,
        CUPTI_ACTIVITY_KIND_OVERHEAD=[overhead],
        OSRT_API=[library],
        SCHED_EVENTS=[{"start": 1}],
        **{CALLS: [call(1_100, 1_200, 7), call(1_300, 1_400, 8, returnValue=700)]},
    )
    sink = decode_tables(tmp_path, tables)
    errors = ("diagnostic_error", "launch_queue_full", "table_not_read", "failed_call")
    assert sink.anomalies == {"diagnostic_warning": 1, **dict.fromkeys(errors, 1)}
    assert sink.details["diagnostic_warning"] == "12 events lost"
    assert "ghp_" not in sink.details["diagnostic_error"]
    assert "2 ms" in sink.details["launch_queue_full"]
    assert sink.details["failed_call"] == "cudaLaunchKernel returned 700 (1 times)"
    assert sink.rows("UPROF_TRACE_EVENTS", "category", "args", texts=["category"]) == [
        ("osrt", None),
        ("overhead", '{"type": "command buffer full"}'),
    ]


def test_gpu_metric_samples_are_written(tmp_path: Path) -> None:
    names = [{"typeId": 0x1_0000_0002, "metricId": 9, "metricName": "SM Active [%]"}]
    samples: list[Row] = [
        {"timestamp": 10, "typeId": 0x1_0000_0002, "metricId": 9, "value": 55},
        {"timestamp": 20, "typeId": 0x1_0000_0002, "metricId": 10, "value": None},
    ]
    sink = decode_tables(tmp_path, small(TARGET_INFO_GPU_METRICS=names, GPU_METRICS=samples))
    found = sink.rows("UPROF_GPU_METRICS", "timestampNs", "deviceId", "name", texts=["name"])
    assert found == [(BASE + 10, 2, "SM Active [%]"), (BASE + 20, 2, "metric 10")]
    assert sink.tables["UPROF_GPU_METRICS"][0]["value"] == 55.0


def test_secrets_of_the_recorded_environment_are_not_written(tmp_path: Path) -> None:
    variable = "PROCESS_0:ENVIRONMENT_VARIABLE"
    capture = [
        {"name": variable, "value": "RANK=3"},
        {"name": variable, "value": "HF_TOKEN=hf_secret"},
        {"name": "PROCESS_0:USER_NAME", "value": "someone"},
        {"name": "CAPTURE_EVENT_TYPE", "value": "Cuda"},
    ]
    system = [
        {"name": "Hostname", "value": "node17"},
        {"name": "NvDriverVersion", "value": "580.95"},
    ]
    tables = small(META_DATA_CAPTURE=capture, TARGET_INFO_SYSTEM_ENV=system)
    sink = RowSink()
    path = write(tmp_path / "a.sqlite", tables)
    with foreign_tables(path) as opened:
        found = nsys.decode(path, opened, sink)
    text = f"{found.facts} {sink.tables} {sink.strings}"
    assert found.rank == 3
    assert sink.rows("RANK_DEVICE_MAP", "rankId", "deviceId") == [(3, 0)]
    assert found.facts["nsys_system"] == {"NvDriverVersion": "580.95"}
    assert found.facts["nsys_capture"] == {"CAPTURE_EVENT_TYPE": "Cuda", "RANK": "3"}
    for secret in ("hf_secret", "someone", "node17"):
        assert secret not in text


def test_only_threads_with_events_are_written(tmp_path: Path) -> None:
    processes = [
        {"globalPid": packed(), "pid": PID, "name": "python"},
        {"globalPid": packed(300), "pid": 300, "name": "sshd"},
    ]
    names = [
        {"globalTid": packed(PID, TID), "nameId": 1},
        {"globalTid": packed(300, 300), "nameId": 1},
    ]
    sink = decode_tables(tmp_path, small(PROCESSES=processes, ThreadNames=names))
    assert sink.rows("UPROF_THREADS", "process", "processName", "threadName") == [
        ("100", "python", "void gemm<float>()")
    ]


def test_equal_process_ids_of_two_virtual_machines_are_distinct(tmp_path: Path) -> None:
    twin = packed(PID, TID) ^ (3 << 48)
    calls = [call(1_100, 1_200, 7), call(1_300, 1_400, 7, globalTid=twin)]
    sink = decode_tables(tmp_path, small(**{CALLS: calls, RANGES: []}))
    threads = sink.tables["UPROF_THREADS"]
    assert [row["process"] for row in threads] == ["100", "100 of VM 2"]
    assert sink.anomalies == {"process_id_replaced": 1}
    assert sink.tables["TASK"][0]["connectionId"] == 7


def test_session_times_are_those_of_the_derived_window(tmp_path: Path) -> None:
    tables = small(ANALYSIS_DETAILS=[{"duration": 10**9}])
    window = {"name": "DERIVED_WINDOW_NS", "value": "900-9000"}
    tables["META_DATA_EXPORT"] = [*tables["META_DATA_EXPORT"], window]
    sink = decode_tables(tmp_path, tables)
    assert sink.rows("SESSION_TIME_INFO", "startTimeNs", "endTimeNs") == [(BASE + 900, BASE + 9000)]


def test_export_with_the_minimum_of_columns_is_decoded(tmp_path: Path) -> None:
    bare = {"start": 10, "end": 20, "deviceId": 0, "streamId": 7, "correlationId": 5}
    launch = {"start": 1, "end": 2, "correlationId": 5, "globalTid": 1}
    one = decode_tables(tmp_path, {KERNELS: [bare], CALLS: [launch]})
    assert one.tables["TASK"][0]["connectionId"] == one.tables["CANN_API"][0]["connectionId"]
    assert one.anomalies == {"relative_times": 1}
    names = one.rows("UPROF_GPU_TASKS", "name", "gridDim", texts=["name", "gridDim"])
    assert names == [("N/A", "N/A")]
    second = {**launch, "globalTid": packed(5, 5), "start": 2}
    two = decode_tables(tmp_path, {KERNELS: [bare], CALLS: [launch, second]})
    assert two.anomalies == {"relative_times": 1, "task_without_launch": 1}, "two processes"
    without_launch = [{"start": 1, "end": 2, "deviceId": 0, "streamId": 3}]
    assert len(decode_tables(tmp_path, {KERNELS: without_launch}).tables["TASK"]) == 1
