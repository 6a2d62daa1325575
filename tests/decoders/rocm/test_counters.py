"""Hardware counters of AMD devices: per dispatch, and sampled over time."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.rocm.builders import (
    RocpdTables,
    as_json,
    decode,
    event,
    small,
    write,
    write_json,
)
from unified_prof.explain.api import open_analyses
from unified_prof.pipeline.convert import convert


def pmc(number: int, of_event: object, counter: object, value: object) -> Any:
    return {"id": number, "event_id": of_event, "pmc_id": counter, "value": value}


def with_counters(*values: Any, **more: Any) -> RocpdTables:
    tables = small()
    tables["info_pmc"] = [
        {"id": 1, "agent_id": 2, "name": "SQ_WAVES", "symbol": "SQ_WAVES"},
        {"id": 2, "agent_id": 2, "name": None, "symbol": "GRBM_COUNT"},
        {"id": 3, "agent_id": 1, "name": "CPU busy"},
    ]
    tables["pmc_event"] = values
    return {**tables, **more}


def task_counters(sink: RowSink) -> list[tuple[Any, ...]]:
    names = {row["globalTaskId"]: row["name"] for row in sink.tables["UPROF_GPU_TASKS"]}
    rows = sink.rows("TASK_PMU_INFO", "globalTaskId", "name", "value", texts=["name"])
    return [(sink.text(names[task]), counter, value) for task, counter, value in rows]


def test_counters_of_a_dispatch_are_written(tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", with_counters(pmc(1, 3, 2, 12.5), pmc(2, 3, 1, 4))))
    assert sorted(task_counters(sink)) == [
        ("gemm()", "GRBM_COUNT", 12.5),
        ("gemm()", "SQ_WAVES", 4),
    ]
    assert sink.anomalies == {"relative_times": 1}


def test_counters_of_several_places_are_summed(tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", with_counters(*(pmc(n, 3, 1, 4) for n in range(1, 9)))))
    assert task_counters(sink) == [("gemm()", "SQ_WAVES", 32)]


def test_counters_belong_to_their_session(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", with_counters(pmc(1, 3, 1, 4)), with_counters(pmc(1, 3, 1, 5)))
    assert sorted(value for _, _, value in task_counters(decode(path))) == [4, 5]


def test_samples_are_metrics_over_time(tmp_path: Path) -> None:
    tables = with_counters(
        *(pmc(1, 20, 1, 60.0), pmc(2, 21, 1, 70.0), pmc(3, 20, 3, 1.0)),
        sample=[
            {"id": 1, "track_id": 1, "timestamp": 3_000, "event_id": 20},
            {"id": 2, "track_id": 1, "timestamp": 3_100, "event_id": 21},
        ],
    )
    tables["event"] = [*tables["event"], event(20, 0, 0), event(21, 0, 0)]
    sink = decode(write(tmp_path / "a.db", tables))
    columns = ("timestampNs", "deviceId", "name", "value")
    assert sink.rows("UPROF_GPU_METRICS", *columns, texts=["name"]) == [
        (3_000, 0, "SQ_WAVES", 60.0),
        (3_100, 0, "SQ_WAVES", 70.0),
    ]
    assert sink.anomalies["counter_without_task"] == 1, "the CPU's counter"


@pytest.mark.parametrize(
    "invalid",
    [
        pmc(1, 99, 1, 5),
        pmc(1, None, 1, 5),
        pmc(1, 3, 1, None),
        pmc(1, 3, 1, "many"),
        pmc(1, -5, 1, 1),
    ],
)
def test_counters_without_task_or_value_are_counted(invalid: Any, tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", with_counters(invalid, pmc(2, 3, 1, 4))))
    assert task_counters(sink) == [("gemm()", "SQ_WAVES", 4)]
    assert sink.anomalies["counter_without_task"] == 1


def test_counter_without_a_name_is_kept(tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", with_counters(pmc(1, 3, 77, 4))))
    assert task_counters(sink) == [("gemm()", "N/A", 4)]


def json_with_counters(traced: bool, **record: Any) -> dict[str, Any]:
    document = as_json()
    (session,) = document["rocprofiler-sdk-tool"]
    (dispatch,) = session["buffer_records"]["kernel_dispatch"]
    dispatch["dispatch_info"]["dispatch_id"] = 1
    session["counters"] = [
        {"id": {"handle": 501}, "agent_id": {"handle": 88}, "name": "SQ_WAVES"},
        {"id": {"handle": 502}, "agent_id": {"handle": 88}, "name": "GRBM_COUNT"},
    ]
    session["callback_records"] = {
        "counter_collection": [
            {
                "thread_id": 4243,
                "dispatch_data": {
                    name: dispatch[name]
                    for name in (
                        "correlation_id",
                        "start_timestamp",
                        "end_timestamp",
                        "dispatch_info",
                    )
                },
                "records": [
                    {"counter_id": {"handle": 501}, "value": 3.0},
                    {"counter_id": {"handle": 501}, "value": 1},
                    {"counter_id": {"handle": 502}, "value": 12.5},
                ],
                **record,
            }
        ]
    }
    if not traced:
        session["buffer_records"]["kernel_dispatch"] = []
    return document


@pytest.mark.parametrize("traced", [True, False])
def test_json_counters_equal_those_of_a_database(traced: bool, tmp_path: Path) -> None:
    sink = decode(write_json(tmp_path / "a.json", json_with_counters(traced)))
    assert sorted(task_counters(sink)) == [
        ("gemm()", "GRBM_COUNT", 12.5),
        ("gemm()", "SQ_WAVES", 4),
    ]
    assert len(sink.tables["COMPUTE_TASK_INFO"]) == 1, "one dispatch, traced or not"
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("aten::mm",)]


@pytest.mark.parametrize(
    "invalid",
    [
        {"records": 5},
        {"records": [5, {"counter_id": 7}, {"value": "x"}]},
        {"dispatch_data": "none"},
        {"dispatch_data": {}},
        {"records": [{"counter_id": {"handle": 501}, "value": 10**400}]},
    ],
)
def test_invalid_json_counters_do_not_drop_tasks(invalid: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(json_with_counters(True, **invalid)))
    assert decode(path).tables["TASK"]


def test_counters_are_totaled_by_operator(tmp_path: Path) -> None:
    recording = write(tmp_path / "a.db", with_counters(pmc(1, 3, 1, 4)))
    with open_analyses(convert(recording, tmp_path / "r.db").database) as (analysis,):
        (figure,) = analysis.pmu()
    totals = (figure.op_type, figure.counter, figure.tasks, figure.total)
    assert totals == ("aten::mm", "SQ_WAVES", 1, 4.0)


def test_impossible_register_counts_are_unknown(tmp_path: Path) -> None:
    tables = small()
    tables["info_kernel_symbol"] = [{"id": 9, "arch_vgpr_count": 2**63 - 1, "accum_vgpr_count": 9}]
    sink = decode(write(tmp_path / "a.db", tables))
    assert sink.rows("UPROF_GPU_TASKS", "registersPerThread")[0] == (None,)
