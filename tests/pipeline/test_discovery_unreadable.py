"""Files of a directory that are named like recordings but cannot be read."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.test_sources import kineto
from unified_prof.errors import RawFormatError
from unified_prof.pipeline import discovery
from unified_prof.pipeline.convert import convert_all


def test_unreadable_ranks_of_a_directory_are_reported(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    kineto(ranks).rename(ranks / "rank0.json")
    (ranks / "rank1.json.gz").touch()
    (ranks / "rank2.json").write_text("garbage")
    (ranks / "rank3.json.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")
    (ranks / "notes.json").write_text('{"batch": 8}')
    outcomes = convert_all([ranks], tmp_path / "out")
    failed = {o.recording.name: o.error for o in outcomes if o.error is not None}
    assert set(failed) == {"rank1.json.gz", "rank2.json", "rank3.json.gz"}
    assert {type(error) for error in failed.values()} == {RawFormatError}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank0.db"]


def test_other_files_and_finished_reports_are_ignored(tmp_path: Path) -> None:
    kineto(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "readme.txt").write_text("trace")
    found = list(discovery.find([tmp_path], lambda _: None, lambda _: None))
    assert [type(item) for item in found] == [discovery.FoundRecording]
