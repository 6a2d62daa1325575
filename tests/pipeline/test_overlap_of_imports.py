"""OVERLAP_ANALYSIS of imports, and the queries of MindStudio Insight's overall view."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import call, copy, kernel, operation, write
from tests.sql import execute
from unified_prof.pipeline.convert import convert, convert_all
from unified_prof.pipeline.discovery import ASCEND_PT

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
# The viewer queries every kind but total communication, and expects three rows.
OVERALL = (
    "SELECT type, sum(endNs - startNs) / 1000 FROM OVERLAP_ANALYSIS"
    " WHERE type != 1 AND deviceId = ? GROUP BY type ORDER BY type"
)


def query(database: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    return execute(database, sql, *values)


def trace(path: Path, *more: dict[str, object]) -> Path:
    return write(
        path,
        [
            *(call(i, 0.5, i) for i in range(1, 9)),
            kernel(10, 10, 1),
            kernel(15, 10, 2, args={"stream": 8}),
            copy(40, 10, 3, "Memcpy HtoD (Pinned -> Device)", 8),
            *more,
        ],
    )


def test_compute_communication_and_free_time_of_an_import(tmp_path: Path) -> None:
    collective = kernel(20, 15, 4, name=NCCL, args={"stream": 9})
    conversion = convert(trace(tmp_path / "t.json", collective), tmp_path / "r.db", schema="latest")
    found = query(
        conversion.database,
        "SELECT type, startNs / 1000, endNs / 1000 FROM OVERLAP_ANALYSIS ORDER BY 1, 2",
    )
    # The copy is neither, but the device was in use until its end.
    assert found == [(0, 10, 25), (1, 20, 35), (2, 25, 35), (3, 35, 50)]


def test_overall_view_has_three_rows_without_collectives(tmp_path: Path) -> None:
    conversion = convert(trace(tmp_path / "t.json"), tmp_path / "r.db", schema="latest")
    assert query(conversion.database, OVERALL, 0) == [(0, 15), (2, 0), (3, 25)]


def test_every_device_has_overlap_rows(tmp_path: Path) -> None:
    other = {"device": 3, "stream": 5}
    only_copies = copy(60, 5, 5, "Memcpy DtoH (Device -> Pageable)", 8)
    only_copies["args"] |= {"device": 4}
    more = [kernel(12, 8, 4, name=NCCL, args=other), only_copies]
    conversion = convert(trace(tmp_path / "t.json", *more), tmp_path / "r.db", schema="latest")
    assert query(conversion.database, OVERALL, 3) == [(0, 0), (2, 8), (3, 0)]
    assert query(conversion.database, OVERALL, 4) == [(0, 0), (2, 0), (3, 5)]


def test_older_revision_has_no_overlap_table(tmp_path: Path) -> None:
    conversion = convert(trace(tmp_path / "t.json"), tmp_path / "r.db")
    names = query(conversion.database, "SELECT name FROM sqlite_master WHERE name LIKE 'OVERLAP%'")
    assert names == []
    assert conversion.anomalies == {}


def test_torch_npu_layout_has_the_overlap_table(tmp_path: Path) -> None:
    (outcome,) = convert_all([trace(tmp_path / "t.json")], tmp_path / "out", layout=ASCEND_PT)
    assert outcome.conversion is not None
    assert query(outcome.conversion.database, OVERALL, 0) == [(0, 15), (2, 0), (3, 25)]
    older = convert_all(
        [tmp_path / "t.json"], tmp_path / "older", layout=ASCEND_PT, schema="documented"
    )
    (outcome,) = older
    assert outcome.conversion is not None
    revision = "SELECT value FROM META_DATA WHERE name = 'UPROF_SCHEMA_REVISION'"
    assert query(outcome.conversion.database, revision) == [("1.2.0_20251226",)]


@pytest.mark.parametrize("events", [[], [operation("aten::mm", 1, 2)]])
def test_no_device_has_no_overlap_table(events: list[dict[str, object]], tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [*events, operation("aten::add", 5, 6)])
    (outcome,) = convert_all([path], tmp_path / "out", layout=ASCEND_PT)
    assert outcome.conversion is not None
    tables = query(outcome.conversion.database, "SELECT name FROM sqlite_master")
    assert ("COMMUNICATION_OP",) in tables, "empty, but msprof-analyze fails without it"
    assert ("OVERLAP_ANALYSIS",) not in tables
