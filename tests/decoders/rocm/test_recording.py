"""rocprofv3 recordings: databases and JSON give equal rows, damaged ones are refused."""

import json
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.decoders.kineto.builders import RowSink
from tests.decoders.rocm.builders import (
    UUID,
    as_json,
    decode,
    event,
    region,
    small,
    write,
    write_json,
)
from tests.sql import execute
from unified_prof.cli.app import app
from unified_prof.errors import OutputError, RawFormatError, UprofError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import find_source


@pytest.fixture(params=[".db", ".json"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"results{request.param}"
    return write(path, small()) if request.param == ".db" else write_json(path, as_json())


def check_small(sink: RowSink) -> None:
    assert sink.rows(
        "COMPUTE_TASK_INFO",
        *("name", "opType", "gridDim", "blockDim", "blockNum"),
        texts=["name", "opType", "gridDim", "blockDim"],
    ) == [("gemm()", "aten::mm", "4,4,1", "256,1,1", 16)]
    assert sink.rows("TASK", "startNs", "endNs", "deviceId", "streamId", "globalPid") == [
        (1_500, 3_500, 0, 4, 4242),
        (2_150, 2_400, 0, 4, 4242),
    ]
    calls = sink.rows("CANN_API", "name", "connectionId", texts=["name"])
    tasks = [row["connectionId"] for row in sink.tables["TASK"]]
    assert [dict(calls)[name] for name in ("hipLaunchKernel", "hipMemcpyAsync")] == tasks
    names = sink.rows("UPROF_GPU_TASKS", "name", "sizeBytes", texts=["name"])
    assert names[1] == ("Memcpy HtoD", 4096)
    assert sink.rows("MEMCPY_INFO", "memcpyOperation", "size") == [(1, 4096)]
    assert sink.rows("UPROF_GPU_TASKS", "registersPerThread", "sharedMemoryBytes")[0] == (48, 1024)
    columns = ("message", "eventType", "connectionId")
    assert sink.rows("MSTX_EVENTS", *columns, texts=["message"]) == [("step", 2, 4294967295)]
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("aten::mm",)]
    memory = sink.rows("MEMORY_RECORD", "component", "totalAllocated", texts=["component"])
    assert memory == [("ROCm", 64), ("ROCm", 0)]
    assert sink.rows("OP_MEMORY", "size", "duration") == [(64, 3_500)]
    assert sink.rows("NPU_INFO", "id", "name") == [(0, "AMD Instinct MI300X")]
    assert sink.anomalies == {"relative_times": 1}
    assert "secret" not in str(sink.tables)


def test_database_and_json_give_equal_rows(recording: Path) -> None:
    check_small(decode(recording))
    source = find_source(recording)
    assert source is not None
    assert source.kind == "rocm"


def test_openmp_regions_and_thread_names_are_written(tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", small()))
    assert sink.rows("UPROF_TRACE_EVENTS", "category", "name", texts=["category", "name"]) == [
        ("OMPT", "parallel")
    ]
    assert ("4243", "python") in sink.rows("UPROF_THREADS", "thread", "threadName")


def test_sessions_of_one_file_are_separate(tmp_path: Path) -> None:
    sink = decode(write(tmp_path / "a.db", small(), small()))
    assert len(sink.tables["TASK"]) == 4
    connections = [row["connectionId"] for row in sink.tables["CANN_API"]]
    assert len(set(connections)) == 4
    assert sorted(row["connectionId"] for row in sink.tables["TASK"]) == sorted(connections)
    assert sink.anomalies == {"relative_times": 1}


def test_tables_without_uuid_and_with_correlation_ids_are_joined(tmp_path: Path) -> None:
    tables = small()
    check_small(decode(write(tmp_path / "plain.db", small(), uuids=[""])))
    tables["event"] = [
        {**row, "stack_id": 0, "correlation_id": row["stack_id"]} for row in tables["event"]
    ]
    check_small(decode(write(tmp_path / "a.db", tables)))


def test_dispatch_without_call_is_kept(tmp_path: Path) -> None:
    """The vendor's view omits dispatches without a region."""
    tables = small()
    tables["region"] = [region(1, 1_000, 1_900, 4, 1)]
    sink = decode(write(tmp_path / "a.db", tables))
    assert len(sink.tables["TASK"]) == 2
    assert sink.anomalies == {"relative_times": 1, "task_without_launch": 2}


def test_copies_have_a_direction(tmp_path: Path) -> None:
    tables = small()
    (first,) = tables["memory_copy"]
    gpu = {**tables["info_agent"][1], "id": 3, "type_index": 1}
    tables["info_agent"] = [*tables["info_agent"], gpu]
    pairs = [(2, 1), (2, 2), (2, 3), (1, 1), (99, 2)]
    tables["memory_copy"] = [
        {**first, "start": 10 * at, "src_agent_id": source, "dst_agent_id": target}
        for at, (source, target) in enumerate(pairs)
    ]
    tables["kernel_dispatch"] = []
    sink = decode(write(tmp_path / "a.db", tables))
    names = [name for (name,) in sink.rows("UPROF_GPU_TASKS", "name", texts=["name"])]
    assert names == [f"Memcpy {way}" for way in ("DtoH", "DtoD", "PtoP", "HtoH", "Unknown")]
    assert [row["deviceId"] for row in sink.tables["TASK"]] == [0, 0, 1, -1, 0]


def test_unread_tables_are_counted(tmp_path: Path) -> None:
    tables = small()
    tables["info_shader"] = [{"id": 1}]
    tables["sample"] = []
    sink = decode(write(tmp_path / "a.db", tables))
    assert sink.anomalies == {"relative_times": 1, "table_not_read": 1}
    assert sink.details["table_not_read"].startswith("rocpd_info_shader_")


def test_views_of_the_database_are_not_executed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", small())
    execute(path, "DROP VIEW rocpd_string")
    execute(
        path,
        "CREATE VIEW rocpd_string AS WITH RECURSIVE r(id) AS"
        " (SELECT 1 UNION ALL SELECT id FROM r) SELECT id, 'x' AS string FROM r",
    )
    check_small(decode(path))


def test_recording_becomes_a_report_and_is_never_lost(recording: Path, tmp_path: Path) -> None:
    conversion = convert(recording, tmp_path / "out.db")
    assert conversion.kind == "rocm"
    for command in (
        ["report", str(conversion.database), "--format", "json"],
        ["trace", str(conversion.database), "-o", str(tmp_path / "t.json")],
        ["diff", str(conversion.database), str(conversion.database)],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "t.json").read_text())
    before = recording.read_bytes()
    with pytest.raises(OutputError, match="is the recording itself"):
        convert(recording, recording, force=True)
    assert recording.read_bytes() == before


def test_empty_recordings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RawFormatError, match="has no event"):
        decode(write(tmp_path / "a.db", {"metadata": [], "region": []}))
    with pytest.raises(RawFormatError, match="has no event"):
        decode(write_json(tmp_path / "a.json", {"rocprofiler-sdk-tool": [{}]}))
    with pytest.raises(RawFormatError, match="not a recording of rocprofv3"):
        decode(write_json(tmp_path / "b.json", [1]))


