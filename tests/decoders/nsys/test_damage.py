"""Damaged, truncated, hostile or unfinished exports are refused or counted."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.nsys.builders import (
    CALLS,
    COPIES,
    KERNELS,
    RANGES,
    SETS,
    WAITS,
    Tables,
    call,
    copy,
    decode_tables,
    kernel,
    memory_event,
    packed,
    pushed,
    small,
)
from unified_prof.base.columns import MISSING
from unified_prof.decoders.nsys.columns import Fields
from unified_prof.errors import RawFormatError

# Every table that the decoder reads, so that random values reach all of it.
WHOLE: Tables = {
    **small(),
    KERNELS: [kernel(2_000 + i, 2_500 + i, i) for i in range(1, 20)],
    CALLS: [call(1_000 + i, 1_100 + i, i) for i in range(1, 20)],
    COPIES: [copy(3_000, 3_100, 30)],
    SETS: [{**copy(3_200, 3_300, 31), "memKind": 2}],
    WAITS: [{**copy(5, 6, 32), "syncType": 2, "eventId": 1, "eventSyncId": 2}],
    RANGES: [
        pushed(900, 4_000, "aten::mm, seq = 1, op_id = 3, sizes = [[1]]"),
        pushed(10, 20, "step", int64Value=4, jsonText='{"a": 1}'),
        {**pushed(60, 90, "r"), "eventType": 60},
    ],
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [
        {"timestamp": 4, "globalPid": packed(), "eventSyncId": 2, "streamId": 3}
    ],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{**kernel(2_000, 9_000, 7), "graphId": 3}],
    "CUPTI_ACTIVITY_KIND_OVERHEAD": [
        {"start": 1, "end": 2, "globalTid": packed(), "nameId": 1, "overheadType": 8}
    ],
    "OSRT_API": [{"start": 5, "end": 6, "globalTid": packed(), "nameId": 2}],
    "CUDA_GPU_MEMORY_USAGE_EVENTS": [memory_event(5, 0, 4)],
    "DIAGNOSTIC_EVENT": [{"severity": 2, "text": "lost"}],
    "GPU_METRICS": [{"timestamp": 10, "typeId": 1, "metricId": 9, "value": 55}],
    "TARGET_INFO_GPU_METRICS": [{"typeId": 1, "metricId": 9, "metricName": "SM"}],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 0, "cudaId": 0, "pid": 100}],
    "TARGET_INFO_GPU": [{"id": 0, "name": "H100", "smCount": 5}],
    "TARGET_INFO_SYSTEM_ENV": [{"name": "GpuInfo", "value": '{"Gpus": [{"Id": 0}]}'}],
    "META_DATA_CAPTURE": [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": "RANK=1"}],
    "ANALYSIS_DETAILS": [{"duration": 10_000}],
    "PROCESSES": [{"globalPid": packed(), "name": "python"}],
    "ThreadNames": [{"globalTid": packed(100, 101), "nameId": 1}],
}


def test_intact_export_is_decoded(tmp_path: Path) -> None:
    sink = decode_tables(tmp_path, WHOLE)
    assert len(sink.tables["TASK"]) == 22
    assert set(sink.anomalies) == set(
        "graph_without_kernels launch_queue_full diagnostic_warning task_without_launch".split()
    )


def test_tasks_without_valid_times_are_skipped_and_counted(tmp_path: Path) -> None:
    kernels = [
        kernel(2_000, 5_000, 7),
        kernel(None, 5_000, 8),
        kernel(2_000, None, 9),
        kernel(3_000, 2_000, 10),
        kernel(2**63 - 1, 2**63 - 1, 11),
    ]
    sink = decode_tables(tmp_path, small(**{KERNELS: kernels}))
    assert len(sink.tables["TASK"]) == 1
    assert sink.anomalies == {"event_without_time": 3, "negative_duration": 1}


def test_calls_and_ranges_without_thread_are_skipped_and_counted(tmp_path: Path) -> None:
    ranges = [pushed(1_000, 1_500, "aten::mm, op_id = 3", globalTid=None), pushed(1, 2, "x")]
    tables = small(**{CALLS: [call(1_100, 1_200, 7, globalTid=None)], RANGES: ranges})
    sink = decode_tables(tmp_path, tables)
    assert sink.anomalies["event_without_thread"] == 2
    assert "CANN_API" not in sink.tables
    assert len(sink.tables["TASK"]) == 1


def test_export_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RawFormatError, match="no events, its tables are empty"):
        decode_tables(tmp_path, {KERNELS: [], "StringIds": []})
    with pytest.raises(RawFormatError, match="has no CUDA or NVTX events"):
        decode_tables(tmp_path, {"META_DATA_EXPORT": [{"name": "a", "value": "b"}]})


def test_missing_string_id_is_counted_as_unknown_text(tmp_path: Path) -> None:
    sink = decode_tables(tmp_path, small(**{KERNELS: [kernel(2_000, 3_000, 7, 99)]}))
    assert sink.anomalies == {"unknown_text": 1}
    assert sink.rows("COMPUTE_TASK_INFO", "name", texts=["name"]) == [("N/A",)]


def test_strings_over_the_limit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_prof.decoders.nsys.columns._TEXTS_IN_MEMORY_BYTES", 1)
    sink = decode_tables(tmp_path, small())
    assert sink.rows("COMPUTE_TASK_INFO", "name", texts=["name"]) == [("void gemm<float>()",)]


def test_ids_of_more_than_32_bits_are_counted() -> None:
    sink = RowSink()
    fields = cast(Fields, SimpleNamespace(parts=SimpleNamespace(sink=sink)))
    values = np.array([-(2**31) - 1, -(2**31), 2**31 - 1, 2**31], np.int64)
    assert Fields.small(fields, values, "stream").tolist() == [MISSING, *values[1:3], MISSING]
    assert dict(sink.anomalies) == {"unreadable_number": 2}
    assert Fields.small(fields, values[1:3], "stream").tolist() == values[1:3].tolist()
    assert dict(sink.anomalies) == {"unreadable_number": 2}
