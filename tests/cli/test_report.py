"""`uprof report`: output, formats and errors."""

import io
import json
import os
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import processes
from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.processes import python
from tests.store.test_columns_of_tables import leaf_pages
from unified_prof.cli.app import main
from unified_prof.sqlite import integer_columns


@dataclass(frozen=True, slots=True)
class Done:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def uprof(*arguments: str | Path) -> Done:
    """Run a command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    texts = []
    for stream in (out, err):
        stream.flush()
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO)
        texts.append(buffer.getvalue().decode())
    return Done(int(ended.value.code or 0), *texts)


def refused(done: Done, code: int, *words: str) -> None:
    """Check that a command failed with a code and a message without output."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{'n' * 300}.sqlite"
    refused(uprof("report", path), 7, "cannot read", "File name too long", "[uprof:cannot-read]")
    refused(uprof("diff", path, path), 7, "File name too long")
    refused(uprof("convert", path), 7, "File name too long")


def test_format_follows_the_output_extension(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite")
    for name, begins in (
        ("o.html", "<!doctype"),
        ("o.json", "{"),
        ("o.csv", "report,by"),
        ("o.md", "## "),
    ):
        done = uprof("report", path, "-o", tmp_path / name)
        assert (done.returncode, done.stdout) == (0, "")
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_existing_file_is_not_replaced_without_force(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite")
    output = tmp_path / "o.md"
    output.write_text("other", encoding="utf-8")
    refused(uprof("report", path, "-o", output), 9, "o.md already exists", "--force")
    assert output.read_text(encoding="utf-8") == "other"
    assert uprof("report", path, "-o", output, "--force").returncode == 0
    assert output.read_text(encoding="utf-8").startswith("## ")


def test_reports_of_a_directory_are_combined(tmp_path: Path) -> None:
    run_time_report(tmp_path / "run_time.sqlite")
    memory_report(tmp_path / "memory.sqlite")
    training_step(tmp_path / "msprof_20260101000000.db")
    (tmp_path / "notes.db").write_text("no database", encoding="utf-8")
    reports = json.loads(uprof("report", tmp_path, "--json").stdout)["reports"]
    assert [one["family"] for one in reports] == ["skyline-run-time + skyline-memory", "msprof"]


def test_empty_report_explains_why_it_is_empty(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", [])
    for form in ("text", "json", "csv", "markdown", "html"):
        done = uprof("report", path, "--format", form)
        assert (done.returncode, done.stderr) == (0, ""), form
    assert "times not measured: the report has no operations" in uprof("report", path).stdout


@pytest.mark.slow
def test_limited_terminal_still_gets_the_report(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", [("µ-op", 0.0015, None, [])])
    done = processes.uprof("report", str(path), env={"PYTHONIOENCODING": "ascii"}, check=True)
    assert r"\xb5-op" in done.stdout


@pytest.mark.fresh_interpreter
def test_help_imports_no_large_package() -> None:
    code = (
        "import sys, unified_prof.cli.app; "
        "print([m for m in ('numpy', 'sqlalchemy', 'torch', 'rich.table') if m in sys.modules])"
    )
    done = python("-c", code, check=True)
    assert json.loads(done.stdout.replace("'", '"')) in ([], ["rich.table"])


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("damage", ["copied", "exchanged"])
@pytest.mark.parametrize("command", ["report", "advise", "export"])
def test_report_whose_table_pages_are_out_of_order_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, damage: str, command: str
) -> None:
    """SQLite returns rows of such a table, and counts tasks twice or not at all."""
    if size == "large":
        monkeypatch.setattr(integer_columns, "_SMALL_BYTES", -1)
    path = training_step(tmp_path / "msprof_1.db")
    with closing(sqlite3.connect(path)) as db, db:
        for _ in range(9):
            db.execute("INSERT INTO TASK SELECT * FROM TASK")
    output = ("-o", tmp_path / "out.json") if command == "export" else ()
    assert uprof(command, path, *output, "-q").returncode == 0
    data, leaves = leaf_pages(path, "TASK")
    first, second = (slice(at, at + 4096) for at in (leaves[1], leaves[-2]))
    kept = data[first]
    data[first] = data[second]
    if damage == "exchanged":
        data[second] = kept
    path.write_bytes(data)
    (tmp_path / "out.json").unlink(missing_ok=True)
    refused(uprof(command, path, *output, "-q"), 7, "msprof_1.db is damaged: table TASK")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipes_are_not_opened(tmp_path: Path) -> None:
    run_time_report(tmp_path / "run_time.sqlite")
    pipe = tmp_path / "other.db"
    os.mkfifo(pipe)
    assert uprof("report", tmp_path).returncode == 0
    refused(uprof("convert", pipe, "-o", tmp_path / "new.db"), 6, "is not a regular file")
