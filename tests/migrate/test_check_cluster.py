"""Checking a cluster summary finds contradictory rows."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unified_prof.migrate.check import check
from unified_prof.migrate.upgrade import create

VALID_ROWS = (
    "INSERT INTO RANK (rank, status) VALUES (0, 'read'), (1, 'absent')",
    "INSERT INTO \"GROUP\" VALUES (0, 'dp', '[]', '[0, 1]', 2, 1)",
    "INSERT INTO STEP_RANK VALUES (3, 0, 10, 20, 5, 3, 2, 1, 1, 0, 0, NULL, 3)",
    "INSERT INTO COLLECTIVE VALUES (0, 0, 'all_reduce', 3, 64, 2, 1, 9, 4, 0, 9, 9, 1.5)",
    "INSERT INTO LINK VALUES (0, 1, 'p2p', 0, 1, 64, 9, 4, 1.0, 1.0, 1.0)",
)


@pytest.fixture
def summary(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.sqlite"
    create(path, "cluster", "latest")
    change(path, *VALID_ROWS)
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_valid_summary_has_no_findings(summary: Path) -> None:
    found = check(summary)
    assert (found.detection.family, found.findings) == ("cluster", ())


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("UPDATE RANK SET status = 'lost' WHERE rank = 1", "enum", "four values"),
        ("UPDATE STEP_RANK SET end_ns = 9", "interval", "end before they start"),
        ("DELETE FROM RANK WHERE rank = 0", "dangling", "STEP_RANK.rank"),
        ('DELETE FROM "GROUP"', "dangling", "COLLECTIVE.group_id"),
        ("UPDATE LINK SET dst_rank = 7", "dangling", "dst_rank"),
        ("UPDATE COLLECTIVE SET complete_n = 3", "figure", "complete"),
        ("DROP TABLE BLAME", "schema", "it does not have BLAME.rank"),
    ],
)
def test_contradictions_are_problems(summary: Path, statement: str, kind: str, words: str) -> None:
    change(summary, statement)
    found = check(summary)
    assert any(one.kind == kind and words in one.message for one in found.findings)
    assert not found.sound
