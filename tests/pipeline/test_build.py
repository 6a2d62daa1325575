from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.prof_generator import Recipe, generate
from unified_prof.decoders.prof import recording as decoding
from unified_prof.errors import OutputError, RawFormatError, UsageError
from unified_prof.pipeline import build
from unified_prof.store.reader import Report


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(operators=6, collectives=1, copies=1, pmu="Memory")
    return generate(tmp_path_factory.mktemp("whole"), recipe).path


@pytest.fixture
def recording(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "with space" / original.name)


def test_the_database_lies_where_the_vendors_exporter_puts_it(recording: Path) -> None:
    database = build.build_prof(recording)
    assert database.parent == recording
    assert len(database.stem.removeprefix("msprof_")) == 14
    with Report(database) as report:
        assert report.revision == "1.2.0_20251226"
        assert "TASK" in report.tables
        facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    assert facts["recording"] == recording.name


def test_what_was_built_is_told(recording: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    built = build.build_database(
        recording, tmp_path / "x.db", schema="latest", progress=stages.append
    )
    with Report(built.database) as report:
        for table, rows in built.rows.items():
            assert report.rows(f"SELECT count(*) FROM {table}") == [(rows,)]
    assert set(stages) <= set(built.seconds)
    assert built.anomalies == {}


def test_nothing_is_overwritten_without_force(recording: Path, tmp_path: Path) -> None:
    first = build.build_prof(recording)
    before = first.read_bytes()
    with pytest.raises(OutputError, match=first.name):
        build.build_prof(recording)
    assert first.read_bytes() == before
    newer = build.build_prof(recording, force=True)
    assert list(recording.glob("msprof_*.db")) == [newer]
    file = tmp_path / "x.db"
    file.write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"x\.db"):
        build.build_prof(recording, file)
    assert file.read_bytes() == b"mine"


def test_a_failure_leaves_nothing_behind(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoding, "decode_device", interrupt)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        build.build_prof(recording, tmp_path / "out" / "x.db")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unknown_schema_is_refused(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"9\.9"):
        build.build_prof(recording, tmp_path / "x.db", schema="9.9")


def test_one_bad_recording_does_not_stop_the_others(original: Path, tmp_path: Path) -> None:
    for name in ("PROF_1", "PROF_2", "PROF_3"):
        shutil.copytree(original, tmp_path / name)
    shutil.rmtree(tmp_path / "PROF_2" / "host")
    shutil.rmtree(tmp_path / "PROF_2" / "device_0")
    outcomes = list(build.build_all([tmp_path, tmp_path / "nowhere"], tmp_path / "out"))
    built = {outcome.recording.name: outcome.built for outcome in outcomes}
    assert built["PROF_2"] is None
    assert built["nowhere"] is None
    assert len(list((tmp_path / "out").glob("msprof_*.db"))) == 2
    assert build.worst_exit_code(outcomes) == RawFormatError.exit_code


def test_output_is_a_file_only_for_one_recording(original: Path, tmp_path: Path) -> None:
    (one,) = build.build_all([original], tmp_path / "one.db")
    assert one.built is not None
    assert one.built.database == tmp_path / "one.db"
    (in_folder,) = build.build_all([original], tmp_path / "folder")
    assert in_folder.built is not None
    assert in_folder.built.database.parent == tmp_path / "folder"
    twins = [shutil.copytree(original, tmp_path / name) for name in ("PROF_1", "PROF_2")]
    assert all(outcome.built for outcome in build.build_all(twins, tmp_path / "several.db"))
    assert len(list((tmp_path / "several.db").iterdir())) == 2


@pytest.mark.slow
def test_recordings_can_be_built_at_a_time(original: Path, tmp_path: Path) -> None:
    twins = [shutil.copytree(original, tmp_path / name) for name in ("PROF_1", "PROF_2")]
    missing = tmp_path / "PROF_3" / "host"
    missing.mkdir(parents=True)
    outcomes = list(build.build_all([tmp_path], jobs=2))
    assert [outcome.built is not None for outcome in outcomes] == [True, True, False]
    assert outcomes[2].error is not None
    assert outcomes[2].error.hint
    contents = [
        sqlite3.connect(next(twin.glob("*.db"))).execute("SELECT * FROM TASK").fetchall()
        for twin in twins
    ]
    assert contents[0] == contents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a device that is always full")
def test_a_place_that_cannot_be_written(recording: Path) -> None:
    with pytest.raises(OutputError):
        build.build_prof(recording, Path("/proc/x.db"))


def test_what_would_be_missing_can_be_asked_for(recording: Path) -> None:
    assert build.undecodable(recording) == ()
    (recording / "device_0" / "data" / "ub.data.0.slice_0").write_bytes(b"x")
    assert "UB" in build.undecodable(recording)[0]
