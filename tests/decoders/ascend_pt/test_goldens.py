"""Databases equal those that torch_npu's analysis writes for the same directories."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from unified_prof.pipeline.convert import convert

GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens" / "ascend_pt"
CASES = sorted(path.name for path in GOLDENS.iterdir()) if GOLDENS.is_dir() else []

# The contents of these tables depend on the machine that runs the analysis.
ELSEWHERE = ("--ignore", "META_DATA", "--ignore", "HOST_INFO")


def difference(canon: Path, expected: Path, database: Path, *options: str) -> str:
    result = subprocess.run(
        [sys.executable, str(canon), "--compare", *options, str(expected), str(database)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if not line.startswith("same")]
    return "" if result.returncode == 0 else "\n".join(lines) + result.stderr


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize("case", CASES)
def test_databases_equal_those_of_torch_npu(case: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "goldens" / "ascend_pt" / case
    canon = shared / "goldens" / "canon.py"
    with tarfile.open(source / "raw.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folders = sorted(tmp_path.glob("*_ascend_pt"))
    assert folders
    for folder in folders:
        database = convert(folder, schema="latest").database
        expected = source / "expected" / folder.name
        assert not difference(canon, expected / f"{database.name}.txt.xz", database, *ELSEWHERE)
        analysis = database.with_name("analysis.db")
        analysed = expected / f"{analysis.name}.txt.xz"
        assert analysis.exists() == analysed.exists()
        if analysed.exists():
            assert not difference(canon, analysed, analysis, "--rel", "1e-9")
