"""Directories with damaged or missing ranks: every format names them with the reason."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.builders import run_time_report
from tests.cli.test_report import refused, uprof
from tests.sql import execute
from unified_prof.errors import StoreError
from unified_prof.explain.api import open_analyses
from unified_prof.report import formats

RANKS = 8
DAMAGED = 3


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(b"\0" * file.stat().st_size)


def overwrite(file: Path) -> None:
    file.write_bytes(b"slurmstepd: error: Detected 1 oom-kill event")


def damage_page(file: Path) -> None:
    """Damage a table's page, which is noticed only when it is read."""
    query = "SELECT rootpage FROM sqlite_master WHERE name = 'run_time_entries'"
    ((root,),) = execute(file, query)
    ((page_bytes,),) = execute(file, "PRAGMA page_size")
    content = bytearray(file.read_bytes())
    content[(root - 1) * page_bytes : root * page_bytes] = b"\xa5" * page_bytes
    file.write_bytes(content)


def remove_tables(file: Path) -> None:
    """Leave an SQLite file without tables, as an interrupted writer does."""
    file.unlink()
    execute(file, "CREATE TABLE t (a)")
    execute(file, "DROP TABLE t")


DAMAGES: dict[Callable[[Path], None], str] = {
    truncate: "is cut off",
    empty: "is empty",
    zero: "is not a report (an SQLite database) but a file of zeros",
    overwrite: "is not a report (an SQLite database) but text",
    damage_page: "is damaged",
    remove_tables: "is not a report",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(RANKS):
        run_time_report(tmp_path / f"run_time_rank{rank}.sqlite")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_format_names_the_damaged_rank(folder: Path, damage: Callable[[Path], None]) -> None:
    lost = folder / f"run_time_rank{DAMAGED}.sqlite"
    damage(lost)
    for one in (shape.name for shape in formats.FORMATS if shape.is_text):
        done = uprof("report", folder, "--format", one)
        assert done.returncode == 7, one
        assert f"error: 7 of 8 ranks; rank 3: {lost} {DAMAGES[damage]}" in done.stderr
        if one != "markdown":  # dots are escaped there
            assert DAMAGES[damage] in done.stdout, one
    shown = uprof("report", folder).stdout
    assert shown.startswith(f"7 of 8 ranks: rank 3: {lost} {DAMAGES[damage]}")
    assert shown.count("6.25 ms in 3 calls") == 7
    assert uprof("report", folder, "--format", "markdown").stdout.startswith("- **7 of 8 ranks**: ")

    document = json.loads(uprof("report", folder, "--json").stdout)
    assert len(document["reports"]) == 7
    (missing,) = document["coverage"].pop("missing")
    assert document["coverage"] == {"unit": "ranks", "expected": 8, "whole": 7}
    assert missing["rank"] == DAMAGED
    assert DAMAGES[damage] in missing["why"]

    rows = list(csv.DictReader(io.StringIO(uprof("report", folder, "--format", "csv").stdout)))
    assert (rows[0]["name"], rows[0]["kind"], rows[0]["total_ns"]) == ("rank 3", "missing", "")
    assert len({row["report"] for row in rows[1:]}) == 7


def test_complete_directory_is_reported_without_remarks(folder: Path) -> None:
    done = uprof("report", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ranks" not in done.stdout
    document = json.loads(uprof("report", folder, "--json").stdout)
    assert document["coverage"] == {"unit": "ranks", "expected": 8, "whole": 8, "missing": []}


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"world_size": "many"}', '{"world_size": 1e999}']
)
def test_invalid_run_document_is_ignored(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    assert uprof("report", folder).returncode == 0


def test_files_of_other_programs_are_ignored(folder: Path) -> None:
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0 something else")
    execute(folder / "mlflow.db", "CREATE TABLE experiments (id)")
    assert uprof("report", folder).returncode == 0


def test_directory_whose_only_report_is_damaged_is_an_error(tmp_path: Path) -> None:
    damage_page(run_time_report(tmp_path / "run_time.sqlite"))
    refused(uprof("report", tmp_path), 7, "is damaged")


def test_comparison_refuses_a_directory_with_a_damaged_rank(folder: Path) -> None:
    truncate(folder / "run_time_rank3.sqlite")
    with pytest.raises(StoreError, match="7 of 8 ranks; rank 3: "), open_analyses(folder):
        pass
