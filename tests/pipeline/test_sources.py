"""Every source of the registry, each with a tiny recording of its kind."""

import bz2
import gzip
import io
import lzma
import os
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.decoders.ascend_pt.builders import Framework
from tests.decoders.ascend_text import builders as text_export
from tests.decoders.kineto.builders import operation
from tests.decoders.kineto.builders import write as write_trace
from tests.decoders.memory_snapshot.builders import small as small_snapshot
from tests.decoders.memory_snapshot.builders import write as write_snapshot
from tests.decoders.nsys.builders import small as small_export
from tests.decoders.nsys.builders import write as write_export
from tests.decoders.rocm.builders import as_json, write_json
from tests.decoders.rocm.builders import small as small_rocpd
from tests.decoders.rocm.builders import write as write_rocpd
from tests.prof_generator import Recipe, generate
from unified_prof.cli.app import app
from unified_prof.errors import RawFormatError, UprofError, UsageError
from unified_prof.migrate.check import check
from unified_prof.pipeline import discovery, sources, temporary_inputs
from unified_prof.pipeline.convert import convert, convert_all
from unified_prof.pipeline.discovery import FoundRecording
from unified_prof.pipeline.sources import SOURCES, Match, Source
from unified_prof.sqlite.reader import Report


def prof(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return generate(folder, Recipe(operators=1)).path


def memory_snapshot(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_snapshot(folder / "run.pickle", small_snapshot())


def rocm(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_rocpd(folder / "results.db", small_rocpd())


def nsys(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_export(folder / "run.sqlite", small_export())


def kineto(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_trace(folder / "run.pt.trace.json", [operation("aten::mm", 1, 2)])


def ascend_pt(folder: Path) -> Path:
    framework = Framework()
    framework.operator("aten::mm", 1, 2)
    return framework.write(folder / "host_7_20260101000000000_ascend_pt", rank=0)


def ascend_text(folder: Path) -> Path:
    return text_export.write(folder / "host_8_20260101000000000_ascend_pt")


MAKERS: dict[str, Callable[[Path], Path]] = {
    "prof": prof,
    "kineto": kineto,
    "nsys": nsys,
    "ascend_pt": ascend_pt,
    "memory_snapshot": memory_snapshot,
    "ascend_text": ascend_text,
    "rocm": rocm,
}


@pytest.fixture(params=SOURCES, ids=lambda source: source.kind)
def source(request: pytest.FixtureRequest) -> Source:
    found = request.param
    assert isinstance(found, Source)
    return found


def find_recordings(*paths: Path) -> list[Path]:
    return [found.path for found in discovery.find(paths) if isinstance(found, FoundRecording)]


def find_error(path: Path) -> UprofError:
    (outcome,) = discovery.find([path])
    assert not isinstance(outcome, FoundRecording)
    assert outcome[0] == path
    return outcome[1]


def test_source_recognizes_its_recordings_and_no_other(source: Source, tmp_path: Path) -> None:
    recording = MAKERS[source.kind](tmp_path)
    assert {other.kind: other.sniff(recording) for other in SOURCES} == {
        other.kind: Match.CERTAIN if other is source else Match.NO for other in SOURCES
    }
    assert sources.find_source(recording) is source
    assert sources.by_kind(source.kind) is source


def test_report_of_every_source_states_its_identity(source: Source, tmp_path: Path) -> None:
    recording = MAKERS[source.kind](tmp_path)
    conversion = convert(recording, tmp_path / "r.db")
    with Report(conversion.database) as report:
        facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    assert facts["command"] == source.command
    assert facts.items() >= source.identity(recording).items()
    assert conversion.kind == source.kind
    assert check(conversion.database).sound
    assert conversion.database.stat().st_mtime_ns >= source.modified_ns(recording)


def test_recordings_of_every_source_are_found_at_any_depth(source: Source, tmp_path: Path) -> None:
    places = [tmp_path / "a" / f"rank{rank}" / "run_ascend_pt" for rank in (0, 1)]
    recordings = [MAKERS[source.kind](place) for place in places]
    found = [item for item in discovery.find([tmp_path]) if isinstance(item, FoundRecording)]
    assert [item.path for item in found] == recordings
    names = discovery.report_names(found)
    assert [name.startswith(f"rank{rank}_") for rank, name in enumerate(names)] == [True, True]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("command", ["build", "import"])
def test_build_and_import_accept_every_source(command: str, source: Source, tmp_path: Path) -> None:
    recording = MAKERS[source.kind](tmp_path)
    help_ = CliRunner().invoke(app, [command, "--help"], terminal_width=200).stdout
    assert source.description.split()[1] in help_
    result = CliRunner().invoke(app, [command, str(recording), "-o", str(tmp_path / "r.db")])
    assert result.exit_code == 0, result.stderr


# ---- search


def test_recording_named_several_times_is_found_once(tmp_path: Path) -> None:
    trace = kineto(tmp_path / "a")
    (tmp_path / "link.json").symlink_to(trace)
    assert (
        len(find_recordings(trace, tmp_path, tmp_path / "a" / ".." / "a", tmp_path / "link.json"))
        == 1
    )


def test_patterns_are_expanded(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / f"rank{rank}")
    assert len(find_recordings(tmp_path / "rank*" / "*.json")) == 2
    assert len(find_recordings(tmp_path / "**" / "run.pt.trace.json")) == 2
    assert len(find_recordings(tmp_path / "rank[0]")) == 1
    nothing = find_error(tmp_path / "rank*" / "*.gz")
    assert "matches nothing" in str(nothing.hint)
    assert nothing.exit_code == RawFormatError.exit_code


def test_file_name_that_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    trace = kineto(tmp_path).rename(tmp_path / "run[1].json")
    assert find_recordings(trace) == [trace]


def test_recordings_are_found_at_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("x" * 30)
    trace = kineto(deep)
    recording = prof(deep / "y")
    assert find_recordings(tmp_path) == [trace, recording]


def failures_and_notes(path: Path) -> tuple[list[Path], list[str]]:
    """Return the paths that fail below a directory, and the notes."""
    notes: list[str] = []
    found = list(discovery.find([path], note=notes.append))
    return [item[0] for item in found if not isinstance(item, FoundRecording)], notes


def test_search_depth_is_limited(tmp_path: Path) -> None:
    near, deep = tmp_path / "near", tmp_path
    for _ in range(discovery.MAX_DEPTH + 2):
        deep = deep / "x"
    kineto(deep)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "contains none" in str(find_error(tmp_path))
    kineto(near)
    failed, notes = failures_and_notes(tmp_path)
    assert failed == []
    (note,) = notes
    assert f"more than {discovery.MAX_DEPTH} levels below {tmp_path} are not searched" in note
    assert str(deep.parent.parent) in note


def test_links_to_directories_outside_are_reported_not_followed(tmp_path: Path) -> None:
    kineto(tmp_path / "in")
    elsewhere = tmp_path / "elsewhere"
    kineto(elsewhere)
    for name in ("a", "b", "c"):
        (tmp_path / "in" / name).symlink_to(elsewhere)
    (tmp_path / "in" / "back").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in" / "circle")
    failed, notes = failures_and_notes(tmp_path / "in")
    assert failed == []
    assert notes == [
        f"links outside the directory are not followed: {tmp_path / 'in' / 'a'} and 2 more"
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can list every directory")
def test_unreadable_directory_is_reported(tmp_path: Path) -> None:
    trace = kineto(tmp_path / "z")
    (tmp_path / "a").mkdir(mode=0)
    try:
        assert find_recordings(tmp_path) == [trace]
        assert failures_and_notes(tmp_path)[0] == [tmp_path / "a"]
    finally:
        (tmp_path / "a").chmod(0o700)


def test_unlistable_directory_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    trace = kineto(tmp_path / "z")
    real = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (_, error), found = discovery.find([tmp_path])  # type: ignore[misc]
    assert isinstance(found, FoundRecording)
    assert found.path == trace
    assert str(error) == f"cannot list {tmp_path / 'a'}: Permission denied"
    assert error.exit_code == RawFormatError.exit_code
    monkeypatch.undo()
    assert find_recordings(tmp_path) == [trace]


def test_search_ends_after_the_maximum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_ENTRIES", 20)
    trace = kineto(tmp_path / "a")
    for number in range(30):
        (tmp_path / f"b{number:02}").write_text("")
    assert find_recordings(tmp_path) == [trace]
    (failed,) = [
        item for item in discovery.find([tmp_path]) if not isinstance(item, FoundRecording)
    ]
    assert f"{tmp_path} has more than 20 files and directories" in str(failed[1])
    assert "everything after it was skipped" in str(failed[1])


def test_only_certain_recordings_are_taken_from_a_directory(tmp_path: Path) -> None:
    trace = kineto(tmp_path)
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "chrome.json").write_text('{"traceEvents": [], "displayTimeUnit": "ms"}')
    (tmp_path / "trace_view.json").write_text('[{"ph": "X", "cat": "cpu_op"}]')
    (tmp_path / "PROF_1").mkdir()
    (tmp_path / "PROF_1" / "msprof_20260101000000.db").write_bytes(b"")
    (tmp_path / ".hidden").mkdir()
    kineto(tmp_path / ".hidden")
    assert find_recordings(tmp_path) == [trace]


def test_damaged_recordings_in_a_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "empty.pt.trace.json").write_text("")
    (tmp_path / "rank1.trace.json.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    (tmp_path / "PROF_1").mkdir()
    assert len(find_recordings(tmp_path)) == 3


def test_possible_recordings_are_accepted_if_named_explicitly(tmp_path: Path) -> None:
    plain = tmp_path / "t"
    plain.write_text('\ufeff [{"ph": "X"}]')
    packed = tmp_path / "p"
    packed.write_bytes(gzip.compress(b'{"other": 1}'))
    (tmp_path / "d" / "host").mkdir(parents=True)
    assert find_recordings(plain, packed, tmp_path / "d") == [plain, packed, tmp_path / "d"]


def test_names_are_stable_and_unique(tmp_path: Path) -> None:
    paths = [kineto(tmp_path / a / b) for a in "xy" for b in ("n0", "n1")]
    found = [FoundRecording(path, sources.by_kind("kineto")) for path in paths]
    assert discovery.report_names(found) == ["x_n0_run", "x_n1_run", "y_n0_run", "y_n1_run"]
    assert discovery.report_names(found) == discovery.report_names(found)
    assert discovery.report_names(found[:1]) == ["run"]


def names_with_ranks(*paths: Path) -> list[str]:
    found = [
        FoundRecording(path, source) for path in paths if (source := sources.find_source(path))
    ]
    return discovery.report_names(found, ranked=True)


def test_names_contain_the_rank_of_the_recording(tmp_path: Path) -> None:
    def trace(name: str, rank: int, ranks: int = 8) -> Path:
        return write_trace(
            tmp_path / f"{name}.pt.trace.json",
            [operation("aten::mm", 1, 2)],
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": ranks},
        )

    assert names_with_ranks(trace("host_71.17", 3), trace("host_72.17", 12)) == [
        "rank3_host_71.17",
        "rank12_host_72.17",
    ]
    assert names_with_ranks(trace("rank3_x", 3), trace("x-RANK-03", 3), trace("franks1", 11)) == [
        "rank3_x",
        "x-RANK-03",
        "rank11_franks1",
    ]
    assert names_with_ranks(trace("node_rank1", 0)) == ["node_rank1"], "no second rank is added"
    assert names_with_ranks(trace("alone", 0, ranks=1), kineto(tmp_path / "no")) == ["alone", "run"]


def test_names_contain_the_rank_of_a_text_export(tmp_path: Path) -> None:
    folder = ascend_text(tmp_path)
    assert names_with_ranks(folder) == ["host_8_20260101000000000"]
    (folder / "profiler_info_5.json").write_text("{}")
    assert names_with_ranks(folder) == ["rank5_host_8_20260101000000000"]


def test_equal_names_of_different_kinds_get_the_kind(tmp_path: Path) -> None:
    trace, export = kineto(tmp_path), nsys(tmp_path)
    packed = tmp_path / "run.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    found = [
        FoundRecording(path, sources.by_kind(kind))
        for path, kind in ((trace, "kineto"), (export, "nsys"))
    ]
    assert discovery.report_names(found) == ["run_kineto", "run_nsys"]
    found.append(FoundRecording(packed, sources.by_kind("kineto")))
    assert len(set(discovery.report_names(found))) == 3


def test_names_differ_on_case_insensitive_file_systems(tmp_path: Path) -> None:
    paths = [
        write_trace(tmp_path / f"{name}.json", [operation("aten::mm", 1, 2)])
        for name in ("Run", "rUN", "run")
    ]
    names = discovery.report_names(
        [FoundRecording(path, sources.by_kind("kineto")) for path in paths]
    )
    assert len({name.casefold() for name in names}) == 3


# ---- refused files


def test_finished_report_is_refused_with_the_report_command(tmp_path: Path) -> None:
    report = convert(kineto(tmp_path), tmp_path / "r.db").database
    error = find_error(report)
    assert isinstance(error, UsageError)
    assert "finished report" in str(error)
    assert f"uprof report {report}" in str(error.hint)


def test_directory_with_only_a_finished_database_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "host 7_ascend_pt"
    database = folder / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db"
    database.parent.mkdir(parents=True)
    convert(kineto(tmp_path), database)
    error = find_error(folder)
    assert isinstance(error, UsageError)
    assert "only the finished database" in str(error)
    assert str(error.hint) == f"show it with `uprof report '{database}'`"


def test_unsupported_recordings_are_named_with_a_hint(tmp_path: Path) -> None:
    raw = tmp_path / "my run.nsys-rep"
    raw.write_bytes(b"x")
    error = find_error(raw)
    assert f"{raw} is an Nsight Systems recording, which uprof cannot convert" in str(error)
    export = tmp_path / "my run.sqlite"
    assert f"nsys export --type sqlite -o '{export}' '{raw}'" in str(error.hint)
    write_export(export, small_export())
    assert f"import its export: uprof convert '{export}'" in str(find_error(raw).hint)
    assert find_recordings(tmp_path) == [export]
    profile = tmp_path / "host.xplane.pb"
    profile.write_bytes(b"\x0a")
    assert "a JAX or TensorFlow profile (XPlane)" in str(find_error(profile))
    assert find_error(profile).exit_code == RawFormatError.exit_code


def write_archive(recording: Path, path: Path) -> Path:
    """Write a recording into a tar or zip archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            files = recording.rglob("*") if recording.is_dir() else [recording]
            for file in sorted(files):
                zipped.write(file, file.relative_to(recording.parent))
            zipped.writestr("README.txt", "a second file")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
            tar.add(recording, recording.name)
    return path


def write_compressed(recording: Path, path: Path) -> Path:
    """Write a recording that is one file compressed, twice if the name has two suffixes."""
    data = recording.read_bytes()
    for ending in (ending for ending in path.suffixes if ending in STREAMS):
        data = STREAMS[ending](data)
    path.write_bytes(data)
    return path


STREAMS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.quick(cases=7)
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".zip"])
def test_every_source_is_imported_from_an_archive(source: Source, ending: str, place: Path) -> None:
    recording = MAKERS[source.kind](place / "in")
    archive = write_archive(recording, place / f"archive{ending}")
    (outcome,) = convert_all([archive])
    assert outcome.error is None
    assert outcome.conversion is not None
    assert outcome.conversion.kind == source.kind
    assert str(outcome.recording).startswith(f"{archive}/")
    assert outcome.conversion.database.is_file()
    assert "uprof-" not in str(outcome.conversion.database)
    (again,) = convert_all([archive], force=True)
    assert again.error is None


@pytest.mark.quick(cases=7)
@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".gz.xz", ".bz2.gz"])
@pytest.mark.parametrize("kind", ["kineto", "nsys", "memory_snapshot", "rocm", "ascend_text"])
def test_every_single_file_is_imported_compressed(kind: str, ending: str, tmp_path: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    if recording.is_dir():
        recording = next(recording.rglob("trace_view.json"))
    plain = convert(recording, tmp_path / "plain.db")
    packed = write_compressed(recording, tmp_path / f"{recording.name}{ending}")
    found = sources.find_source(packed)
    assert found is not None
    assert found.kind == kind
    conversion = convert(packed, tmp_path / "packed.db")
    assert conversion.rows == plain.rows or kind == "ascend_text", "its tables are other files"
    assert conversion.result.figures.get("events") == plain.result.figures.get("events")


def test_compressed_rocprofv3_json_is_recognized(tmp_path: Path) -> None:
    recording = write_json(tmp_path / "908_results.json", as_json())
    packed = write_compressed(recording, tmp_path / "908_results.json.gz")
    assert convert(packed, tmp_path / "r.db").rows == convert(recording, tmp_path / "p.db").rows


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["../outside.json"], "unsafe file name"),
        (["/etc/outside.json"], "unsafe file name"),
        ([f"{number}.txt" for number in range(5)], "too many files"),
    ],
)
def test_unsafe_and_large_archives_are_refused(
    names: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_inputs, "_MAX_MEMBERS", 4)
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    (outcome,) = convert_all([archive])
    assert isinstance(outcome.error, RawFormatError)
    assert why in str(outcome.error)
    assert not (tmp_path / "outside.json").exists()


def test_archive_that_expands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_inputs, "RATIO_CHECKED_FROM_BYTES", 1 << 20)
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in ("a.json", "b.json"):
            zipped.writestr(name, bytes(8 << 20))
    (outcome,) = convert_all([archive])
    assert isinstance(outcome.error, RawFormatError)
    assert "expands too much" in str(outcome.error)


def test_links_in_an_archive_are_not_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("run.pt.trace.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    (outcome,) = convert_all([archive])
    assert outcome.error is not None
    assert "contains none" in str(outcome.error)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.json", b'{"schema": "1.0.1", "pid": 7, "nodes": []}', "a PyTorch execution trace"),
        ("a.json", b'{"schema": "1.1.1-chakra.0.0.4", "pid": 7}', "a Chakra execution trace"),
        ("rank0.et", b"\x0a\x02", "a Chakra execution trace"),
        ("t.csv", b"Time (%),Total Time (ns),Instances\n", "a CSV table of Nsight Systems"),
        ("t.csv", b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n', "a CSV table of rocprof"),
        ("t.csv", b'"Domain","Function","Process_Id"\n', "a CSV table of rocprof"),
        ("t.csv", b"Device_id,Name,Type,Start Time(us)\n0,a", "a CSV table of an Ascend profile"),
        ("t.csv", b"Name,Size(KB),Allocation Time(us)\n", "a CSV table of an Ascend profile"),
        ("a.raw.json.gz", gzip.compress(b"[[12, 0, 512, 3], [13"), "a memory timeline"),
        ("stacks.txt", b"train.py(3): step;aten::mm 1200\nb;c 3\n", "a stack file"),
        ("a.pftrace", b"\x0a", "a Perfetto trace"),
        ("a.csv", b'"ID","Process ID","Process Name","Host Name"\n', "an Nsight Compute report"),
        ("a.json", '{"traceEvents": []}'.encode("utf-16"), "UTF-16 text"),
        ("a.json", '{"traceEvents": []}'.encode("utf-16-le"), "UTF-16 text"),
        ("a.json.gz", b"version https://git-lfs.github.com/spec/v1\noid x\n", "a Git LFS pointer"),
        ("a.json", b"<!DOCTYPE html><html>", "an HTML page"),
        ("train.py", b"import torch\n", "a Python script"),
    ],
)
def test_known_formats_have_a_hint(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    error = find_error(tmp_path / name)
    assert f"is {what}" in str(error)
    assert error.hint
    assert error.exit_code == RawFormatError.exit_code


def test_other_tables_with_names_are_not_called_profiles(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("Name,Age,City\nAda,36,London\n")
    assert "CSV table" not in str(find_error(tmp_path / "people.csv"))


def test_other_databases_are_named(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    database(other, "customers (name TEXT)")
    assert "customers" in str(find_error(other))
    with other.open("r+b") as file:
        file.truncate(4096)
    assert "cut off" in str(find_error(other))


def database(path: Path, *tables: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for table in tables:
            db.execute(f"CREATE TABLE {table}")


def test_named_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.pt.trace.json")
    assert "not a regular file" in str(find_error(tmp_path / "run.pt.trace.json"))
    assert find_recordings(tmp_path) == []


def test_damaged_rocpd_database_is_an_unreadable_recording(tmp_path: Path) -> None:
    path = MAKERS["rocm"](tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(UprofError) as caught:
        convert(path, tmp_path / "out.db")
    assert caught.value.exit_code == 6
