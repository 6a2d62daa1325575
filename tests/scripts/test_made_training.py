"""The recording for read benchmarks resembles a training."""

import importlib
import sys
from pathlib import Path

import pytest

from unified_prof.explain.api import open_reports

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.mark.slow
def test_training_has_phases_and_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    made_training = importlib.import_module("made_training")
    made_training.make(tmp_path / "msprof_1.db", 1500, kernels=5000)
    with open_reports(tmp_path / "msprof_1.db") as opened:
        (analysis,) = opened.analyses
        totals = analysis.summary.totals
        assert totals.iterations == 2
        assert totals.forward_ns is not None
        assert totals.backward_ns is not None
        assert totals.other_ns is not None
        assert totals.forward_ns + totals.backward_ns + totals.other_ns == totals.total_ns
        assert {"module", "line", "step", "idle"} <= set(analysis.summary.available)
        delay = analysis.launch_latency()
        assert delay is not None
        assert delay.count == 2 * made_training.STEP
        kernels = analysis.breakdown("kernel")
        assert sum(row.count for row in kernels.rows) == 2 * made_training.STEP
        assert len(kernels.rows) > 1500
