"""Databases of NPU recordings: uprof's decoder or the vendor's exporter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unified_prof.base.run_spec import Recording
from unified_prof.errors import CaptureError, OutputError, RawFormatError, UprofError
from unified_prof.pipeline import convert
from unified_prof.pipeline.outputs import rank_of
from unified_prof.pipeline.provenance import build_databases
from unified_prof.pipeline.sources import DecodeResult, by_kind

NATIVE = "msprof_20261120101500.db"


@pytest.fixture
def prof(tmp_path: Path) -> Iterator[Recording]:
    folder = tmp_path / "PROF_1"
    folder.mkdir()
    (folder / NATIVE).write_text("native")
    yield Recording("prof", folder, native=folder / NATIVE)
    assert [p.name for p in folder.iterdir()] == [NATIVE], "one database in every case"


def mock_decoder(
    monkeypatch: pytest.MonkeyPatch,
    error: UprofError | None = None,
    undecodable: tuple[str, ...] = (),
) -> None:
    """Make the decoder write under the name of the vendor's database, or fail."""

    def build_prof(path: Path, target: Path | None, **options: Any) -> convert.Conversion:
        if error:
            raise error
        assert target is None, "the source chooses the name of its report"
        built = path / NATIVE
        assert not built.exists()
        built.write_text(f"ours: {options['schema']}, {options['force']}, {options['facts']}")
        return convert.Conversion(path, built, "prof", DecodeResult(), {}, {}, {})

    monkeypatch.setattr(convert, "convert", build_prof)
    monkeypatch.setattr(by_kind("prof").__class__, "undecodable", lambda self, path: undecodable)


def databases(recordings: list[Recording], **options: str) -> tuple[tuple[Path, ...], list[str]]:
    rank = rank_of({})
    return build_databases(recordings, options, rank=rank, facts={"host": "here"}, force=False)


def test_decoded_database_replaces_the_vendors(
    prof: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_decoder(monkeypatch)
    assert databases([prof], schema="latest") == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "ours: latest, False, {'host': 'here'}"


def test_vendors_database_is_kept_on_request(prof: Recording) -> None:
    assert databases([prof], exporter="native") == ((prof.native,), [])
    assert (prof.path / NATIVE).read_text() == "native"


@pytest.mark.parametrize(
    ("error", "undecodable", "reason"),
    [
        (RawFormatError("PROF_1 is of chip 99"), (), "PROF_1 is of chip 99"),
        (None, ("dvpp data of device 0",), "uprof cannot decode dvpp data of device 0"),
    ],
)
def test_undecodable_recordings_fall_back_to_the_vendors_database(
    error: UprofError | None,
    undecodable: tuple[str, ...],
    reason: str,
    prof: Recording,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mock_decoder(monkeypatch, error, undecodable)
    paths, notes = databases([prof])
    assert paths == (prof.native,)
    assert notes == [f"{reason}; the database of the vendor's exporter is kept"]
    assert (prof.path / NATIVE).read_text() == "native"


def test_damaged_recording_does_not_stop_the_others(
    prof: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_decoder(monkeypatch, RawFormatError("damaged"))
    other = Recording("prof", tmp_path / "PROF_2")
    paths, notes = databases([other, prof])
    assert paths == (prof.native,)
    assert len(notes) == 2


@pytest.mark.parametrize("exporter", ["uprof", "native"])
def test_recording_without_any_database_is_an_error(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_decoder(monkeypatch, RawFormatError("damaged"))
    with pytest.raises(CaptureError):
        databases([Recording("prof", tmp_path / "PROF_2")], exporter=exporter)


def test_full_disk_does_not_fall_back(prof: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    mock_decoder(monkeypatch, OutputError("no space left"))
    with pytest.raises(OutputError):
        databases([prof])
    assert (prof.path / NATIVE).read_text() == "native"


class FakeExporter:
    """Replaces the vendor's exporter and counts its calls."""

    def __init__(self, prof: Path, fails: str | None = None) -> None:
        self.target, self.fails, self.calls = prof / NATIVE, fails, 0

    def __call__(self) -> Path:
        self.calls += 1
        if self.fails:
            raise CaptureError(self.fails)
        self.target.write_text("native")
        return self.target


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "PROF_3"
    folder.mkdir()
    return folder


def test_decoded_recordings_are_not_exported(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mock_decoder(monkeypatch)
    exporter = FakeExporter(raw)
    assert databases([Recording("prof", raw, export=exporter)]) == ((raw / NATIVE,), [])
    assert exporter.calls == 0
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
    mock_decoder(monkeypatch, error, undecodable)
    exporter = FakeExporter(raw)
    paths, (note,) = databases([Recording("prof", raw, export=exporter)])
    assert paths == (raw / NATIVE,)
    assert note.startswith(words)
    assert exporter.calls == 1
    assert (raw / NATIVE).read_text() == "native"


def test_failed_export_adds_a_note_on_the_data(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mock_decoder(monkeypatch, undecodable=("dvpp data",))
    exporter = FakeExporter(raw, fails="no python3")
    paths, notes = databases([Recording("prof", raw, export=exporter)])
    assert paths == (raw / NATIVE,)
    assert (raw / NATIVE).read_text().startswith("ours")
    assert notes == [
        "uprof cannot decode dvpp data, so the database does not contain them: no python3"
    ]
    assert exporter.calls == 1


def test_error_has_both_reasons_if_all_fails(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for undecodable in ((), ("dvpp data",)):
        mock_decoder(monkeypatch, RawFormatError("damaged"), undecodable)
        exporter = FakeExporter(raw, fails="no python3")
        with pytest.raises(CaptureError, match="damaged: no python3"):
            databases([Recording("prof", raw, export=exporter)])
        assert exporter.calls == 1


def test_vendors_exporter_runs_on_request(raw: Path) -> None:
    exporter = FakeExporter(raw)
    recording = Recording("prof", raw, export=exporter)
    assert databases([recording], exporter="native") == ((raw / NATIVE,), [])
    exporter.fails = "no python3"
    with pytest.raises(
        CaptureError, match=r"wrote no database for .*: no python3 \(use `uprof convert`"
    ):
        databases([recording], exporter="native")
