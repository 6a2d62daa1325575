"""Readers of other projects on imported traces; MSPROF_ANALYZE is the path of msprof-analyze."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unified_prof.pipeline.convert import convert_all
from unified_prof.pipeline.discovery import ASCEND_PT

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("prefix", ["nccl", "timeline_analysis", "amd", "critical_path__alexnet"])
def test_msprof_analyze_accepts_a_converted_trace(
    prefix: str, shared: Path, tmp_path: Path
) -> None:
    reader = os.environ.get("MSPROF_ANALYZE")
    if not reader:
        pytest.skip("needs msprof-analyze")
    (trace,) = (shared / "samples" / "kineto").glob(f"{prefix}*")
    (outcome,) = convert_all([trace], tmp_path / "out", layout=ASCEND_PT)
    assert outcome.error is None
    accept = shared / "tools" / "accept.py"
    result = subprocess.run(
        [
            *(sys.executable, str(accept), str(tmp_path / "out"), "--no-insight"),
            *("--ranks", "1", "--msprof-analyze", reader),
        ],
        env=os.environ | {"ACCEPT_TMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
