"""Pages of reports for tests in a browser."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from tests.report.on_page import SCRIPT, write_page
from unified_prof.explain.api import open_analyses
from unified_prof.report.figures import collect_figures, figures_document


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Skyline reports of a run and an msprof database."""
    folder = tmp_path_factory.mktemp("page")
    frames = [("model.py", 12), ("train.py", 3)]
    run_time_report(
        folder / "run_time.sqlite",
        [
            ("linear", 1.5, 3.0, frames),
            (SCRIPT, 2.25, None, frames),
            *((f"op_{n}", 0.01 * n, None, [("model.py", 20 + n)]) for n in range(150)),
        ],
        modules=[("encoder.layers.0", "Linear"), ("encoder", "Encoder"), *[None] * 150],
        anomalies=[("unmatched_iterations", 2, "number 3")],
    )
    memory_report(folder / "memory.sqlite")
    training_step(folder / "msprof_20260101000000.db")
    return folder


@pytest.fixture(scope="session")
def page(folder: Path) -> Path:
    return write_page(folder)


@pytest.fixture(scope="session")
def document(folder: Path) -> Any:
    with open_analyses(folder) as analyses:
        found = figures_document([collect_figures(analysis) for analysis in analyses])
    return json.loads(json.dumps(found))["reports"]


@pytest.fixture
def launch_page(tmp_path: Path) -> Path:
    """Page with two launches by an operation and one by another thread."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 1000, "aten::mm")
        device.runtime(100, 200, "cudaLaunchKernel", 7)
        device.runtime(300, 400, "cudaLaunchKernel", 8)
        device.call(0, 1500, "aten::add", thread=2)
        device.runtime(1200, 1300, "hipLaunchKernel", 9, thread=2)
        device.task(500, 700, connection=7, kernel=("first", "mm"))
        device.task(800, 900, connection=8, kernel=("second", "mm"))
        device.task(1600, 2000, connection=9, kernel=("third", "add"), stream=5)
    return write_page(tmp_path / "msprof_1.db")
