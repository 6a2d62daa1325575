from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unified_prof.backends.base import Recording
from unified_prof.errors import CaptureError, OutputError, RawFormatError, UprofError
from unified_prof.pipeline import recordings
from unified_prof.pipeline.recordings import build_databases

NATIVE = "msprof_20261120101500.db"


@pytest.fixture
def prof(tmp_path: Path) -> Iterator[Recording]:
    folder = tmp_path / "PROF_1"
    folder.mkdir()
    (folder / NATIVE).write_text("native")
    yield Recording("prof", folder, native=folder / NATIVE)
    assert [p.name for p in folder.iterdir()] == [NATIVE]  # one database, whatever happened


def builder(monkeypatch: pytest.MonkeyPatch, error: UprofError | None = None) -> None:
    """Let the builder write under the very name that the vendor's database has, or fail."""

    def build(path: Path, out: Path | None, *, schema: str, force: bool) -> Path:
        assert out is None
        assert not force
        if error:
            raise error
        built = path / NATIVE
        assert not built.exists()
        built.write_text(f"ours at {schema}")
        return built

    monkeypatch.setattr(recordings, "_builder", lambda kind: build)


def test_our_database_takes_the_place_of_the_vendor_s(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch)
    assert build_databases([prof], {"schema": "latest"}, force=False) == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "ours at latest"


def test_the_vendor_s_database_is_kept_when_asked_for(prof: Recording) -> None:
    assert build_databases([prof], {"exporter": "native"}, force=False) == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "native"


def test_what_we_cannot_decode_falls_back_to_the_vendor_s_and_says_so(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch, RawFormatError("PROF_1 is of chip 99"))
    paths, notes = build_databases([prof], {}, force=False)
    assert paths == (prof.native,)
    assert notes == ["PROF_1 is of chip 99; the database of the vendor's exporter is kept"]
    assert (prof.path / NATIVE).read_text() == "native"


def test_a_bad_recording_does_not_stop_the_others(
    prof: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch, RawFormatError("damaged"))
    other = Recording("prof", tmp_path / "PROF_2")
    paths, notes = build_databases([other, prof], {}, force=False)
    assert paths == (prof.native,)
    assert len(notes) == 2


@pytest.mark.parametrize("exporter", ["uprof", "native"])
def test_without_any_database_it_is_a_failure(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch, RawFormatError("damaged"))
    with pytest.raises(CaptureError):
        build_databases(
            [Recording("prof", tmp_path / "PROF_2")], {"exporter": exporter}, force=False
        )


def test_a_full_disk_is_no_reason_to_fall_back(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder(monkeypatch, OutputError("no space left"))
    with pytest.raises(OutputError):
        build_databases([prof], {}, force=False)
    assert (prof.path / NATIVE).read_text() == "native"
