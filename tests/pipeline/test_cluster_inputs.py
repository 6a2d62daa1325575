"""Inputs of a cluster run: one per rank, other files ignored."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import kernel, write
from tests.prof_generator import Recipe, generate
from unified_prof.pipeline.cluster_inputs import Input, host_in, inputs_of, rank_in, resolved
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.remote import StorageDirectory, fetch


def database(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {text} (a)")
    connection.close()
    return path


def ascend_pt(folder: Path, rank: int) -> Path:
    """Write the directory of a rank that holds torch_npu's own database."""
    (folder / f"host_{rank}_ascend_pt").mkdir(parents=True)
    (folder / f"host_{rank}_ascend_pt" / f"profiler_info_{rank}.json").write_text("{}")
    output = folder / f"host_{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    database(output / "analysis.db")
    return database(output / f"ascend_pytorch_profiler_{rank}.db")


def locations(*paths: Path | str) -> list[str]:
    inputs, errors = inputs_of([str(path) for path in paths])
    assert errors == []
    return [found.location for found in inputs]


def test_mixed_directory_gives_one_input_per_rank(tmp_path: Path) -> None:
    run = tmp_path / "run"
    exported = ascend_pt(run, 0)
    trace = write(run / "rank1.json", [kernel(1, 2, 3)])
    prof = generate(run / "rank2", Recipe(operators=1)).path
    built = database(run / "rank3" / "msprof_20260101000000.db")
    for name in ("run_time.sqlite", "memory_rank3.sqlite", "cluster.sqlite", "cluster_analysis.db"):
        database(run / name)
    for name in ("truth.json", "run.json", "notes.txt", "config.json"):
        (run / name).write_text("{}")
    database(run / "old.cluster" / "partials.db")
    database(run / ".hidden" / "rank4.db")
    assert locations(run) == [str(path) for path in (exported, trace, prof, built)]


def test_recording_and_its_database_count_once(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0.json", [kernel(1, 2, 3)])
    prof = generate(tmp_path / "rank1", Recipe(operators=1)).path
    assert locations(tmp_path) == [str(trace), str(prof)]
    inside = convert(prof).database
    beside = convert(trace, tmp_path / "rank0.db").database
    assert locations(tmp_path) == [str(beside), str(inside)]


def test_truncated_and_empty_databases_are_ranks(tmp_path: Path) -> None:
    path = ascend_pt(tmp_path, 5)
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "rank6.db").write_bytes(b"")
    inputs, _ = inputs_of([str(tmp_path)])
    assert [found.likely_rank for found in inputs] == [5, 6]


def test_explicit_ranks_are_used(tmp_path: Path) -> None:
    one, other = database(tmp_path / "a.db"), database(tmp_path / "b.db")
    inputs, errors = inputs_of([f"3={one}", f"12={other}"])
    assert [(i.rank, i.location) for i in inputs] == [(3, str(one)), (12, str(other))]
    assert not errors
    inputs, errors = inputs_of([f"3={tmp_path}"])
    assert "has 2 recordings, expected one for rank 3" in str(errors[0][1])
    odd = database(tmp_path / "1=c.db")
    os.chdir(tmp_path)
    assert [(i.rank, i.location) for i in inputs_of([odd.name])[0]] == [(None, str(odd))]


@pytest.fixture(autouse=True)
def restore_working_directory() -> Iterator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


def test_patterns_repetitions_and_missing_inputs(tmp_path: Path) -> None:
    paths = [database(tmp_path / f"rank{rank}" / "x.db") for rank in range(3)]
    assert locations(tmp_path / "rank*", paths[0]) == [str(path) for path in paths]
    (tmp_path / "empty").mkdir()
    inputs, errors = inputs_of([str(tmp_path / "none"), str(tmp_path / "empty"), str(paths[0])])
    assert [found.location for found in inputs] == [str(paths[0])]
    assert "contains no database or recording of a rank" in str(errors[1][1])
    assert [location for location, _ in errors] == [str(tmp_path / "none"), str(tmp_path / "empty")]


