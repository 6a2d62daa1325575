"""`scripts/compare_outputs.py` reports differences except those between any two runs."""

import importlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("compare_outputs")


@pytest.fixture
def side(script: Any, tmp_path: Path) -> Iterator[Any]:
    found = script.Side(ROOT, tmp_path / "after", (ROOT,))
    yield found
    found.end()


def test_differing_row_is_reported(script: Any, tmp_path: Path, capsys: Any) -> None:
    texts = []
    for name in ("a", "b"):
        with closing(sqlite3.connect(tmp_path / name)) as db, db:
            db.execute("CREATE TABLE t (x, y)")
            db.executemany("INSERT INTO t VALUES (?, ?)", [(1, "same"), (2, name)])
        texts.append(script.dumped(tmp_path / name))
    tally = script.Tally(9, None)
    tally.add("in", "out", *texts)
    assert tally.end() == 1
    output = capsys.readouterr().out
    assert "-t(2, 'a')" in output
    assert "+t(2, 'b')" in output
    assert "same" not in output


def test_equal_rows_are_only_counted(script: Any, capsys: Any) -> None:
    tally = script.Tally(9, None)
    tally.add("in", "out", "text", "text")
    assert tally.end() == 0
    assert capsys.readouterr().out == "1 outputs compared, 0 differ\n"


@pytest.mark.slow
def test_commands_run_in_a_warm_process_not_directories(side: Any, tmp_path: Path) -> None:
    output = side.run(("db", "current", str(tmp_path / "after" / "none.db")), tmp_path / "after")
    assert side.clean(output).startswith("exit code 7\n")
    assert "<folder>/none.db does not exist" in side.clean(output)
