"""The databases of the small recordings kept in the repository stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders.prof import snapshots


@pytest.mark.parametrize("name", sorted(snapshots.RECIPES))
def test_database_of_a_kept_recording(name: str, tmp_path: Path) -> None:
    recording = snapshots.unpack(name, tmp_path)
    expected = (snapshots.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert snapshots.text_of(recording) == expected


@pytest.mark.parametrize("name", sorted(snapshots.RECIPES))
def test_kept_recordings_are_small(name: str) -> None:
    assert (snapshots.FOLDER / f"{name}.tar.xz").stat().st_size < 8_000
