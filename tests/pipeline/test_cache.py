"""The cache of reports that `--convert` makes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import complete, operation
from tests.decoders.kineto.builders import write as write_trace
from tests.pipeline.test_sources import MAKERS
from unified_prof.errors import OutputError, RawFormatError, UsageError
from unified_prof.pipeline import cache
from unified_prof.sqlite.opening import detect


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "uprof" / "reports"


def trace(path: Path, name: str = "aten::mm", **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_trace(path, [operation(name, 1, 2)], **more)


def rank(folder: Path, number: int) -> Path:
    info = {"backend": "nccl", "rank": number, "world_size": 4}
    return trace(folder / f"host_{71 + number}.pt.trace.json", distributedInfo=info)


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("kind", MAKERS)
def test_recording_of_any_kind_is_converted_once(kind: str, tmp_path: Path, home: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    before = listing(tmp_path / "in")
    result = cache.reports_of(recording)
    assert detect(result.path).family == "msprof"
    assert result.path.is_relative_to(home)
    written = result.path.stat()
    again = cache.reports_of(recording)
    assert again.path == result.path
    stat = again.path.stat()
    assert (stat.st_mtime_ns, stat.st_ino) == (written.st_mtime_ns, written.st_ino)
    assert listing(tmp_path / "in") == before, "nothing is written beside the recording"


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.utime(path, ns=(1, path.stat().st_mtime_ns + 1)),
        lambda path: trace(path, "aten::other"),
        lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    ],
)
def test_changed_recording_is_new(change: Callable[[Path], object], tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json")
    first = cache.reports_of(path).path
    change(path)
    assert cache.reports_of(path).path != first


def test_changed_content_of_equal_size_and_time_is_detected(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", "aten::aa")
    moment = path.stat().st_mtime_ns
    first = cache.reports_of(path).path
    trace(path, "aten::bb")
    os.utime(path, ns=(moment, moment))
    assert cache.reports_of(path).path != first


def test_files_beside_an_export_are_part_of_its_content(tmp_path: Path) -> None:
    folder = MAKERS["ascend_text"](tmp_path)
    (view,) = folder.rglob("trace_view.json")
    first = cache.reports_of(view).path
    other = next(path for path in view.parent.iterdir() if path.suffix == ".csv")
    os.utime(other, ns=(1, time.time_ns() + 10**9))
    assert cache.reports_of(view).path != first


def test_reports_and_other_files_are_returned_unchanged(tmp_path: Path, home: Path) -> None:
    report = cache.reports_of(trace(tmp_path / "in" / "t.json")).path
    before = listing(home)
    other = tmp_path / "x.bin"
    other.write_bytes(b"hello")
    (tmp_path / "empty").mkdir()
    for path in (report, report.parent, other, tmp_path / "empty", tmp_path / "nowhere"):
        result = cache.reports_of(path)
        assert (result.path, result.converted, result.missing) == (path, (), ())
    assert listing(home) == before


def test_directory_of_ranks_becomes_a_directory_of_reports(tmp_path: Path) -> None:
    traces = [rank(tmp_path / "run", number) for number in range(3)]
    result = cache.reports_of(tmp_path / "run")
    assert sorted(path.name for path in result.path.iterdir()) == [
        f"rank{number}_host_{71 + number}.db" for number in range(3)
    ]
    assert [found.path for found, _ in result.converted] == traces
    assert cache.reports_of(tmp_path / "run").path == result.path
    assert cache.reports_of(traces[0]).path.samefile(result.path / "rank0_host_71.db")


def test_damaged_recording_is_reported_and_others_are_converted(tmp_path: Path) -> None:
    for number in (0, 2):
        rank(tmp_path / "run", number)
    damaged = rank(tmp_path / "run", 1)
    damaged.write_text(damaged.read_text().replace('"traceEvents"', '"noEvents"'))
    result = cache.reports_of(tmp_path / "run")
    assert len(list(result.path.iterdir())) == 2
    (missing,) = result.missing
    assert missing.what == "rank 1"
    assert str(damaged) in missing.why
    with pytest.raises(RawFormatError, match="traceEvents"):
        cache.reports_of(damaged)
    with pytest.raises(UsageError, match="has 3 recordings"):
        cache.reports_of(tmp_path / "run", several=False)


def test_failure_leaves_no_file(tmp_path: Path, home: Path) -> None:
    damaged = tmp_path / "t.trace.json"
    damaged.write_text("{}")
    with pytest.raises(RawFormatError):
        cache.reports_of(damaged)
    assert list(home.iterdir()) == []


def test_concurrent_calls_share_one_report(tmp_path: Path) -> None:
    path = MAKERS["kineto"](tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = {result.path for result in pool.map(cache.reports_of, [path] * 4)}
    (report,) = found
    assert detect(report).family == "msprof"
    assert [file.name for file in report.parent.iterdir()] == [report.name]


def test_least_recently_used_reports_are_removed_first(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [trace(tmp_path / f"{name}.json", f"aten::{name}") for name in "abcd"]
    reports = [cache.reports_of(path).path for path in paths]
    size = reports[0].stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", int(2.5 * size))
    cache.reports_of(trace(tmp_path / "e.json", "aten::e"))
    assert all(report.is_file() for report in reports), "all are in use"
    now = time.time()
    for report, age in zip(reports, (2, 5, 3, 4), strict=True):
        os.utime(report.parent, (now - age * 3600, now - age * 3600))
    cache.reports_of(paths[1])  # The most recently used.
    (home / ".gone-left-over").mkdir()
    cache.reports_of(trace(tmp_path / "f.json", "aten::f"))
    # The cache holds two and a half reports: the two newest stay beside the one being written.
    assert [report.is_file() for report in reports] == [False, True, False, False]
    assert not (home / ".gone-left-over").exists()
    assert cache.reports_of(paths[0]).path == reports[0]
    assert reports[0].is_file()


def test_cache_directory_is_private_and_configurable(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "t.json")
    cache.reports_of(path)
    assert home.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.root() == tmp_path / "home" / ".cache" / "uprof" / "reports"


def test_unwritable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError):
        cache.reports_of(trace(tmp_path / "t.json"))


def test_recording_with_an_added_file_is_converted_again(tmp_path: Path) -> None:
    folder = MAKERS["ascend_pt"](tmp_path)
    first = cache.reports_of(folder).path
    write_trace(folder / "FRAMEWORK" / "other", [complete("cpu_op", "x", 0, 1)])
    assert cache.reports_of(folder).path != first
