"""Conversion of one recording and of directories of recordings."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_report import uprof
from tests.decoders.kineto.builders import operation, write
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records
from unified_prof.decoders.prof import recording as decoding
from unified_prof.errors import OutputError, RawFormatError, UsageError
from unified_prof.pipeline import convert, sources
from unified_prof.pipeline.sources.base import Stages
from unified_prof.sqlite.reader import Report


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(operators=6, collectives=1, copies=1, pmu="Memory")
    return generate(tmp_path_factory.mktemp("whole"), recipe).path


@pytest.fixture
def recording(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "with space" / original.name)


def test_database_is_written_where_the_vendors_exporter_writes_it(recording: Path) -> None:
    database = convert.convert(recording).database
    assert database.parent == recording
    assert len(database.stem.removeprefix("msprof_")) == 14
    with Report(database) as report:
        assert report.revision == "1.2.0_20251226"
        assert "TASK" in report.tables
        facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    assert facts["recording"] == recording.name


def test_conversion_lists_rows_and_stages(recording: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    built = convert.convert(recording, tmp_path / "x.db", schema="latest", progress=stages.append)
    with Report(built.database) as report:
        for table, rows in built.rows.items():
            assert report.rows(f"SELECT count(*) FROM {table}") == [(rows,)]
    assert set(stages) <= set(built.seconds)
    assert built.anomalies == {}


def test_existing_report_is_not_overwritten_without_force(recording: Path, tmp_path: Path) -> None:
    first = convert.convert(recording).database
    before = first.read_bytes()
    with pytest.raises(OutputError, match=first.name):
        convert.convert(recording)
    assert first.read_bytes() == before
    newer = convert.convert(recording, force=True).database
    assert list(recording.glob("msprof_*.db")) == [newer]
    file = tmp_path / "x.db"
    file.write_bytes(b"existing")
    with pytest.raises(OutputError, match=r"x\.db"):
        convert.convert(recording, file)
    assert file.read_bytes() == b"existing"


def test_interrupted_conversion_leaves_no_file(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoding, "decode_device", interrupt)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        convert.convert(recording, tmp_path / "out" / "x.db")
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_schema_is_refused(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"9\.9"):
        convert.convert(recording, tmp_path / "x.db", schema="9.9")


def test_damaged_recording_does_not_stop_the_others(original: Path, tmp_path: Path) -> None:
    for name in ("PROF_1", "PROF_2", "PROF_3"):
        shutil.copytree(original, tmp_path / name)
    shutil.rmtree(tmp_path / "PROF_2" / "host")
    shutil.rmtree(tmp_path / "PROF_2" / "device_0")
    outcomes = list(convert.convert_all([tmp_path, tmp_path / "nowhere"], tmp_path / "out"))
    converted = {outcome.recording.name: outcome.conversion for outcome in outcomes}
    assert converted["PROF_2"] is None
    assert converted["nowhere"] is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["PROF_1", "PROF_3"]
    assert convert.worst_exit_code(outcomes) == RawFormatError.exit_code


def test_exit_code_is_that_of_the_first_failure() -> None:
    late = convert.Outcome(7, Path("b"), error=OutputError(""))
    early = convert.Outcome(2, Path("a"), error=RawFormatError(""))
    assert convert.worst_exit_code([late, early]) == RawFormatError.exit_code


def test_output_is_a_file_only_for_one_recording(original: Path, tmp_path: Path) -> None:
    (one,) = convert.convert_all([original], tmp_path / "one.db")
    assert one.conversion is not None
    assert one.conversion.database == tmp_path / "one.db"
    (in_folder,) = convert.convert_all([original], tmp_path / "folder")
    assert in_folder.conversion is not None
    assert in_folder.conversion.database.parent == tmp_path / "folder" / original.name
    twins = [shutil.copytree(original, tmp_path / name) for name in ("PROF_1", "PROF_2")]
    with pytest.raises(UsageError, match="several recordings"):
        list(convert.convert_all(twins, tmp_path / "several.db"))
    assert not (tmp_path / "several.db").exists()


@pytest.mark.parametrize("output", ["new.db", "new", "new/deep"])
def test_failed_conversion_leaves_no_directory(tmp_path: Path, output: str) -> None:
    (tmp_path / "PROF_1").mkdir()
    (outcome,) = convert.convert_all([tmp_path / "PROF_1"], tmp_path / output)
    assert outcome.error is not None
    assert [path.name for path in tmp_path.iterdir()] == ["PROF_1"]


def test_converted_recordings_are_skipped(original: Path, tmp_path: Path) -> None:
    for rank in ("rank0", "rank1"):
        shutil.copytree(original, tmp_path / "in" / rank / original.name)
    first = list(convert.convert_all([tmp_path / "in"], tmp_path / "out"))
    places = {outcome.conversion.database for outcome in first if outcome.conversion}
    lost, kept = sorted(places)
    written = kept.read_bytes(), kept.stat().st_mtime_ns
    lost.unlink()
    again = list(convert.convert_all([tmp_path / "in"], tmp_path / "out"))
    assert {outcome.existing for outcome in again} == {None, kept}
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == written
    names = sorted(
        str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("msprof_*.db")
    )
    assert len(names) == 2
    assert all(
        name.startswith(f"{rank}_{original.name}/")
        for rank, name in zip(("rank0", "rank1"), names, strict=True)
    )


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("reason", ["schema", "newer data", "another recording", "damaged"])
def test_outdated_report_is_an_error_at_first(original: Path, tmp_path: Path, reason: str) -> None:
    twins = [shutil.copytree(original, tmp_path / "in" / name) for name in ("PROF_1", "PROF_2")]
    list(convert.convert_all(twins, tmp_path / "out"))
    (report,) = (tmp_path / "out" / "PROF_1").glob("msprof_*.db")
    schema = "documented"
    if reason == "schema":
        schema = "latest"
    elif reason == "newer data":
        raw = next(path for path in (twins[0] / "host").rglob("*") if path.is_file())
        os.utime(raw, ns=(report.stat().st_mtime_ns + 1,) * 2)
    elif reason == "another recording":
        (other,) = (tmp_path / "out" / "PROF_2").glob("msprof_*.db")
        shutil.copy(other, report)
    else:
        os.truncate(report, report.stat().st_size // 2)
    before = report.read_bytes()
    outcomes = convert.convert_all(twins, tmp_path / "out", schema=schema)
    (refused, *_) = sorted(outcomes, key=lambda outcome: outcome.number)
    assert isinstance(refused.error, OutputError)
    assert "--force" in str(refused.error.hint)
    assert report.read_bytes() == before
    forced = list(convert.convert_all(twins, tmp_path / "out", schema=schema, force=True))
    assert all(outcome.conversion for outcome in forced)
    assert len(list((tmp_path / "out").rglob("msprof_*.db"))) == 2, "replaced, not added"


@pytest.mark.slow
def test_different_recordings_are_converted_together(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "in" / "node0" / original.name)
    (tmp_path / "in" / "node1").mkdir()
    write(tmp_path / "in" / "node1" / "run.pt.trace.json", [operation("aten::mm", 1, 2)])
    outcomes = list(convert.convert_all([tmp_path / "in"], tmp_path / "out", jobs=2))
    assert {o.conversion.kind for o in outcomes if o.conversion} == {"prof", "kineto"}
    assert (tmp_path / "out" / "run.db").is_file()


def test_columns_missing_in_an_older_schema_are_no_warning(recording: Path, tmp_path: Path) -> None:
    done = uprof("convert", recording, "-o", tmp_path / "x.db", "--schema", "pre_20240328")
    assert done.returncode == 0
    assert "not_in_schema" not in done.stdout + done.stderr


def test_columns_missing_in_an_older_schema_are_counted(recording: Path, tmp_path: Path) -> None:
    conversion = convert.convert(recording, tmp_path / "x.db", schema="pre_20240328")
    with Report(conversion.database) as report:
        stored = report.rows("SELECT name, count, coalesce(detail, '') FROM UPROF_ANOMALIES")
    assert {"table_not_in_schema", "column_not_in_schema"} & {name for name, _, _ in stored}
    assert sorted((name, *entry) for name, entry in conversion.anomalies.items()) == sorted(stored)


@pytest.mark.slow
def test_recordings_are_converted_in_parallel(original: Path, tmp_path: Path) -> None:
    twins = [shutil.copytree(original, tmp_path / name) for name in ("PROF_1", "PROF_2")]
    (tmp_path / "PROF_3" / "host").mkdir(parents=True)
    outcomes = sorted(convert.convert_all([tmp_path], jobs=2), key=lambda outcome: outcome.number)
    assert [outcome.conversion is not None for outcome in outcomes] == [True, True, False]
    assert outcomes[2].error is not None
    assert outcomes[2].error.hint, "errors are transferred completely from other processes"
    contents = []
    for twin in twins:
        with Report(next(twin.glob("msprof_*.db"))) as report:
            contents.append(report.rows("SELECT * FROM TASK"))
    assert contents[0] == contents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that is always full")
def test_unwritable_output_is_an_error(recording: Path) -> None:
    with pytest.raises(OutputError):
        convert.convert(recording, Path("/proc/x.db"))


def test_undecodable_data_is_listed(recording: Path) -> None:
    source = sources.by_kind("prof")
    assert source.undecodable(recording) == ()
    collective = records("aicpu", 1, type=6).tobytes()
    (recording / "device_0" / "data" / "aicpu.data.0.slice_0").write_bytes(collective)
    assert "COMMUNICATION" in source.undecodable(recording)[0]


def test_cpu_time_counts_for_the_innermost_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0, 31.0])
    monkeypatch.setattr(time, "process_time", lambda: next(moments))
    stages = Stages(_since=time.process_time())
    with stages.stage("read"):
        with stages.stage("decode"):
            pass
        stages.next_stage("write")
    stages.end()
    assert stages.seconds == {"other": 1 + 6, "read": 2 + 4, "decode": 3.0, "write": 5.0}
