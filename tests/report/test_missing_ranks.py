"""Directories with damaged or missing ranks: every format names them with the reason."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.cli.test_report import refused, uprof
from tests.sql import execute
from unified_prof.errors import StoreError
from unified_prof.explain.api import open_analyses
from unified_prof.report import formats
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.run_folder import STARTED, RankEntry

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


@pytest.mark.quick(cases=1)
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


def test_rank_with_one_damaged_report_is_shown_with_the_other(folder: Path) -> None:
    for rank in range(RANKS):
        memory_report(folder / f"memory_rank{rank}.sqlite")
    truncate(folder / "memory_rank5.sqlite")
    done = uprof("report", folder)
    assert done.returncode == 7
    assert done.stdout.startswith("7 of 8 ranks: rank 5: ")
    assert done.stdout.count("6.25 ms in 3 calls") == 8


def test_expected_ranks_without_a_report_are_named(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"world_size": 16, "expected_ranks": [*range(10)]}))
    done = uprof("report", folder)
    assert done.returncode == 7
    assert done.stdout.startswith("8 of 10 ranks:\n  rank 8: it left no report")
    assert "\n  rank 9: it left no report" in done.stdout
    truncate(folder / "run_time_rank2.sqlite")
    shown = uprof("report", folder).stdout
    assert shown.startswith("7 of 10 ranks:\n  rank 2: ")


def test_reason_for_a_missing_report_comes_from_the_run_document(folder: Path) -> None:
    for rank, failure in ((0, None), (8, "no operation ran"), (9, None)):
        entry = RankEntry(
            rank=rank,
            world_size=11,
            expected_ranks=tuple(range(11)),
            host="node1",
            state=STARTED,
            failure=failure,
        )
        run_folder.note(folder, entry)
    shown = uprof("report", folder).stdout
    assert "\n  rank 8: it left no report: no operation ran (" in shown
    assert "\n  rank 9: it left no report: it started on node1 but did not finish (" in shown
    assert "rank 10: it left no report: it did not start, or wrote to another directory (" in shown


def test_world_size_gives_the_expected_ranks(folder: Path) -> None:
    (folder / "run.json").write_text('{"world_size": 9}')
    assert uprof("report", folder).stdout.startswith("8 of 9 ranks: rank 8: it left no report")


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"world_size": "many"}', '{"world_size": 1e999}']
)
def test_invalid_run_document_is_ignored(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    assert uprof("report", folder).returncode == 0


def test_list_of_missing_ranks_is_limited(folder: Path) -> None:
    (folder / "run.json").write_text('{"world_size": 1024}')
    shown = uprof("report", folder).stdout
    assert shown.startswith("8 of 1,024 ranks:\n")
    assert shown.count("left no report") == 20
    assert "and 996 more" in shown


def test_reports_without_rank_are_counted_as_reports(tmp_path: Path) -> None:
    training_step(tmp_path / "monday.db")
    training_step(tmp_path / "tuesday.db")
    truncate(tmp_path / "tuesday.db")
    shown = uprof("report", tmp_path).stdout
    assert shown.startswith(f"1 of 2 reports: {tmp_path / 'tuesday.db'} is cut off")


def test_files_of_other_programs_are_ignored(folder: Path) -> None:
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0 something else")
    execute(folder / "mlflow.db", "CREATE TABLE experiments (id)")
    assert uprof("report", folder).returncode == 0


def test_directory_without_a_readable_rank_is_an_error(folder: Path) -> None:
    for rank in range(RANKS):
        truncate(folder / f"run_time_rank{rank}.sqlite")
    refused(uprof("report", folder), 7, "contains no readable report", "is cut off")


def test_directory_whose_only_report_is_damaged_is_an_error(tmp_path: Path) -> None:
    damage_page(run_time_report(tmp_path / "run_time.sqlite"))
    refused(uprof("report", tmp_path), 7, "is damaged")


def test_comparison_refuses_a_directory_with_a_damaged_rank(folder: Path) -> None:
    truncate(folder / "run_time_rank3.sqlite")
    with pytest.raises(StoreError, match="7 of 8 ranks; rank 3: "), open_analyses(folder):
        pass
