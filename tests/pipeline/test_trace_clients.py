"""Readers of other projects on imported traces; MSPROF_ANALYZE is the path of msprof-analyze."""

import os
from pathlib import Path

import pytest

from tests.processes import python
from unified_prof.pipeline.convert import convert_all
from unified_prof.pipeline.discovery import ASCEND_PT

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("prefix", ["nccl", "timeline_analysis", "amd", "critical_path__alexnet"])
def test_msprof_analyze_accepts_a_converted_run(prefix: str, shared: Path, tmp_path: Path) -> None:
    reader = os.environ.get("MSPROF_ANALYZE")
    if not reader:
        pytest.skip("needs msprof-analyze")
    (trace,) = (shared / "samples" / "kineto").glob(f"{prefix}*")
    (outcome,) = convert_all([trace], tmp_path / "out", layout=ASCEND_PT)
    assert outcome.error is None
    accept = shared / "tools" / "accept.py"
    options = ("--no-insight", "--ranks", "1", "--msprof-analyze", reader)
    result = python(accept, tmp_path / "out", *options, env={"ACCEPT_TMP": str(tmp_path)})
    assert result.returncode == 0, result.stdout
