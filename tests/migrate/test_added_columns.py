"""Existing rows get the mark for unknown values in columns that a migration adds.

Readers do not expect NULL in a column that every exporter of that revision fills. Only
formats without such a mark get NULL.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.databases import REVISIONS, make, rows_of, tables_of
from unified_prof.migrate.check import check
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.sqlite.reader import RENAMES

TEXT = "the id of N/A"
MARKS: dict[tuple[str, str], object] = {
    ("COMPUTE_TASK_INFO", "attrInfo"): TEXT,
    ("COMPUTE_TASK_INFO", "opState"): TEXT,
    ("COMPUTE_TASK_INFO", "hf32Eligible"): TEXT,
    ("COMPUTE_TASK_INFO", "gridDim"): TEXT,
    ("COMPUTE_TASK_INFO", "blockDim"): TEXT,
    ("COMMUNICATION_OP", "opType"): TEXT,
    ("COMMUNICATION_OP", "deviceId"): -1,
    ("AICORE_FREQ", "dieId"): -1,
    ("QOS", "dieId"): -1,
    # No mark: 0 and 1 are valid values, as are a rate of 0 and a group of 0 ranks.
    ("COMMUNICATION_TASK_INFO", "isMaster"): None,
    ("COMMUNICATION_TASK_INFO", "bandwidth"): None,
    ("COMMUNICATION_OP", "rankSize"): None,
}


def added_columns() -> dict[tuple[str, str], str]:
    """Return every column that a revision appends to an existing table -> the revision before."""
    renamed = {(rename.table, rename.newest) for rename in RENAMES}
    found = {}
    for before, after in pairwise(REVISIONS):
        old, new = (catalogue.load("msprof", revision).tables for revision in (before, after))
        for table in old:
            for column in new[table].column_names[len(old[table].columns) :]:
                if (table, column) not in renamed or column == "blockDim":
                    found[table, column] = before
    return found


def test_every_added_column_has_a_decision() -> None:
    assert added_columns().keys() == MARKS.keys()


@pytest.mark.quick(cases=9)
@pytest.mark.parametrize("strings", ["with N/A", "without N/A", "none"])
@pytest.mark.parametrize(("table", "column"), MARKS)
def test_old_rows_get_the_mark(tmp_path: Path, table: str, column: str, strings: str) -> None:
    revision = added_columns()[table, column]
    # torch_npu numbers its texts from 1 << 28.
    texts = {0: "AI_CORE", 7: "N/A", 1 << 28: "aten::add", (1 << 28) + 1: "N/A"}
    if strings == "without N/A":
        texts = {number: text for number, text in texts.items() if text != "N/A"}
    width = len(catalogue.load("msprof", revision).tables[table].columns)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "STRING_IDS": list(texts.items()),
        table: [tuple(row for _ in range(width)) for row in range(2)],
    }
    drop = ["DROP TABLE STRING_IDS"] if strings == "none" else []
    path = make(tmp_path / "report.db", revision, rows, *drop)
    upgrade(path)
    mark = MARKS[table, column]
    if mark is TEXT:
        known = {"with N/A": 7, "without N/A": (1 << 28) + 1, "none": None}
        mark = known[strings]
    assert rows_of(path, f"SELECT {column} FROM {table}") == [(mark,), (mark,)]
    if strings == "without N/A" and MARKS[table, column] is TEXT:
        added_text = f"SELECT value FROM STRING_IDS WHERE id = {mark}"
        assert rows_of(path, added_text) == [("N/A",)]
        unresolved = [f.message for f in check(path).findings if f.kind == "dangling"]
        assert not [message for message in unresolved if f"{table}.{column} " in message]


def test_unneeded_text_is_not_added(tmp_path: Path) -> None:
    path = make(tmp_path / "report.db", REVISIONS[0], {"STRING_IDS": [(3, "aten::add")]})
    upgrade(path)
    assert rows_of(path, "SELECT * FROM STRING_IDS") == [(3, "aten::add")]


def test_existing_values_in_added_columns_are_kept(tmp_path: Path) -> None:
    width = len(catalogue.load("msprof", "1.1.1_20250327").tables["COMPUTE_TASK_INFO"].columns)
    rows = [tuple(row for _ in range(width)) for row in range(2)]
    path = make(
        tmp_path / "report.db",
        "1.1.1_20250327",
        {"STRING_IDS": [(5, "N/A"), (6, "8,1,1")], "COMPUTE_TASK_INFO": rows},
        "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN gridDim INTEGER",
        "UPDATE COMPUTE_TASK_INFO SET gridDim = 6 WHERE globalTaskId = 1",
    )
    upgrade(path)
    query = "SELECT gridDim, opState FROM COMPUTE_TASK_INFO ORDER BY globalTaskId"
    assert rows_of(path, query) == [(5, 5), (6, 5)]
    assert "gridDim" in tables_of(path)["COMPUTE_TASK_INFO"]
