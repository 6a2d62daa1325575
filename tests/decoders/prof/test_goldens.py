"""Databases of recordings, compared with those of the vendor's exporter."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from unified_prof.decoders.prof import recording
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.pipeline.convert import convert

GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens"
# Recordings and the tables in which the exporter is wrong: docs/validation.md has the evidence.
EXPORTER_IS_WRONG = {
    "50_B1_kfc_two": ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "OVERLAP_ANALYSIS"),
    "50_E12_950wrap": ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "OVERLAP_ANALYSIS", "TASK"),
    "50_G7_dup_api": ("COMMUNICATION_OP",),
}
CASES = sorted(
    str(path.relative_to(GOLDENS))
    for folder in ("prof", "prof-new")
    for path in (GOLDENS / folder).glob("*")
)

# Cases that quick test runs include.
QUICK = ("prof/01_clocks", "prof/04_hccl", "prof/16_everything")


def compare_with_golden(case: str, shared: Path, folder: Path) -> None:
    source = shared / "goldens" / case
    with tarfile.open(next(source.glob("PROF_*.tar.xz"))) as archive:
        archive.extractall(folder, filter="data")
    database = convert(next(folder.glob("PROF_*")), schema="latest").database
    result = subprocess.run(
        [
            sys.executable,
            str(shared / "goldens" / "canon.py"),
            "--compare",
            *(f"--ignore={table}" for table in EXPORTER_IS_WRONG.get(source.name, ())),
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
def test_database_equals_the_golden(case: str, shared: Path, tmp_path: Path) -> None:
    compare_with_golden(case, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in CASES if name not in QUICK])
def test_database_equals_every_golden(case: str, shared: Path, tmp_path: Path) -> None:
    compare_with_golden(case, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_database_does_not_depend_on_the_window_size(
    case: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "Workspace", lambda: Workspace(window_rows=37, run_bytes=1500))
    compare_with_golden(case, shared, tmp_path)
