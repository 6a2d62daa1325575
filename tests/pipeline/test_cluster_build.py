"""Builds of multi-rank runs: incremental, resumable, and complete except for unreadable ranks."""

import json
import os
import pickle
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cluster import ranks
from tests.cluster.simulated_run import Plan, partials_of, simulate, write_database
from tests.processes import python, uprof
from tests.sql import execute
from unified_prof.cli.app import app
from unified_prof.cluster import rank_map, rank_partial
from unified_prof.errors import OutputError, StoreError, UprofError, UsageError
from unified_prof.migrate.upgrade import create
from unified_prof.pipeline import cluster_map, remote
from unified_prof.pipeline.cluster import build, combine, summary_of
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.executors.processes import InlinePool
from unified_prof.pipeline.remote import StorageDirectory
from unified_prof.schema import catalogue
from unified_prof.sqlite import atomic

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return databases of four ranks, of which rank 2 is slow."""
    return ranks.databases(tmp_path_factory.mktemp("made") / "run", slow_2=1.3)


@pytest.fixture
def run(databases: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(databases, tmp_path / "in"))


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "run.cluster")


def partials(target: str) -> dict[str, int]:
    folder = Path(target) / "partials"
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_second_build_leaves_summary_and_partials_unchanged(run: Path, target: str) -> None:
    first = build([str(run)], target)
    assert (first.world_size, first.ranks_read, first.new, first.already) == (4, 4, 4, False)
    assert (first.is_complete, first.coverage) == (True, "4 of 4 ranks")
    assert first.steps == (0, 1, 2)
    assert "rank 2" in first.findings[0]
    summary, before = Path(target) / "cluster.sqlite", partials(target)
    written = summary.stat().st_mtime_ns
    again = build([str(run)], target)
    assert again == type(again)(**{**fields(first), "new": 0, "already": True})
    assert (partials(target), summary.stat().st_mtime_ns) == (before, written)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_new_partials_are_not_read_back(
    run: Path, target: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        rank_partial, "read_first_steps", lambda _, name, *__, **___: read.append(name)
    )
    outcome = build([str(run)], target, jobs=jobs)
    assert (outcome.new, read) == (4, [])
    first_tables = tables(target)
    monkeypatch.undo()
    (Path(target) / "cluster.sqlite").unlink()
    assert build([str(run)], target, jobs=jobs).new == 0
    assert tables(target) == first_tables


def tables(target: str) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(Path(target) / "cluster.sqlite")) as db:
        query = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'"
        names = [name for (name,) in db.execute(query)]
        rows = {name: db.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    rows["META_DATA"] = [row for row in rows["META_DATA"] if row[0] != "created_ns"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "limit", "in_memory"),
    [
        (1, "OPERATIONS_IN_MEMORY", False),
        (1, "_MAX_RETURNED_OPERATIONS", True),
        (2, "_MAX_RETURNED_OPERATIONS", False),
    ],
)
def test_large_partials_are_neither_held_nor_sent(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch, jobs: int, limit: str, in_memory: bool
) -> None:
    monkeypatch.setattr(cluster_map, limit, 1)
    found: list[bool] = []
    real = cluster_map._store

    def store(*arguments: Any) -> list[cluster_map.RankFile]:
        files = real(*arguments)
        found.extend(file.partial is not None for file in files)
        return files

    monkeypatch.setattr(cluster_map, "_store", store)
    assert build([str(run)], target, jobs=jobs).new == 4
    assert found == [in_memory] * 4


def test_abandoned_files_are_searched_once_per_directory(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Path] = []
    real = atomic.remove_abandoned

    def remove_abandoned(folder: Path, head: str | None = None) -> None:
        searched.append(folder)
        real(folder, head)

    for module in (atomic, remote):
        monkeypatch.setattr(module, "remove_abandoned", remove_abandoned)
    build([str(run)], target, jobs=1)
    assert searched.count(Path(target) / "partials") == 1


opened: list[tuple[str, str]] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event in ("open", "sqlite3.connect"):
        opened.append((event, str(arguments[0])))


def test_unchanged_build_opens_neither_recordings_nor_partials(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build([str(run)], target)
    sys.addaudithook(_listen)  # Stays until the process ends.
    monkeypatch.setattr(sys.modules[__name__], "opened", [])
    monkeypatch.setattr(StorageDirectory, "read", lambda *_: pytest.fail("a partial is read"))
    assert build([str(run)], target).already
    assert opened is not None
    files = [name for _, name in opened]
    assert not [name for name in files if name.startswith(str(run))]
    databases = [name for event, name in opened if event == "sqlite3.connect"]
    assert {name.partition("?")[0] for name in databases if ":memory:" not in name} == {
        (Path(target) / "cluster.sqlite").as_uri()
    }
    # Of each partial, the last four bytes.
    names = [Path(name).name for name in files if "/partials/" in name]
    assert sorted(names) == sorted(partials(target))


@pytest.mark.slow
def test_unchanged_build_imports_no_reader(run: Path, target: str) -> None:
    script = (
        "import sys; from unified_prof.pipeline.cluster import build;"
        "outcome = build(sys.argv[1:2], sys.argv[2], jobs=1);"
        "print(outcome.already, *sorted(sys.modules))"
    )
    outputs = [python("-c", script, run, target, check=True).stdout.split() for _ in range(2)]
    assert [words[0] for words in outputs] == ["False", "True"]
    heavy = {f"unified_prof.cluster.{name}" for name in ("rank_map", "summary", "replay")} | {
        "pyarrow"
    }
    assert heavy <= set(outputs[0])
    assert heavy & set(outputs[1]) == set()


def fields(outcome: Any) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in outcome.__slots__}


def test_changed_rank_is_read_again_and_its_old_partial_removed(run: Path, target: str) -> None:
    build([str(run)], target)
    before = partials(target)
    ranks.trace(run / "new" / "rank2.json", 2)
    (run / "rank2.db").unlink()
    outcome = build([str(run)], target)
    assert outcome.new == 1
    assert not any("rank 2" in text for text in outcome.findings)
    after = partials(target)
    assert len(after) == 4
    assert len(after.items() & before.items()) == 3
    forced = build([str(run)], target, force=True)
    assert forced.new == 4


def test_interrupted_build_continues_with_the_remaining_ranks(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rank_map.read_partials

    def interrupt(path: Path, rank: int | None = None) -> Any:
        if path.name == "rank2.db":
            raise KeyboardInterrupt
        return original(path, rank)

    monkeypatch.setattr(cluster_map, "partials_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build([str(run)], target, jobs=1)
    assert len(partials(target)) == 2
    assert not (Path(target) / "cluster.sqlite").exists()
    monkeypatch.undo()
    assert build([str(run)], target).new == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5000:60_000] = os.urandom(55_000)
    path.write_bytes(data)


def replace_by_other_schema(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE spans (begun, ended)")
    connection.close()


def replace_by_other_family(path: Path) -> None:
    path.unlink()
    create(path, catalogue.SKYLINE_RUN_TIME, "latest")


def replace_by_other_run(path: Path) -> None:
    raw = ranks.trace(path.with_suffix(".json"), 2, world=8)
    path.unlink()
    convert(raw, path)
    raw.unlink()


DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, r"rank 2: its file is cut off"),
    "empty": (lambda path: path.write_bytes(b""), r"rank 2: its file is empty"),
    "damaged": (overwrite_pages, r"rank 2: .*(damaged|malformed|no .*database)"),
    "text": (lambda path: path.write_text("no database"), r"rank 2: its file is not a report"),
    "other schema": (replace_by_other_schema, r"rank 2: its file is not a report"),
    "other family": (replace_by_other_family, r"missing: 2"),
    "other run": (replace_by_other_run, r"rank 2: from a run of 8 ranks, the others from one of"),
    "absent": (Path.unlink, r"missing: 2"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_unreadable_rank_is_reported_others_are_read(defect: str, run: Path, target: str) -> None:
    damage, words = DEFECTS[defect]
    damage(run / "rank2.db")
    outcome = build([str(run)], target)
    assert (outcome.world_size, outcome.ranks_read) == (4, 3)
    assert not outcome.is_complete
    assert outcome.coverage.startswith("3 of 4 ranks; ")
    assert re.search(words, outcome.coverage), outcome.coverage
    connection = sqlite3.connect(Path(target) / "cluster.sqlite")
    status = dict(connection.execute("SELECT rank, status FROM RANK"))
    connection.close()
    assert status[2] == ("absent" if words == "missing: 2" else "failed")
    assert {status[rank] for rank in (0, 1, 3)} == {"read"}
    again = build([str(run)], target)
    assert again == type(again)(**{**fields(outcome), "new": 0, "already": True})


def test_second_damaged_file_of_a_rank_has_no_rank(run: Path, target: str) -> None:
    cut(run / "rank2.db")
    (run / "copy").mkdir()
    shutil.copy(run / "rank2.db", run / "copy" / "rank2.db")
    assert [one.rank for one in build([str(run)], target).unread] == [2, None]


def test_databases_of_other_tools_are_no_ranks(run: Path, target: str) -> None:
    connection = sqlite3.connect(run / "experiments.db")
    connection.execute("CREATE TABLE runs (name)")
    connection.close()
    assert build([str(run)], target).coverage == "4 of 4 ranks"


def test_internal_error_of_one_rank_does_not_stop_the_others(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rank_map.read_partials

    def fail(path: Path, rank: int | None = None) -> Any:
        if path.name == "rank2.db":
            raise ZeroDivisionError("injected")
        return original(path, rank)

    monkeypatch.setattr(cluster_map, "partials_of", fail)
    outcome = build([str(run)], target, jobs=1)
    assert "rank 2: unexpected error: ZeroDivisionError: injected" in outcome.coverage


def test_unnamed_unreadable_file_is_the_missing_rank(run: Path, target: str) -> None:
    (run / "rank2.db").rename(run / "recording.db")
    cut(run / "recording.db")
    outcome = build([str(run)], target)
    assert [unread.rank for unread in outcome.unread] == [2]
    assert outcome.absent == ()
    (run / "rank3.db").unlink()
    outcome = build([str(run)], target)
    assert [unread.rank for unread in outcome.unread] == [None]
    assert outcome.absent == (2, 3)
    assert "recording.db: its file is cut off" in outcome.coverage


def test_damaged_copy_of_a_read_rank_is_reported_without_rank(run: Path, target: str) -> None:
    (run / "copy").mkdir()
    shutil.copy(run / "rank2.db", run / "copy" / "rank2.db")
    cut(run / "copy" / "rank2.db")
    outcome = build([str(run)], target)
    assert outcome.ranks_read == 4
    assert [unread.rank for unread in outcome.unread] == [None]


def test_two_files_of_one_rank_are_refused_with_both_names(run: Path, target: str) -> None:
    (run / "copy").mkdir()
    shutil.copy(run / "rank2.db", run / "copy" / "rank2.db")
    with pytest.raises(UsageError, match=r"rank 2 has two files: .*copy/rank2\.db and .*rank2\.db"):
        build([str(run)], target)


def test_build_without_readable_input_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "rank0.db").write_bytes(b"")
    with pytest.raises(
        StoreError, match=r"no rank's recording could be read; .*: its file is empty"
    ):
        build([str(tmp_path / "rank0.db")], target)
    with pytest.raises(UprofError, match="no such file"):
        build([str(tmp_path / "none")], target)


def test_directory_with_other_files_is_not_overwritten(run: Path) -> None:
    with pytest.raises(OutputError, match=r"rank0\.db and is not a run written by uprof"):
        build([str(run)], str(run))
    with pytest.raises(OutputError, match="is a file, expected a directory"):
        build([str(run)], str(run / "rank0.db"))


@pytest.mark.parametrize("defect", ["cut", "zeros"])
def test_damaged_partial_is_rebuilt(defect: str, run: Path, target: str) -> None:
    build([str(run)], target)
    partial = next(Path(target, "partials").glob("00001-*"))
    data = partial.read_bytes()
    partial.write_bytes(data[:-100] if defect == "cut" else bytes(len(data) - 4) + b"PAR1")
    (Path(target) / "cluster.sqlite").unlink()
    outcome = build([str(run)], target)
    assert outcome.ranks_read == 4
    assert next(Path(target, "partials").glob("00001-*")).read_bytes() == data


def test_databases_and_traces_are_combined(tmp_path: Path, run: Path, target: str) -> None:
    (run / "rank3.db").unlink()
    ranks.trace(tmp_path / "elsewhere" / "t.json", 3)
    outcome = build([str(run), f"3={tmp_path / 'elsewhere' / 't.json'}"], target)
    assert outcome.is_complete
    assert not list((tmp_path / "elsewhere").glob("*.db")), "nothing beside the user's files"


def test_summary_is_made_in_memory_without_pyarrow(
    run: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs pyarrow") as raised:
        build([str(run)], target)
    assert raised.value.hint == "run `pip install 'unified-prof[cluster]'`"
    summary = summary_of([str(run)])
    assert (summary.ranks_read, summary.findings[0].ranks) == (4, (2,))


@pytest.fixture
def storage_url() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    yield "memory://cluster"
    fsspec.filesystem("memory").store.clear()


def test_remote_inputs_are_built_into_a_remote_run(run: Path, storage_url: str) -> None:
    for path in run.iterdir():
        StorageDirectory(f"{storage_url}/in").write(path.name, path.read_bytes())
    StorageDirectory(f"{storage_url}/in").write("rank4.db", b"")
    outcome = build([f"{storage_url}/in"], f"{storage_url}/run.cluster", jobs=1)
    assert (outcome.ranks_read, outcome.new) == (4, 4)
    assert "rank 2" in outcome.findings[0]
    assert len(StorageDirectory(f"{storage_url}/run.cluster/partials").names()) == 4
    again = build([f"{storage_url}/in"], f"{storage_url}/run.cluster", jobs=1)
    assert (again.new, again.already) == (0, True)


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["cluster", "report", "RUN"], "RUN: 4 ranks"),
        (["cluster", "report", "RUN", "--format", "html"], "<title>"),
        (["cluster", "report", "RUN/cluster.sqlite", "--rank", "2"], "4 of 4 ranks"),
        (["cluster", "diff", "RUN", "RUN"], "RUN"),
        (["cluster", "gate", "RUN", "RUN", "--metric", "imbalance"], "imbalance"),
        (["db", "check", "RUN"], "no problems found"),
        (["export", "RUN", "--ranks", "1,2"], "traceEvents"),
    ],
)
def test_run_at_a_url_is_read_by_every_command(
    run: Path, storage_url: str, words: list[str], text: str, tmp_path: Path
) -> None:
    url = f"{storage_url}/run.cluster"
    build([str(run)], url, jobs=1)
    output = tmp_path / "out.html"
    words = [word.replace("RUN", url) for word in words]
    if "html" in words or "export" in words:
        output = output.with_suffix(".json" if "export" in words else ".html")
        words += ["-o", str(output)]
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    shown = output.read_text(encoding="utf-8") if output.exists() else result.stdout
    assert text.replace("RUN", url) in shown


def test_recordings_at_a_url_are_exported_from_a_run_at_a_url(
    run: Path, storage_url: str, tmp_path: Path
) -> None:
    for path in run.iterdir():
        StorageDirectory(f"{storage_url}/in").write(path.name, path.read_bytes())
    url, output = f"{storage_url}/run.cluster", tmp_path / "out.json"
    build([f"{storage_url}/in"], url, jobs=1)
    CliRunner().invoke(app, ["export", url, "--ranks", "0,3", "-o", str(output)])
    assert "rank 3" in output.read_text(encoding="utf-8")


def test_run_at_a_file_url_is_checked_and_a_lost_reference_found(run: Path, tmp_path: Path) -> None:
    build([str(run)], str(tmp_path / "a.cluster"), jobs=1)
    url = (tmp_path / "a.cluster").as_uri()
    assert CliRunner().invoke(app, ["db", "check", url]).exit_code == 0
    execute(tmp_path / "a.cluster" / "cluster.sqlite", "DELETE FROM RANK WHERE rank = 1")
    assert CliRunner().invoke(app, ["db", "check", url]).exit_code == 1


def test_invalid_scheduler_is_refused_before_reading(run: Path, target: str) -> None:
    with pytest.raises(UsageError, match="is not a scheduler"):
        build([str(run)], target, scheduler="tcp:/x")
    assert not Path(target).exists()


# ---- the command


def test_command_warns_about_unreadable_ranks_and_fails_if_strict(run: Path, target: str) -> None:
    def run_build(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["cluster", "build", str(run), "-o", target, *words])
        code = getattr(result.exception, "exit_code", result.exit_code)
        return code, result.stdout, result.stderr

    code, out, err = run_build("--json")
    assert (code, json.loads(out)["ranks_read"]) == (0, 4)
    assert "warning" not in err
    cut(run / "rank2.db")
    code, out, err = run_build()
    assert (code, out) == (0, "")
    assert "uprof: warning: 3 of 4 ranks; rank 2: its file is cut off" in err
    assert run_build("--strict")[0] == 7
    assert run_build("--quiet")[1:] == ("", "")
    assert run_build("--dask", "2")[0] == 2
    assert run_build("--dask", "local:2", "--jobs", "2")[0] == 2
    code, _, err = run_build("--scheduler", "tcp://127.0.0.1:1x")
    assert code == 2


# ---- processes


KILLED = """
import os, signal, sys

