"""Writing of older revisions from the newest names and meanings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sql import execute
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import MSPROF, REVISIONS
from unified_prof.sqlite import reader
from unified_prof.sqlite.writer import ReportWriter

COMPUTE: dict[str, Any] = {
    "globalTaskId": np.arange(3),
    "blockNum": [24, 48, 24],
    "mixBlockNum": 2,
    "opState": [1, None, 2],
    "gridDim": None,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof.db"


@pytest.mark.parametrize(
    ("revision", "columns"),
    [
        ("pre_20240328", "block_dim, mixBlockDim"),
        ("1.0.0_20240516", "block_dim, mixBlockDim"),
        ("1.0.0_20240521", "blockDim, mixBlockDim"),
        ("documented", "blockDim, mixBlockDim"),
        ("1.2.0_20260128", "blockNum, mixBlockNum"),
        ("latest", "blockNum, mixBlockNum"),
    ],
)
def test_renamed_columns_fit_the_revision(path: Path, revision: str, columns: str) -> None:
    with ReportWriter(path, revision=revision) as report:
        report.write("COMPUTE_TASK_INFO", COMPUTE)
    assert execute(path, f"SELECT {columns} FROM COMPUTE_TASK_INFO") == [(24, 2), (48, 2), (24, 2)]


def test_newest_block_dim_is_not_the_old_one(path: Path) -> None:
    with ReportWriter(path, revision="documented") as report:
        report.write("COMPUTE_TASK_INFO", {"globalTaskId": [1], "blockNum": [24], "blockDim": [7]})
    assert execute(path, "SELECT blockDim FROM COMPUTE_TASK_INFO") == [(24,)]
    assert execute(path, "SELECT * FROM UPROF_ANOMALIES") == [
        ("column_not_in_schema", 1, "1.2.0_20251226 has no COMPUTE_TASK_INFO.blockDim (1 values)")
    ]


def test_dropped_values_are_counted_unless_null(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20241112") as report:
        report.write("COMPUTE_TASK_INFO", COMPUTE)
        report.write("COMMUNICATION_TASK_INFO", {"bandwidth": np.array([np.nan, 2.5])})
        assert report.write("CCU", {"deviceId": [0, 1, 2]}) == 0
    assert execute(path, "SELECT * FROM UPROF_ANOMALIES") == [
        (
            "column_not_in_schema",
            3,
            "1.0.0_20241112 has no COMPUTE_TASK_INFO.opState (2 values), "
            "COMMUNICATION_TASK_INFO.bandwidth (1 values)",
        ),
        ("table_not_in_schema", 3, "1.0.0_20241112 has no CCU (3 rows)"),
    ]


@pytest.mark.parametrize("revision", REVISIONS[MSPROF])
def test_every_column_of_every_revision_has_one_newest_name(revision: str) -> None:
    newest = catalogue.load(MSPROF, "latest").tables
    for table, spec in catalogue.load(MSPROF, revision).tables.items():
        layout = reader.layout(revision, table)
        assert layout is not None
        assert len(set(layout.sources)) == len(spec.columns)
        assert sorted(layout.sources + layout.dropped) == sorted(newest[table].column_names)


def test_old_hccl_columns_hold_string_ids(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20240516") as report:
        report.write("COMMUNICATION_OP", {"opId": range(3), "dataType": [4, 65534, 4]})
        report.write("COMMUNICATION_TASK_INFO", {"linkType": np.array([1, 99])})
    query = "SELECT value FROM {} LEFT JOIN STRING_IDS ON id = {}"
    found = execute(path, query.format("COMMUNICATION_OP", "dataType"))
    assert found == [("FP32",), ("N/A",), ("FP32",)]
    found = execute(path, query.format("COMMUNICATION_TASK_INFO", "linkType"))
    assert found == [("HCCS",), ("99",)]


@pytest.mark.parametrize(
    ("host_uid", "stored"),
    [("6458368880732993735", 6458368880732993735), (str(2**64 - 1), -1), ("no number", None)],
)
def test_old_host_id_is_a_number(path: Path, host_uid: str, stored: int | None) -> None:
    with ReportWriter(path, revision="1.0.0_20240711") as report:
        report.write("HOST_INFO", {"hostUid": host_uid, "hostName": "a"})
    assert execute(path, "SELECT hostUid FROM HOST_INFO") == [(stored,)]


def test_first_revision_has_no_meta_data(path: Path) -> None:
    with ReportWriter(path, revision="pre_20240328"):
        pass
    assert execute(path, "SELECT count(*) FROM sqlite_master WHERE name = 'META_DATA'") == [(0,)]
