"""Rows of small exports; real exports are tested in tests/pipeline/test_nsys_exports.py."""

import json
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.nsys.builders import (
    CALLS,
    KERNELS,
    PID,
    RANGES,
    TID,
    call,
    decode_tables,
    kernel,
    memory_event,
    packed,
    small,
    strings,
    write,
)
from unified_prof.decoders import nsys
from unified_prof.decoders.gpu.rows import as_operation
from unified_prof.decoders.nsys import recording
from unified_prof.sqlite.external_tables import foreign_tables

BASE = 1_700_000_000_000_000_000


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


# ---- memory, metrics, metadata


def test_equal_addresses_in_two_processes_are_separate_allocations(tmp_path: Path) -> None:
    events = [memory_event(5, 0, 100), memory_event(6, 0, 50, pid=200), memory_event(7, 1, 100)]
    sink = decode_tables(tmp_path, small(CUDA_GPU_MEMORY_USAGE_EVENTS=events))
    assert sink.rows("MEMORY_RECORD", "totalAllocated") == [(100,), (150,), (50,)]
    assert sink.rows("OP_MEMORY", "size", "duration") == [(100, 2), (50, None)]
    assert sink.anomalies == {}


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
    for sizes, expected in (({"dynamicSharedMemory": 8}, 8), ({"staticSharedMemory": 8}, None)):
        sink = decode_tables(tmp_path, {KERNELS: [bare | sizes], CALLS: [launch]})
        assert sink.rows("UPROF_GPU_TASKS", "sharedMemoryBytes") == [(expected,)]
    second = {**launch, "globalTid": packed(5, 5), "start": 2}
    two = decode_tables(tmp_path, {KERNELS: [bare], CALLS: [launch, second]})
    assert two.anomalies == {"relative_times": 1, "task_without_launch": 1}, "two processes"
    without_launch = [{"start": 1, "end": 2, "deviceId": 0, "streamId": 3}]
    assert len(decode_tables(tmp_path, {KERNELS: without_launch}).tables["TASK"]) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([0, 2**31 - 1], {0: {"name": "H100"}, 2**31 - 1: {"name": "H100"}}),
        ([2**31], {}),
        ([-1, "3"], {3: {"name": "H100"}}),
        (["x"], {}),
        ([None], {}),
    ],
)
def test_devices_of_a_textual_description(text: list[object], expected: dict[int, object]) -> None:
    listed = json.dumps({"Gpus": [{"Id": one, "Name": "H100"} for one in text]})
    assert recording._gpus_of_text(listed) == expected
    assert recording._gpus_of_text(listed[1:]) == recording._gpus_of_text("[]") == {}