_ODD: tuple[Any, ...] = (
    *(None, "", "word", -1, 0, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 1.5, 1e300),
    *("x" * 70_000, '{"message": [', '{"message": 5}', "[]", "aten::x, seq = 5"),
)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("seed", range(3))
def test_random_values_are_refused_or_decoded(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tables = small()
    intact = write(tmp_path / "whole.db", tables).read_bytes()
    path = tmp_path / "a.db"
    for _ in range(20):
        path.write_bytes(intact)
        with closing(sqlite3.connect(path)) as db, db:
            for _ in range(chance.choice((1, 4, 20))):
                table = f"rocpd_{chance.choice(list(tables))}{UUID}"
                columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
                db.execute(
                    f'UPDATE "{table}" SET "{chance.choice(columns)}" = ?', [chance.choice(_ODD)]
                )
        with suppress(RawFormatError):
            assert decode(path).tables["SESSION_TIME_INFO"]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("seed", range(3))
def test_random_json_is_refused_or_decoded(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    values = (*_ODD, 2**70, [], {}, [{}], {"handle": []}, True)

    def damage(value: Any, depth: int = 0) -> Any:
        if depth > 2 and chance.random() < 0.03:
            return chance.choice(values)
        if isinstance(value, dict):
            return {key: damage(item, depth + 1) for key, item in value.items()}
        return [damage(item, depth + 1) for item in value] if isinstance(value, list) else value

    for _ in range(40):
        with suppress(RawFormatError):
            decode(write_json(tmp_path / "a.json", damage(as_json())))


@pytest.mark.parametrize("ending", [".db", ".json"])
def test_damaged_bytes_are_refused_or_decoded(tmp_path: Path, ending: str) -> None:
    chance = random.Random(3)
    intact = tmp_path / f"whole{ending}"
    (write(intact, small()) if ending == ".db" else write_json(intact, as_json()))
    data = intact.read_bytes()
    path = tmp_path / f"damaged{ending}"
    for _ in range(60):
        damaged = bytearray(data)
        if chance.random() < 0.3:
            del damaged[chance.randrange(100, len(damaged)) :]
        for _ in range(chance.choice((1, 10, 100))):
            damaged[chance.randrange(16, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        with suppress(UprofError):
            decode(path)


@pytest.mark.parametrize(
    "events", [[event(99, 1, 5)], [event(at, 1, 2**40) for at in (2, 3, 4, 5)]]
)
def test_tasks_without_valid_event_have_no_launch(tmp_path: Path, events: list[Any]) -> None:
    """Ids of one session are below 2**40, so that those of the next begin there."""
    tables = small()
    tables["event"] = events
    sink = decode(write(tmp_path / "a.db", tables))
    assert sink.anomalies["task_without_launch"] == 2
