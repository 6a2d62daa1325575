"""Real Nsight Systems exports, compared with figures from SQL on the files."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from unified_prof.cli.app import app
from unified_prof.pipeline.convert import Conversion, convert
from unified_prof.sqlite.reader import Report

NAMES = ("h100_2gpu_1s", "mock", "healthy_1pct")


@pytest.fixture(scope="module")
def converted(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversion]:
    folder = tmp_path_factory.mktemp("nsys")
    made = {}
    for name in NAMES:
        packed = shared / "samples" / "nsys" / f"{name}.sqlite.xz"
        if not packed.exists():
            pytest.skip(f"no {packed.name}")
        export = folder / f"{name}.sqlite"
        export.write_bytes(lzma.decompress(packed.read_bytes()))
        made[name] = convert(export, folder / f"{name}.db")
    return made


def rows(converted: Conversion, statement: str) -> list[tuple[Any, ...]]:
    with Report(converted.database) as report:
        return [tuple(row) for row in report.rows(statement)]


_KINDS = (
    "SELECT t.deviceId, s.value, count(*), sum(t.endNs - t.startNs)"
    " FROM TASK t JOIN STRING_IDS s ON s.id = t.taskType GROUP BY 1, 2 ORDER BY 1, 2"
)
_COPIES = (
    "SELECT t.deviceId, m.memcpyOperation, count(*), sum(m.size), sum(t.endNs - t.startNs)"
    " FROM TASK t JOIN MEMCPY_INFO m USING (globalTaskId) GROUP BY 1, 2 ORDER BY 1, 2"
)
_SETS = (
    "SELECT t.deviceId, count(*), sum(g.sizeBytes), sum(t.endNs - t.startNs) FROM TASK t"
    " JOIN UPROF_GPU_TASKS g USING (globalTaskId) JOIN STRING_IDS s ON s.id = t.taskType"
    " WHERE s.value = 'MEMSET' GROUP BY 1 ORDER BY 1"
)
_JOINED = (
    "SELECT s.value, count(*) FROM TASK t JOIN STRING_IDS s ON s.id = t.taskType"
    " WHERE t.connectionId IN (SELECT connectionId FROM CANN_API) GROUP BY 1 ORDER BY 1"
)


def test_two_processes_of_an_h100(converted: dict[str, Conversion]) -> None:
    made = converted["h100_2gpu_1s"]
    assert rows(made, _KINDS) == [
        (0, "KERNEL", 1721, 22_385_163),
        (0, "MEMCPY_ASYNC", 452, 920_872_841 + 3_808 + 19_613_651),
        (0, "MEMSET", 11, 14_784),
        (1, "KERNEL", 1721, 22_444_359),
        (1, "MEMCPY_ASYNC", 452, 920_757_957 + 4_064 + 19_589_893),
        (1, "MEMSET", 11, 14_432),
    ]
    assert rows(made, _COPIES) == [
        (0, 1, 225, 25_475_253_792, 920_872_841),
        (0, 2, 2, 9, 3_808),
        (0, 3, 225, 29_684_236_288, 19_613_651),
        (1, 1, 225, 25_475_253_792, 920_757_957),
        (1, 2, 2, 9, 4_064),
        (1, 3, 225, 29_684_236_288, 19_589_893),
    ]
    assert rows(made, _SETS) == [(0, 11, 8_836, 14_784), (1, 11, 8_836, 14_432)]
    assert rows(made, _JOINED) == [("KERNEL", 1632), ("MEMCPY_ASYNC", 438), ("MEMSET", 22)]
    kernels = "FROM TASK t JOIN COMPUTE_TASK_INFO c USING (globalTaskId)"
    assert rows(made, f"SELECT min(startNs), max(endNs) {kernels} WHERE deviceId = 0") == [
        (1_779_630_014_975_716_426 + 155_360_295_935, 1_779_630_014_975_716_426 + 156_320_780_944)
    ]
    assert rows(made, f"SELECT DISTINCT deviceId, streamId {kernels} ORDER BY 1") == [
        (0, 7),
        (1, 15),
    ]
    assert rows(made, "SELECT count(DISTINCT name) FROM COMPUTE_TASK_INFO") == [(41,)]
    calls = "SELECT count(*), sum(endNs - startNs) FROM CANN_API"
    assert rows(made, calls) == [(5796, 1_799_142_046)]
    named = (
        "SELECT s.value, count(*) FROM CANN_API a JOIN STRING_IDS s ON s.id = a.name"
        " WHERE s.value IN ('cudaLaunchKernel', 'cudaLaunchKernelExC', 'cudaMemcpyAsync')"
        " GROUP BY 1 ORDER BY 1"
    )
    assert rows(made, named) == [
        ("cudaLaunchKernel", 2788),
        ("cudaLaunchKernelExC", 558),
        ("cudaMemcpyAsync", 914),
    ]
    operations = "SELECT count(*), sum(endNs - startNs) FROM PYTORCH_API"
    assert rows(made, operations) == [(16_782, 4_642_216_888)]
    waits = (
        "SELECT s.value, count(*) FROM UPROF_GPU_SYNCS w JOIN STRING_IDS s ON s.id = w.kind"
        " GROUP BY 1 ORDER BY 1"
    )
    assert rows(made, waits) == [("Stream Synchronize", 8), ("Stream Wait Event", 236)]
    assert rows(made, "SELECT sum(endNs - startNs) FROM UPROF_GPU_SYNCS") == [(857_291_122,)]
    names = (
        "SELECT s.value, count(*) FROM UPROF_GPU_TASKS g JOIN STRING_IDS s ON s.id = g.name"
        " WHERE s.value LIKE 'Memcpy HtoD%' GROUP BY 1 ORDER BY 1"
    )
    assert rows(made, names) == [
        ("Memcpy HtoD (Pageable -> Device)", 4),
        ("Memcpy HtoD (Pinned -> Device)", 446),
    ]
    resources = (
        "SELECT sum(registersPerThread), sum(sharedMemoryBytes) FROM UPROF_GPU_TASKS"
        " JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
    )
    ((registers, shared_memory),) = rows(made, resources)
    assert registers == 221_646
    assert shared_memory >= 18_426_880  # dynamic alone
    assert set(made.anomalies) == {"launch_queue_full", "task_without_launch"}
    assert made.anomalies["launch_queue_full"][0] == 198
    assert made.anomalies["task_without_launch"][0] == 4368 - 2092


def test_a_small_whole_export(converted: dict[str, Conversion]) -> None:
    made = converted["mock"]
    assert rows(made, _KINDS) == [(0, "KERNEL", 2, 4_129), (0, "MEMCPY_ASYNC", 1, 1_632)]
    assert rows(made, _JOINED) == [("KERNEL", 2), ("MEMCPY_ASYNC", 1)]
    assert rows(made, "SELECT count(*), sum(endNs - startNs) FROM CANN_API") == [(9, 40_737_950)]
    assert rows(made, "SELECT id, name FROM NPU_INFO") == [(0, "NVIDIA GeForce RTX 3080")]
    assert rows(made, "SELECT endTimeNs - startTimeNs FROM SESSION_TIME_INFO") == [(1_871_570_402,)]
    assert rows(made, "SELECT value FROM UPROF_GPU_DEVICES WHERE name = 'smCount'") == [("68",)]
    assert set(made.anomalies) == {"diagnostic_warning"}


def test_an_export_that_lacks_most_tables_and_columns(converted: dict[str, Conversion]) -> None:
    made = converted["healthy_1pct"]
    assert rows(made, _KINDS) == [(0, "KERNEL", 400, 400_000_000)]
    assert rows(made, _JOINED) == [("KERNEL", 400)]
    assert rows(made, "SELECT count(*), sum(endNs - startNs) FROM CANN_API") == [(400, 1_000_000)]
    assert set(made.anomalies) == {"relative_times"}


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("name", NAMES)
def test_reports_traces_and_comparisons_take_it(
    name: str, converted: dict[str, Conversion], tmp_path: Path
) -> None:
    database = str(converted[name].database)
    run = CliRunner().invoke
    shown = run(app, ["report", database, "--format", "json"])
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)
    timeline = tmp_path / "timeline.json"
    traced = run(app, ["trace", database, "-o", str(timeline)])
    assert traced.exit_code == 0, traced.stderr
    assert timeline.stat().st_size > 1_000
    compared = run(app, ["diff", database, database])
    assert compared.exit_code == 0, compared.stderr


def test_the_report_says_that_the_device_is_busy_with_copies(
    converted: dict[str, Conversion],
) -> None:
    database = str(converted["h100_2gpu_1s"].database)
    shown = CliRunner().invoke(app, ["report", database])
    assert shown.exit_code == 0, shown.stderr
    assert "22.4 ms (2.3 %)" in shown.stdout  # compute
    assert "941 ms (97.0 %)" in shown.stdout  # copies
