"""Recordings with the databases that the vendor's exporter makes of them: ours are the same."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from unified_prof.pipeline.convert import convert

# A few that have something of everything run always, all of them in the full test run.
QUICK = ("01_clocks", "04_hccl", "16_everything")
ALL = (
    *("01_basic", "01_clocks", "01_early", "01_x86", "02_ops_text", "03_idle_lost"),
    *("03_multi_device", "04_hccl", "05_level0", "05_mix_ffts", "06_flip_slices"),
    *("06_id_encodings", "06_id_expand", "07_copies_marks_misc", "08_model_capture"),
    *("09_sys_v1", "10_sys_v2", "11_host_usage", "12_pmu_ArithmeticUtilization"),
    *("12_pmu_Custom", "12_pmu_L2Cache", "12_pmu_Memory", "12_pmu_MemoryAccess"),
    *("12_pmu_MemoryL0", "12_pmu_MemoryUB", "12_pmu_PipeUtilizationOld"),
    *("12_pmu_ResourceConflictRatio", "13_sample_pmu", "13_sample_pmu_memory"),
    *("14_cut_front", "14_no_end", "14_no_hash", "15_chip1", "15_chip15", "15_chip4"),
    *("15_chip7", "16_everything"),
)


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


def test_every_listed_case_is_there(shared: Path) -> None:
    # Cases of chips and raw kinds that are not decoded yet lie beside those that must be equal.
    assert set(ALL) <= {path.name for path in (shared / "goldens" / "prof").iterdir()}


@pytest.mark.parametrize("case", QUICK)
def test_our_database_equals_the_exporters(case: str, shared: Path, tmp_path: Path) -> None:
    check(case, shared, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(set(ALL) - set(QUICK)))
def test_our_database_equals_the_exporters_everywhere(
    case: str, shared: Path, tmp_path: Path
) -> None:
    check(case, shared, tmp_path)
