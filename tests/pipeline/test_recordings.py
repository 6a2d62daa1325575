from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unified_prof.backends.registry import Recording
from unified_prof.errors import CaptureError, OutputError, RawFormatError, UprofError
from unified_prof.pipeline import convert
from unified_prof.pipeline.distributed import rank_of
from unified_prof.pipeline.provenance import build_databases
from unified_prof.pipeline.sources import DecodeResult, by_kind

NATIVE = "msprof_20261120101500.db"


@pytest.fixture
def prof(tmp_path: Path) -> Iterator[Recording]:
    folder = tmp_path / "PROF_1"
    folder.mkdir()
    (folder / NATIVE).write_text("native")
    yield Recording("prof", folder, native=folder / NATIVE)
    assert [p.name for p in folder.iterdir()] == [NATIVE]  # one database, whatever happened


def builds(
    monkeypatch: pytest.MonkeyPatch,
    error: UprofError | None = None,
    undecodable: tuple[str, ...] = (),
) -> None:
    """Let our builder write under the very name that the vendor's database has, or fail."""

    def build_prof(path: Path, target: Path | None, **options: Any) -> convert.Conversion:
        if error:
            raise error
        assert target is None, "the source says where its report goes"
        built = path / NATIVE
        assert not built.exists()
        built.write_text(f"ours: {options['schema']}, {options['force']}, {options['facts']}")
        return convert.Conversion(path, built, "prof", DecodeResult(), {}, {}, {})

    monkeypatch.setattr(convert, "convert", build_prof)
    monkeypatch.setattr(by_kind("prof").__class__, "undecodable", lambda self, path: undecodable)


def databases(recordings: list[Recording], **options: str) -> tuple[tuple[Path, ...], list[str]]:
    rank = rank_of({})
    return build_databases(recordings, options, rank=rank, facts={"host": "here"}, force=False)


def test_our_database_takes_the_place_of_the_vendor_s(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch)
    assert databases([prof], schema="latest") == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "ours: latest, False, {'host': 'here'}"


def test_the_vendor_s_database_is_kept_when_asked_for(prof: Recording) -> None:
    assert databases([prof], exporter="native") == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "native"


def test_undecodable_recordings_fall_back_to_the_vendors_database(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, RawFormatError("PROF_1 is of chip 99"))
    paths, notes = databases([prof])
    assert paths == (prof.native,)
    assert notes == ["PROF_1 is of chip 99; the database of the vendor's exporter is kept"]
    assert (prof.path / NATIVE).read_text() == "native"


def test_a_kind_of_record_that_we_do_not_know_falls_back_too(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, undecodable=("dvpp data of device 0",))
    paths, notes = databases([prof])
    assert paths == (prof.native,)
    assert "cannot decode dvpp data of device 0" in notes[0]
    assert (prof.path / NATIVE).read_text() == "native"


def test_a_bad_recording_does_not_stop_the_others(
    prof: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, RawFormatError("damaged"))
    other = Recording("prof", tmp_path / "PROF_2")
    paths, notes = databases([other, prof])
    assert paths == (prof.native,)
    assert len(notes) == 2


@pytest.mark.parametrize("exporter", ["uprof", "native"])
def test_without_any_database_it_is_a_failure(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, RawFormatError("damaged"))
    with pytest.raises(CaptureError):
        databases([Recording("prof", tmp_path / "PROF_2")], exporter=exporter)


def test_a_full_disk_is_no_reason_to_fall_back(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, OutputError("no space left"))
    with pytest.raises(OutputError):
        databases([prof])
    assert (prof.path / NATIVE).read_text() == "native"


class Exporter:
    """Stands for the vendor's exporter, asked after the recording."""

    def __init__(self, prof: Path, fails: str | None = None) -> None:
        self.made, self.fails, self.asked = prof / NATIVE, fails, 0

    def __call__(self) -> Path:
        self.asked += 1
        if self.fails:
            raise CaptureError(self.fails)
        self.made.write_text("native")
        return self.made


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "PROF_3"
    folder.mkdir()
    return folder


def test_decoded_recordings_are_not_exported(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds(monkeypatch)
    exporter = Exporter(raw)
    assert databases([Recording("prof", raw, export=exporter)]) == ((raw / NATIVE,), [])
    assert exporter.asked == 0
    assert (raw / NATIVE).read_text().startswith("ours")


@pytest.mark.parametrize(
    ("error", "undecodable", "words"),
    [
        (None, ("dvpp data",), "uprof cannot decode dvpp data; the database of the vendor's"),
        (RawFormatError("damaged"), (), "damaged; the database of the vendor's exporter is kept"),
    ],
)
def test_undecodable_recordings_are_exported(
    error: UprofError | None,
    undecodable: tuple[str, ...],
    words: str,
    raw: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds(monkeypatch, error, undecodable)
    exporter = Exporter(raw)
    paths, (note,) = databases([Recording("prof", raw, export=exporter)])
    assert paths == (raw / NATIVE,)
    assert note.startswith(words)
    assert exporter.asked == 1
    assert (raw / NATIVE).read_text() == "native"


def test_if_the_export_fails_a_note_lists_the_missing_data(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds(monkeypatch, undecodable=("dvpp data",))
    exporter = Exporter(raw, fails="no python3")
    paths, notes = databases([Recording("prof", raw, export=exporter)])
    assert paths == (raw / NATIVE,)
    assert (raw / NATIVE).read_text().startswith("ours")
    assert notes == [
        "uprof cannot decode dvpp data, so the database does not contain them: no python3"
    ]
    assert exporter.asked == 1


def test_if_both_fail_the_error_has_both_reasons(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for undecodable in ((), ("dvpp data",)):
        builds(monkeypatch, RawFormatError("damaged"), undecodable)
        exporter = Exporter(raw, fails="no python3")
        with pytest.raises(CaptureError, match="damaged: no python3"):
            databases([Recording("prof", raw, export=exporter)])
        assert exporter.asked == 1


def test_the_vendor_s_is_made_where_it_is_asked_for(raw: Path) -> None:
    exporter = Exporter(raw)
    recording = Recording("prof", raw, export=exporter)
    assert databases([recording], exporter="native") == ((raw / NATIVE,), [])
    exporter.fails = "no python3"
    with pytest.raises(
        CaptureError, match=r"wrote no database for .*: no python3 \(use `uprof convert`"
    ):
        databases([recording], exporter="native")
