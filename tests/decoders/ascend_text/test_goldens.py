"""Exports of the recordings whose databases are known: the tables that they hold are the same."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.decoders.ascend_pt.test_goldens import GOLDENS, difference
from unified_prof.pipeline.convert import convert

CASES = sorted(path.parent.name for path in GOLDENS.glob("*/text.tar.xz"))
SAMPLE = "samples/ascend-text/level1.tar.xz"

# Chip, span and counters of cores are not in the text, or rounded; of collectives' tasks the kind
# of RDMA and the master; times of CANN's own allocations lack some ns.
NOT_IN_THE_TEXT = (
    *("META_DATA", "HOST_INFO", "NPU_INFO", "SESSION_TIME_INFO", "TASK_PMU_INFO", "NPU_OP_MEM"),
    *("COMMUNICATION_TASK_INFO.isMaster", "COMMUNICATION_TASK_INFO.rdmaType"),
)
ROUNDED = {"01_queue": ("MEMORY_RECORD", "OP_MEMORY")}


@pytest.mark.parametrize("case", CASES)
def test_tables_of_the_export_equal_the_databases(case: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "goldens" / "ascend_pt" / case
    with tarfile.open(source / "text.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    ignored = [*NOT_IN_THE_TEXT, *ROUNDED.get(case, ())]
    options = [text for name in ignored for text in ("--ignore", name)]
    folders = sorted(tmp_path.glob("*_ascend_pt"))
    assert folders
    for folder in folders:
        made = convert(folder, tmp_path / f"{folder.name}.db", schema="latest")
        assert not made.anomalies
        (expected,) = (source / "expected" / folder.name).glob("ascend_pytorch_profiler*")
        canon = shared / "goldens" / "canon.py"
        assert not difference(canon, expected, made.database, *options, "--rel", "1e-9")


def test_no_slice_of_a_real_export_is_lost(shared: Path, tmp_path: Path) -> None:
    with tarfile.open(shared / SAMPLE) as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in sorted(tmp_path.glob("*/rank*_ascend_pt")):
        made = convert(folder, tmp_path / f"{folder.name}.db", schema="latest")
        assert made.rows["PYTORCH_API"] == 860 + 2 * 159 + 1282
        assert made.rows["OVERLAP_ANALYSIS"] == 382
        assert made.rows["COMMUNICATION_OP"] == 4
        assert made.rows["COMMUNICATION_TASK_INFO"] == 296
        assert made.rows["COMPUTE_TASK_INFO"] == 185 + 2
        assert set(made.anomalies) == {"undecoded_data", "unknown_module"}