@pytest.mark.parametrize(
    ("location", "rank"),
    [
        ("/run/x_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_77.db", 77),
        ("/run/rank3/msprof_2026.db", 3),
        ("/run/rank00012.pt.trace.json.gz", 12),
        ("/rank1/of/trace_rank-9.json", 9),
        ("/run/trace.rank_4.json", 4),
        ("s3://bucket/rank5/x.db", 5),
        ("/run/ranking2/x.db", None),
        ("/run/rank3x/x.db", None),
        ("/run/x.db", None),
        ("/home/me/rank_1/runs/today/out/trace/t.json", None),
        ("/data/rank3/h_ascend_pt/ASCEND_PROFILER_OUTPUT/x.db", 3),
    ],
)
def test_rank_is_read_from_the_path(location: str, rank: int | None) -> None:
    assert rank_in(location) == rank


def test_rank_is_read_from_the_directory_of_a_renamed_database(tmp_path: Path) -> None:
    exported = ascend_pt(tmp_path, 7)
    assert rank_in(str(exported.rename(exported.with_name("ascend_pytorch_profiler.db")))) == 7
    assert rank_in(str(tmp_path / "host_7_ascend_pt")) == 7


def test_content_depends_on_file_place_and_rank(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.db")
    (before,), _ = inputs_of([str(path)])
    assert inputs_of([str(path)])[0] == [before]
    os.utime(path, ns=(1, 1))
    (after,), _ = inputs_of([str(path)])
    other = shutil.copy2(path, tmp_path / "rank1.db")
    contents = {
        before.content,
        after.content,
        inputs_of([str(other)])[0][0].content,
        inputs_of([f"1={path}"])[0][0].content,
    }
    assert len(contents) == 4


def test_remote_inputs_are_listed_and_fetched() -> None:
    fsspec = pytest.importorskip("fsspec")
    store = StorageDirectory("memory://cluster/run")
    store.write("a_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db", b"x")
    store.write("a_ascend_pt/profiler_info_0.json", b"{}")
    store.write("rank1.json.gz", b"y")
    store.write("truth.json", b"{}")
    store.write("cluster.sqlite", b"z")
    try:
        inputs, errors = inputs_of(["memory://cluster/run", "memory://cluster/none"])
        assert [type(error).__name__ for _, error in errors] == ["RawFormatError"]
        assert [Path(found.location).name for found in inputs] == ["a_ascend_pt", "rank1.json.gz"]
        assert all(isinstance(found, Input) and found.remote for found in inputs)
        assert inputs[0].remote is not None
        with fetch(inputs[0].remote) as path:
            assert [local.path.name for local in resolved(path)] == ["ascend_pytorch_profiler_0.db"]
    finally:
        fsspec.filesystem("memory").store.clear()


def test_links_to_directories_are_followed_once(tmp_path: Path) -> None:
    exported = database(tmp_path / "scratch" / "rank0.db")
    runs = tmp_path / "runs"
    (runs / "own").mkdir(parents=True)
    (runs / "host0").symlink_to(exported.parent)
    (runs / "same").symlink_to(exported.parent)
    (runs / "own" / "loop").symlink_to(runs)
    assert locations(runs) == [str(runs / "host0" / "rank0.db")]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory")
def test_links_into_shared_memory_are_followed_and_those_to_the_kernel_not(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        database(Path(folder, "rank0.db"))
        (tmp_path / "kernel").symlink_to("/proc/self")
        (tmp_path / "memory").symlink_to(folder)
        assert locations(tmp_path) == [str(tmp_path / "memory" / "rank0.db")]


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("/logs/gpu001_4123.1763600000000000000.pt.trace.json.gz", "gpu001"),
        ("/logs/ip-10-0-3-7.ec2_88.1763600000000.pt.trace.db", "ip-10-0-3-7.ec2"),
        ("/logs/node7_1234_20260101000000123_ascend_pt/ASCEND_PROFILER_OUTPUT/x.db", "node7"),
        ("s3://job/host-12/rank3.json", "host-12"),
        ("/logs/rank3_4123.1763600000000.pt.trace.json", None),
        ("/runs/rank3/trace.json", None),
    ],
)
def test_host_is_read_from_the_path(location: str, host: str | None) -> None:
    assert host_in(location) == host