if "spawn_main" in str(sys.orig_argv):  # a worker, not a scheduler or a resource tracker
    from unified_prof.pipeline import cluster_map

    original = cluster_map.partials_of

    def deadly(path, rank=None):
        if path.name == "rank2.db":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(path, rank)

    cluster_map.partials_of = deadly
"""


@pytest.fixture
def deadly(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which every process that opens rank2.db is killed."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(KILLED)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect", [("--jobs", "2"), ("--dask", "local:2")], ids=["processes", "dask"]
)
def test_input_that_kills_its_reader_is_reported_with_a_reason(
    defect: tuple[str, ...], run: Path, target: str, deadly: dict[str, str]
) -> None:
    result = uprof("cluster", "build", run, "-o", target, *defect, "--json", env=deadly)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert (record["ranks_read"], record["world_size"]) == (3, 4)
    (bad,) = record["unread"]
    assert bad["rank"] == 2
    assert "the process that read it" in bad["why"]
    assert bad["why"].endswith("twice")
    if "--jobs" in defect:
        strict = uprof("cluster", "build", run, "-o", target, *defect, "--strict", "-q", env=deadly)
        assert (strict.returncode, strict.stdout, strict.stderr) == (7, "", "")


class OtherMachines(InlinePool):
    """Runs tasks in this process with copies of their arguments and results."""

    is_distributed = True

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        called = pickle.loads(pickle.dumps(partial(fn, *args, **kwargs)))
        return super().submit(lambda: pickle.loads(pickle.dumps(called())))


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("change", [{}, {"buckets": 3, "setup_ns": 500_000}, {"pp": 4, "tp": 1}])
def test_reduce_by_group_on_other_machines_equals_that_of_one_process(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulate(Plan(**{"steps": 5, "slow": {3: 1.3}, **change}))
    folder = StorageDirectory(str(tmp_path))
    found = [cluster_map.RankFile(rank, f"rank{rank}", f"{rank}.parquet") for rank in range(16)]
    for rank, one in enumerate(partials_of(run)):
        folder.write(f"{rank}.parquet", rank_partial.partial_to_parquet(one))
    monkeypatch.setattr(cluster_map, "OPERATIONS_IN_MEMORY", 16 * 25)
    _, expected = combine([], found, folder, InlinePool())
    summed: list[int] = []
    original = cluster_map._sum

    def counted(task: Any) -> Any:
        summed.append(len(task.names))
        return original(task)

    monkeypatch.setattr(cluster_map, "_sum", counted)
    read, _ = cluster_map.read_partials(found, folder, OtherMachines())
    held = [one.held for one in read if one.held is not None]
    assert held
    assert not any(one.whole.columns for one in held)
    _, summary = combine([], found, folder, OtherMachines())
    assert summary.tables == expected.tables
    assert summary.findings == expected.findings
    assert len(summed) > 8
    assert sorted(summed)[-2] < 16  # only one group has all ranks
    summed.clear()
    monkeypatch.setattr(cluster_map, "_read_on_worker", {}.get)  # they do not see the directory
    _, alone = combine([], found, folder, OtherMachines())
    assert (alone.tables, summed) == (expected.tables, [])


@pytest.mark.slow
def test_summary_is_that_of_any_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(Plan(steps=5, slow={3: 1.3}))
    for rank in range(run.plan.world):
        write_database(run, rank, tmp_path / f"rank{rank}.db")

    def tables(target: Path) -> list[list[tuple[object, ...]]]:
        build([str(tmp_path / f"rank{n}.db") for n in range(16)], str(target), jobs=1)
        with closing(sqlite3.connect(target / "cluster.sqlite")) as db:
            return [
                db.execute(f"SELECT * FROM {name}").fetchall()
                for name in ("COLLECTIVE", "OPERATION_RANK", "RANK")
            ]

    whole = tables(tmp_path / "whole.cluster")
    monkeypatch.setattr("unified_prof.pipeline.cluster_map.OPERATIONS_IN_MEMORY", 16 * 30)
    assert tables(tmp_path / "parts.cluster")[:2] == whole[:2]
