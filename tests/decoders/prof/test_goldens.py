"""Recordings with the databases that the vendor's exporter makes of them: ours are the same."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from unified_prof.decoders.prof import recording
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.pipeline.convert import convert

GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens" / "prof"
CASES = sorted(path.name for path in GOLDENS.iterdir()) if GOLDENS.is_dir() else []

# A few that have something of everything run always, all of them in the full test run.
QUICK = ("01_clocks", "04_hccl", "16_everything")


def check(case: str, shared: Path, folder: Path) -> None:
    source = shared / "goldens" / "prof" / case
    with tarfile.open(next(source.glob("PROF_*.tar.xz"))) as archive:
        archive.extractall(folder, filter="data")
    database = convert(next(folder.glob("PROF_*")), schema="latest").database
    result = subprocess.run(
        [
            sys.executable,
            str(shared / "goldens" / "canon.py"),
            "--compare",
            str(source / "expected.txt.xz"),
            str(database),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    different = [line for line in result.stdout.splitlines() if not line.startswith("same")]
    assert result.returncode == 0, "\n".join(different) + result.stderr


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("case", QUICK)
def test_our_database_equals_the_exporters(case: str, shared: Path, tmp_path: Path) -> None:
    check(case, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in CASES if name not in QUICK])
def test_our_database_equals_the_exporters_everywhere(
    case: str, shared: Path, tmp_path: Path
) -> None:
    check(case, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_our_database_equals_the_exporters_in_windows_of_any_size(
    case: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "Workspace", lambda: Workspace(window_rows=37, run_bytes=1500))
    check(case, shared, tmp_path)
