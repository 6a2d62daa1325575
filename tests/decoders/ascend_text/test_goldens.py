"""Tables of text exports equal those of the recordings that they were exported from."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.decoders.ascend_pt.test_goldens import GOLDENS, difference
from tests.decoders.prof.test_goldens import REVISION
from unified_prof.pipeline.convert import convert

CASES = sorted(path.parent.name for path in GOLDENS.glob("*/text.tar.xz"))
SAMPLE = "samples/ascend-text/level1.tar.xz"

# The text lacks or rounds: chip, session times, core counters; for collective tasks the RDMA kind
# and the master; some ns of the times of CANN's own allocations.
NOT_IN_THE_TEXT = (
    *("META_DATA", "HOST_INFO", "NPU_INFO", "SESSION_TIME_INFO", "TASK_PMU_INFO", "NPU_OP_MEM"),
    *("COMMUNICATION_TASK_INFO.isMaster", "COMMUNICATION_TASK_INFO.rdmaType"),
)
ROUNDED = {"01_queue": ("MEMORY_RECORD", "OP_MEMORY")}


@pytest.mark.parametrize("case", CASES)
def test_export_tables_equal_those_of_the_database(case: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "goldens" / "ascend_pt" / case
    with tarfile.open(source / "text.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    ignored = [*NOT_IN_THE_TEXT, *ROUNDED.get(case, ())]
    folders = sorted(tmp_path.glob("*_ascend_pt"))
    assert folders
    for folder in folders:
        conversion = convert(folder, tmp_path / f"{folder.name}.db", schema=REVISION)
        assert not conversion.anomalies
        (expected,) = (source / "expected" / folder.name).glob("ascend_pytorch_profiler*")
        canon = shared / "goldens" / "canon.py"
        assert not difference(canon, expected, conversion.database, ignored, rel=1e-9)


@pytest.mark.slow
def test_real_export_keeps_every_slice(shared: Path, tmp_path: Path) -> None:
    with tarfile.open(shared / SAMPLE) as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in sorted(tmp_path.glob("*/rank*_ascend_pt")):
        conversion = convert(folder, tmp_path / f"{folder.name}.db", schema="latest")
        assert conversion.rows["PYTORCH_API"] == 860 + 2 * 159 + 1282
        assert conversion.rows["OVERLAP_ANALYSIS"] == 382
        assert conversion.rows["COMMUNICATION_OP"] == 4
        assert conversion.rows["COMMUNICATION_TASK_INFO"] == 296
        assert conversion.rows["COMPUTE_TASK_INFO"] == 185 + 2
        assert set(conversion.anomalies) == {"undecoded_data", "unknown_module"}
