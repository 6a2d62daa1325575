"""Real Nsight Systems exports, compared with SQL queries on the exports."""

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
def conversion(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversion]:
    folder = tmp_path_factory.mktemp("nsys")
    found = {}
    for name in NAMES:
        packed = shared / "samples" / "nsys" / f"{name}.sqlite.xz"
        if not packed.exists():
            pytest.skip(f"no {packed.name}")
        export = folder / f"{name}.sqlite"
        export.write_bytes(lzma.decompress(packed.read_bytes()))
        found[name] = convert(export, folder / f"{name}.db")
    return found


def rows(conversion: Conversion, statement: str) -> list[tuple[Any, ...]]:
    with Report(conversion.database) as report:
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


@pytest.mark.slow
def test_figures_of_an_h100_export_with_two_processes(conversion: dict[str, Conversion]) -> None:
    found = conversion["h100_2gpu_1s"]
    assert rows(found, _KINDS) == [
        (0, "KERNEL", 1721, 22_385_163),
        (0, "MEMCPY_ASYNC", 452, 920_872_841 + 3_808 + 19_613_651),
        (0, "MEMSET", 11, 14_784),
        (1, "KERNEL", 1721, 22_444_359),
        (1, "MEMCPY_ASYNC", 452, 920_757_957 + 4_064 + 19_589_893),
        (1, "MEMSET", 11, 14_432),
    ]
    assert rows(found, _COPIES) == [
        (0, 1, 225, 25_475_253_792, 920_872_841),
        (0, 2, 2, 9, 3_808),
        (0, 3, 225, 29_684_236_288, 19_613_651),
        (1, 1, 225, 25_475_253_792, 920_757_957),
        (1, 2, 2, 9, 4_064),
        (1, 3, 225, 29_684_236_288, 19_589_893),
    ]
    assert rows(found, _SETS) == [(0, 11, 8_836, 14_784), (1, 11, 8_836, 14_432)]
    assert rows(found, _JOINED) == [("KERNEL", 1632), ("MEMCPY_ASYNC", 438), ("MEMSET", 22)]
    kernels = "FROM TASK t JOIN COMPUTE_TASK_INFO c USING (globalTaskId)"
    assert rows(found, f"SELECT min(startNs), max(endNs) {kernels} WHERE deviceId = 0") == [
        (1_779_630_014_975_716_426 + 155_360_295_935, 1_779_630_014_975_716_426 + 156_320_780_944)
    ]
    assert rows(found, f"SELECT DISTINCT deviceId, streamId {kernels} ORDER BY 1") == [
        (0, 7),
        (1, 15),
    ]
    assert rows(found, "SELECT count(DISTINCT name) FROM COMPUTE_TASK_INFO") == [(41,)]
    calls = "SELECT count(*), sum(endNs - startNs) FROM CANN_API"
    assert rows(found, calls) == [(5796, 1_799_142_046)]
    named = (
        "SELECT s.value, count(*) FROM CANN_API a JOIN STRING_IDS s ON s.id = a.name"
        " WHERE s.value IN ('cudaLaunchKernel', 'cudaLaunchKernelExC', 'cudaMemcpyAsync')"
        " GROUP BY 1 ORDER BY 1"
    )
    assert rows(found, named) == [
        ("cudaLaunchKernel", 2788),
        ("cudaLaunchKernelExC", 558),
        ("cudaMemcpyAsync", 914),
    ]
    operations = "SELECT count(*), sum(endNs - startNs) FROM PYTORCH_API"
    assert rows(found, operations) == [(16_782, 4_642_216_888)]
    waits = (
        "SELECT s.value, count(*) FROM UPROF_GPU_SYNCS w JOIN STRING_IDS s ON s.id = w.kind"
        " GROUP BY 1 ORDER BY 1"
    )
    assert rows(found, waits) == [("Stream Synchronize", 8), ("Stream Wait Event", 236)]
    assert rows(found, "SELECT sum(endNs - startNs) FROM UPROF_GPU_SYNCS") == [(857_291_122,)]
    names = (
        "SELECT s.value, count(*) FROM UPROF_GPU_TASKS g JOIN STRING_IDS s ON s.id = g.name"
        " WHERE s.value LIKE 'Memcpy HtoD%' GROUP BY 1 ORDER BY 1"
    )
    assert rows(found, names) == [
        ("Memcpy HtoD (Pageable -> Device)", 4),
        ("Memcpy HtoD (Pinned -> Device)", 446),
    ]
    resources = (
        "SELECT sum(registersPerThread), sum(sharedMemoryBytes) FROM UPROF_GPU_TASKS"
        " JOIN COMPUTE_TASK_INFO USING (globalTaskId)"
    )
    ((registers, shared_memory),) = rows(found, resources)
    assert registers == 221_646
    assert shared_memory >= 18_426_880, "dynamic shared memory alone"
    assert set(found.anomalies) == {"launch_queue_full", "task_without_launch"}
    assert found.anomalies["launch_queue_full"][0] == 198
    assert found.anomalies["task_without_launch"][0] == 4368 - 2092


def test_figures_of_a_small_export(conversion: dict[str, Conversion]) -> None:
    found = conversion["mock"]
    assert rows(found, _KINDS) == [(0, "KERNEL", 2, 4_129), (0, "MEMCPY_ASYNC", 1, 1_632)]
    assert rows(found, _JOINED) == [("KERNEL", 2), ("MEMCPY_ASYNC", 1)]
    assert rows(found, "SELECT count(*), sum(endNs - startNs) FROM CANN_API") == [(9, 40_737_950)]
    assert rows(found, "SELECT id, name FROM NPU_INFO") == [(0, "NVIDIA GeForce RTX 3080")]
    assert rows(found, "SELECT endTimeNs - startTimeNs FROM SESSION_TIME_INFO") == [
        (1_871_570_402,)
    ]
    assert rows(found, "SELECT value FROM UPROF_GPU_DEVICES WHERE name = 'smCount'") == [("68",)]
    assert set(found.anomalies) == {"diagnostic_warning"}


def test_figures_of_an_export_without_most_tables(conversion: dict[str, Conversion]) -> None:
    found = conversion["healthy_1pct"]
    assert rows(found, _KINDS) == [(0, "KERNEL", 400, 400_000_000)]
    assert rows(found, _JOINED) == [("KERNEL", 400)]
    assert rows(found, "SELECT count(*), sum(endNs - startNs) FROM CANN_API") == [(400, 1_000_000)]
    assert set(found.anomalies) == {"relative_times"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_commands_accept_converted_exports(
    name: str, conversion: dict[str, Conversion], tmp_path: Path
) -> None:
    database = str(conversion[name].database)
    run = CliRunner().invoke
    result = run(app, ["report", database, "--format", "json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)
    timeline = tmp_path / "timeline.json"
    for command in (["trace", database, "-o", str(timeline)], ["diff", database, database]):
        result = run(app, command)
        assert result.exit_code == 0, result.stderr
    assert timeline.stat().st_size > 1_000


@pytest.mark.slow
def test_report_separates_copies_from_compute(conversion: dict[str, Conversion]) -> None:
    database = str(conversion["h100_2gpu_1s"].database)
    result = CliRunner().invoke(app, ["report", database])
    assert result.exit_code == 0, result.stderr
    assert "22.4 ms (2.3 %)" in result.stdout, "compute"
    assert "941 ms (97.0 %)" in result.stdout, "copies"
