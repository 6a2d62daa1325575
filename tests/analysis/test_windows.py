"""Figures do not depend on how many tasks are looked at together."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import Device
from unified_prof.arrays import packed
from unified_prof.compare import runs
from unified_prof.compare.device_diff import of_devices
from unified_prof.explain.api import open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.recording import calls
from unified_prof.recording import tasks as read_tasks
from unified_prof.report import figures
from unified_prof.report.formats import ReportRequest

WINDOWS = (64, 200)


def _recording(path: Path, *, devices: int, steps: bool, in_order: bool, seed: int) -> Path:
    """Write 700 tasks that overlap, of kernels, copies, waits and parts of collectives."""
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.integers(0, 40, 700))
    if not in_order:
        start = rng.permutation(start)
    with Device(path) as db:
        for at in start.tolist():
            place: dict[str, Any] = {
                "device": int(rng.integers(devices)),
                "stream": int(rng.integers(3)),
            }
            end = at + int(rng.integers(0, 90 if rng.random() < 0.98 else 9000))
            what = rng.integers(10)
            if what < 6:
                number = int(rng.integers(12))
                db.task(at, end, kernel=(f"kernel_{number}", f"Type{number % 5}"), **place)
            elif what < 8:
                db.task(at, end, "MEMCPY_ASYNC", copy=64, **place)
            else:
                db.task(at, end, "EVENT_WAIT" if what == 8 else "PROFILING_ENABLE", **place)
        for number in range(20):
            at = int(rng.integers(30_000))
            db.collective(at, at + 300, f"c{number}", "hcom_allReduce_", group=f"g{number % 2}")
        if steps:
            begins = np.arange(4) * 7000 + db.T0
            db.writer.write(
                "STEP_TIME", {"id": np.arange(4), "startNs": begins, "endNs": begins + 6000}
            )
    return path


def _figures(path: Path) -> list[Any]:
    with open_reports(path) as opened:
        document = figures.figures_document(
            figures.gather_figures(opened, ReportRequest(), everything=True)
        )
        (analysis,) = opened.analyses
        drawn = analysis.timeline(limit=120)
        assert drawn is not None
        lanes = [[np.asarray(one).tolist() for one in astuple(lane)] for lane in drawn.lanes]
        pairs = analysis.kernels_of_operations()
        about = (drawn.start_ns, drawn.merged_below_ns, drawn.whole_ns, drawn.labels)
    run = runs.load([path])
    operations = [
        (place, *row)
        for place, row in zip(run.operations.places, run.operations.total_ns.tolist(), strict=True)
    ]
    compared = of_devices([path], [path])
    assert compared is not None
    leaves = compared.base.leaves
    # Which number a text has depends on when it was met, and so does the order of rows.
    of_device = sorted(
        zip(*(one.tolist() for one in (leaves.calls, leaves.runs, leaves.total_ns)), strict=True)
    )
    return [document, lanes, about, pairs, repr(operations), of_device]


@pytest.mark.parametrize(
    ("devices", "steps", "in_order"),
    [
        (2, True, False),
        pytest.param(1, False, True, marks=pytest.mark.slow),
        pytest.param(1, True, False, marks=pytest.mark.slow),
        pytest.param(2, False, False, marks=pytest.mark.slow),
    ],
)
def test_windows_of_any_size_tell_the_same(
    devices: int, steps: bool, in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _recording(
        tmp_path / "msprof_1.db", devices=devices, steps=steps, in_order=in_order, seed=devices
    )
    monkeypatch.setattr(runs, "_MAX_CALLS", 1000)
    whole = _figures(path)
    monkeypatch.setattr(packed, "_SHIFT", 6)
    monkeypatch.setattr(packed, "BLOCK", 64)
    monkeypatch.setattr(read_tasks, "_KEPT_ROWS", 10)
    for window in WINDOWS:
        for module in (read_tasks, calls):
            monkeypatch.setattr(module, "WINDOW", window)
        for mine, theirs in zip(_figures(path), whole, strict=True):
            assert mine == theirs


def test_long_gaps_are_known_once_all_were_asked_for(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as db:
        begin = 0
        for pause in (10, 2000, 30, 7000, 50):
            db.task(begin, begin + 100, kernel=("a", "b"))
            begin += 100 + pause
        db.task(begin, begin + 100, kernel=("a", "b"))
    with open_reports(tmp_path / "msprof_1.db") as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        idle = analysis.recording.idle_time
        (name,) = analysis.recording.devices

        def long() -> list[int]:
            parts = idle.long_parts(name, 0.1)
            lengths = np.concatenate([one.end_ns - one.start_ns for one in parts])
            return [one for one in lengths.tolist() if one > 0.1 * (begin + 100)]

        assert long() == [2000, 7000]
        assert sum(len(one.start_ns) for one in idle.parts(name)) == 5
        assert long() == [2000, 7000]
        assert sum(len(one.start_ns) for one in idle.long_parts(name, 0.1)) == 2
        assert sum(len(one.start_ns) for one in idle.long_parts(name, 0.001)) == 5
