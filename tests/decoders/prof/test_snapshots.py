"""Databases of the frozen recordings equal their stored text."""

from pathlib import Path

import pytest

from tests.decoders.prof import snapshots


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(snapshots.RECIPES))
def test_database_of_a_frozen_recording_equals_its_text(name: str, tmp_path: Path) -> None:
    assert (snapshots.FOLDER / f"{name}.tar.xz").stat().st_size < 8_000
    recording = snapshots.unpack(name, tmp_path)
    expected = (snapshots.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert snapshots.database_text(recording) == expected
