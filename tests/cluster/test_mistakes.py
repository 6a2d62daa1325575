"""Messages about ranks, runs and recordings that are mixed up, incomplete or missing."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster import made as simulated
from tests.cluster import ranks
from tests.cluster.summaries import Made, make
from tests.decoders.kineto.builders import call, kernel, write

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("databases") / "run", world=3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "run.cluster", Made())


def put_off(file: Path, later: int) -> None:
    """Move all times of a recording by so many ns."""
    with closing(sqlite3.connect(file)) as db:
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            columns = [str(row[1]) for row in db.execute(f'PRAGMA table_info("{table}")')]
            for column in {"startNs", "endNs"} & {*columns}:
                db.execute(f'UPDATE "{table}" SET {column} = CAST({column} AS INTEGER) + {later}')
        db.commit()


def trace_of_nobody(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, [call(1000.0, 10, 1), kernel(1020.0, 50, 1)])


def test_a_trace_of_nobody_is_named_by_its_own_path(tmp_path: Path) -> None:
    trace = trace_of_nobody(tmp_path / "t.json")
    done = uprof("cluster", "build", trace, "-o", tmp_path / "r")
    refused(done, 7, f"{trace}: cannot determine the rank", "RANK=FILE")
    assert "rank.db" not in done.stderr


def test_a_trace_of_nobody_beside_others_says_what_to_do(databases: Path, tmp_path: Path) -> None:
    trace = trace_of_nobody(tmp_path / "t.json")
    done = uprof("cluster", "build", databases, trace, "-o", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert f"{trace}: cannot determine the rank" in done.stderr
    assert "RANK=FILE" in done.stderr


def test_where_nothing_can_be_read_the_first_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.db").write_text("hello\n")
    (tmp_path / "in" / "b.db").touch()
    done = uprof("cluster", "build", tmp_path / "in", "-o", tmp_path / "r")
    refused(done, 7, "in/a.db: its file is not a report", "1 more failed")


def test_two_files_of_one_rank_are_why_a_folder_is_no_run(databases: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(databases, tmp_path / "run")
    shutil.copy(next(iter(sorted(folder.rglob("*.db")))), folder / "copy.db")
    refused(uprof("report", folder, "--rank", "0"), 2, "rank 0 has two files", "copy.db")
    done = uprof("trace", folder, "--ranks", "0", "-o", tmp_path / "t.json")
    refused(done, 2, "rank 0 has two files", "copy.db")
    done = uprof("report", folder)
    assert done.returncode == 0
    assert "findings of the multi-rank run" not in done.stdout
    assert f"uprof: hint: {folder} is not a multi-rank run" in done.stderr
    assert "rank 0 has two files: " in done.stderr
    assert "uprof: hint" not in uprof("report", folder, "--quiet").stderr


def test_two_runs_below_one_folder_are_named(databases: Path, tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        shutil.copytree(databases, tmp_path / "in" / name)
    done = uprof("cluster", "build", tmp_path / "in", "-o", tmp_path / "r")
    refused(done, 2, "rank 0 has two files", "2 more ranks also have two files")
    assert f"pass only {tmp_path / 'in' / 'monday'} or {tmp_path / 'in' / 'tuesday'}" in done.stderr
    done = uprof("cluster", "build", tmp_path / "in" / "monday", "-o", tmp_path / "r")
    assert done.returncode == 0


def test_halves_of_two_runs_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    recorded = simulated.make(simulated.Plan(tp=1, dp=4, pp=1, steps=3))
    for rank in range(4):
        file = simulated.database(recorded, rank, folder / f"rank{rank}.db")
        put_off(file, rank // 2 * 3600 * 1_000_000_000)
    done = uprof("cluster", "build", folder, "-o", tmp_path / "r")
    refused(
        done, 2, "recordings are from 2 runs", "rank0.db (rank 0 on host0, ", "rank2.db (rank 2"
    )
    assert not (tmp_path / "r" / "cluster.sqlite").exists()
    done = uprof("report", folder)
    assert done.returncode == 0
    assert "is not a multi-rank run: these recordings are from 2 runs" in done.stderr


def test_of_a_damaged_rank_the_damage_is_why_it_has_no_steps(
    databases: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(databases, tmp_path / "run")
    victim = sorted(folder.rglob("*.db"))[1]
    victim.write_bytes(victim.read_bytes()[:5000])
    done = uprof("trace", folder, "--ranks", "0,1", "--step", "1", "-o", tmp_path / "t.json")
    refused(done, 2, "rank 1 of", "cut off")


@pytest.mark.parametrize("command", [("report", "--by", "idle"), ("trace", "-o", "t.json")])
def test_a_run_is_known_where_a_report_is_expected(
    run: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = uprof(command[0], run, *command[1:])
    refused(done, 7, "a cluster run", "--ranks N")


def test_a_run_that_was_not_completed_says_how_it_goes_on(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    (run / "cluster.sqlite").unlink()
    goes_on = f"uprof cluster build RECORDINGS -o {run}"
    refused(uprof("report", run), 7, "incomplete run", goes_on)
    refused(uprof("cluster", "report", run), 7, "incomplete run", goes_on)
    done = uprof("trace", run, "--ranks", "0", "-o", tmp_path / "t.json")
    refused(done, 2, "incomplete run", goes_on)


def test_traces_are_no_run_until_one_is_made_of_them(tmp_path: Path) -> None:
    for rank in range(2):
        trace_of_nobody(tmp_path / "in" / f"rank{rank}.json")
    refused(uprof("report", tmp_path / "in", "--rank", "0"), 2, "uprof cluster build")
    done = uprof("trace", tmp_path / "in", "--ranks", "0", "-o", tmp_path / "t.json")
    refused(done, 2, "uprof cluster build")


def test_several_recordings_cannot_be_of_the_one_that_was_named(
    databases: Path, tmp_path: Path
) -> None:
    done = uprof("cluster", "build", f"7={databases}", "-o", tmp_path / "r")
    refused(done, 2, "has 3 recordings, expected one for rank 7", "omit RANK=")


def test_a_summary_of_a_newer_uprof_is_replaced_only_by_force(
    databases: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
    before = (run / "cluster.sqlite").read_bytes()
    done = uprof("cluster", "build", databases, "-o", run)
    refused(done, 8, "unknown schema revision", "user_version is 99", "--force")
    assert (run / "cluster.sqlite").read_bytes() == before
    assert uprof("cluster", "build", databases, "-o", run, "--force").returncode == 0


def test_a_database_of_somebody_else_is_never_replaced_unasked(
    databases: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    run.mkdir()
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("CREATE TABLE mine (x)")
    before = (run / "cluster.sqlite").read_bytes()
    done = uprof("cluster", "build", databases, "-o", run)
    refused(done, 9, "not a summary written by uprof", "--force")
    assert (run / "cluster.sqlite").read_bytes() == before
    assert not (run / "partials").exists()


def test_a_damaged_summary_is_made_anew(databases: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    file = run / "cluster.sqlite"
    file.write_bytes(file.read_bytes()[:3000])
    assert uprof("cluster", "build", databases, "-o", run).returncode == 0
    assert uprof("cluster", "report", run).returncode == 0


@pytest.mark.parametrize("command", ["trace", "report"])
def test_what_is_converted_is_never_replaced_by_what_is_made_of_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("one.json", "in/one.json"):
        recording = trace_of_nobody(tmp_path / name)
        before = recording.read_bytes()
        given = recording if name == "one.json" else recording.parent
        done = uprof(command, given, "--convert", "-o", recording, "--force")
        refused(done, 9, f"{recording} is the recording itself")
        assert recording.read_bytes() == before
    elsewhere = tmp_path / "out.json"
    elsewhere.write_text("{}")
    assert uprof(command, recording, "--convert", "-o", elsewhere, "--force").returncode == 0


def test_timelines_of_ranks_never_replace_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ranks.traces(tmp_path / "in", world=2)
    run, recording = tmp_path / "r", folder / "rank1.json"
    assert uprof("cluster", "build", folder, "-o", run).returncode == 0
    before = recording.read_bytes()
    done = uprof("trace", run, "--ranks", "0,1", "--convert", "-o", recording, "--force")
    refused(done, 9, f"{recording} is the recording itself")
    assert recording.read_bytes() == before


@pytest.mark.parametrize("command", ["diff", "gate"])
def test_a_comparison_never_replaces_a_recording_that_it_compares(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, new = (trace_of_nobody(tmp_path / f"{name}.json") for name in ("base", "new"))
    before = new.read_bytes()
    done = uprof(command, base, new, "--convert", "-o", new, "--force")
    refused(done, 9, f"{new} is the recording itself")
    assert new.read_bytes() == before


def test_a_rank_that_was_recorded_at_another_time_is_told_of(
    databases: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(databases, tmp_path / "in")
    assert "possibly from another run" not in uprof("report", folder).stdout
    put_off(folder / "rank2.db", 3600 * 1_000_000_000)
    told = uprof("report", folder).stdout
    assert "warning: rank 2 was recorded 3,6" in told or "warning: rank 2 was recorded 3,5" in told
    assert "possibly from another run" in told
