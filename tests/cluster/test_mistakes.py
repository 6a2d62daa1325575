"""Errors for mixed, incomplete or missing recordings of multi-rank runs."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster import ranks, simulated_run
from tests.cluster.summaries import Contents, write_summary
from tests.decoders.kineto.builders import call, kernel, write
from tests.sql import execute

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("databases") / "run", world=3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_summary(tmp_path / "run.cluster", Contents())


def shift_times(file: Path, later: int) -> None:
    """Move all times of a recording by `later` ns."""
    with closing(sqlite3.connect(file)) as db:
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            columns = [str(row[1]) for row in db.execute(f'PRAGMA table_info("{table}")')]
            for column in {"startNs", "endNs"} & {*columns}:
                db.execute(f'UPDATE "{table}" SET {column} = CAST({column} AS INTEGER) + {later}')
        db.commit()


def write_trace_without_rank(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, [call(1000.0, 10, 1), kernel(1020.0, 50, 1)])


def test_equal_halves_of_two_runs_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    recorded = simulated_run.simulate(simulated_run.Plan(tp=1, dp=4, pp=1, steps=3))
    for rank in range(4):
        file = simulated_run.write_database(recorded, rank, folder / f"rank{rank}.db")
        shift_times(file, rank // 2 * 3600 * 1_000_000_000)
    done = uprof("cluster", "build", folder, "-o", tmp_path / "r")
    refused(
        done, 2, "recordings are from 2 runs", "rank0.db (rank 0 on host0, ", "rank2.db (rank 2"
    )
    assert not (tmp_path / "r" / "cluster.sqlite").exists()
    done = uprof("report", folder)
    assert done.returncode == 0
    assert "is not a multi-rank run: these recordings are from 2 runs" in done.stderr


def test_incomplete_run_is_refused_with_the_command(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    (run / "cluster.sqlite").unlink()
    resume_command = f"uprof cluster build RECORDINGS -o {run}"
    refused(uprof("report", run), 7, "incomplete run", resume_command)
    refused(uprof("cluster", "report", run), 7, "incomplete run", resume_command)
    done = uprof("trace", run, "--ranks", "0", "-o", tmp_path / "t.json")
    refused(done, 2, "incomplete run", resume_command)


def test_newer_summary_is_replaced_only_with_force(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    execute(run / "cluster.sqlite", "PRAGMA user_version = 99")
    before = (run / "cluster.sqlite").read_bytes()
    done = uprof("cluster", "build", databases, "-o", run)
    refused(done, 8, "unknown schema revision", "user_version is 99", "--force")
    assert (run / "cluster.sqlite").read_bytes() == before
    assert uprof("cluster", "build", databases, "-o", run, "--force").returncode == 0


def test_foreign_database_is_not_replaced_without_force(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    run.mkdir()
    execute(run / "cluster.sqlite", "CREATE TABLE other (x)")
    before = (run / "cluster.sqlite").read_bytes()
    done = uprof("cluster", "build", databases, "-o", run)
    refused(done, 9, "not a summary written by uprof", "--force")
    assert (run / "cluster.sqlite").read_bytes() == before
    assert not (run / "partials").exists()


def test_damaged_summary_is_rebuilt(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    file = run / "cluster.sqlite"
    file.write_bytes(file.read_bytes()[:3000])
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    assert uprof("cluster", "report", run).returncode == 0


@pytest.mark.parametrize("command", ["trace", "report"])
def test_converted_recording_is_never_overwritten_by_its_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one.json", "in/one.json"):
        recording = write_trace_without_rank(tmp_path / name)
        before = recording.read_bytes()
        source = recording if name == "one.json" else recording.parent
        done = uprof(command, source, "--convert", "-o", recording, "--force")
        refused(done, 9, f"{recording} is the recording itself")
        assert recording.read_bytes() == before
    elsewhere = tmp_path / "out.json"
    elsewhere.write_text("{}")
    assert uprof(command, recording, "--convert", "-o", elsewhere, "--force").returncode == 0


def test_trace_never_replaces_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ranks.traces(tmp_path / "in", world=2)
    run, recording = tmp_path / "r", folder / "rank1.json"
    assert uprof("cluster", "build", folder, "-o", run).returncode == 0
    before = recording.read_bytes()
    done = uprof("trace", run, "--ranks", "0,1", "--convert", "-o", recording, "--force")
    refused(done, 9, f"{recording} is the recording itself")
    assert recording.read_bytes() == before


@pytest.mark.parametrize("command", ["diff", "gate"])
def test_comparison_never_overwrites_a_compared_recording(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, new = (write_trace_without_rank(tmp_path / f"{name}.json") for name in ("base", "new"))
    before = new.read_bytes()
    done = uprof(command, base, new, "--convert", "-o", new, "--force")
    refused(done, 9, f"{new} is the recording itself")
    assert new.read_bytes() == before


def test_rank_recorded_at_another_time_is_warned_about(databases: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(databases, tmp_path / "in")
    assert "possibly from another run" not in uprof("report", folder).stdout
    shift_times(folder / "rank2.db", 3600 * 1_000_000_000)
    text = uprof("report", folder).stdout
    assert "warning: rank 2 was recorded 3,6" in text or "warning: rank 2 was recorded 3,5" in text
    assert "possibly from another run" in text


def changed(databases: Path, folder: Path, statement: str) -> Path:
    """Copy the databases; run a statement in that of rank 1."""
    copy = shutil.copytree(databases, folder / "run")
    with closing(sqlite3.connect(copy / "rank1.db")) as db:
        db.execute(statement)
        db.commit()
    return copy


@pytest.mark.parametrize("number", ["2147483648", "'" + "9" * 5000 + "'"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE RANK_DEVICE_MAP SET rankId = {}",
        "INSERT INTO META_DATA VALUES ('distributed_args', '{{\"world_size\": ' || {} || '}}')",
    ],
)
def test_enormous_rank_numbers_are_ignored(
    databases: Path, tmp_path: Path, statement: str, number: str
) -> None:
    inputs = changed(databases, tmp_path, statement.format(number))
    done = uprof("cluster", "build", inputs, "-o", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert "3 ranks" in done.stderr


def test_steps_with_equal_numbers_are_left_out_with_a_note(databases: Path, tmp_path: Path) -> None:
    inputs = changed(databases, tmp_path, "INSERT INTO STEP_TIME SELECT * FROM STEP_TIME")
    done = uprof("cluster", "build", inputs, "-o", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert "3 ranks, 3 steps" in done.stderr
    (note,) = execute(tmp_path / "r" / "cluster.sqlite", "SELECT why FROM RANK WHERE rank = 1")[0]
    assert "3 steps repeat a number and are left out" in note
