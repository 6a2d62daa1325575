"""The recipes of docs/tracking.md, run unchanged with the real packages.

Run where the packages are installed: `python -m pytest -m clients tests/integrations`.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.builders import memory_report, run_time_report
from tests.conftest import ROOT
from tests.integrations.recipes import recipe


def test_recipes_are_valid_python() -> None:
    for heading in ("W&B", "MLflow", "accelerate"):
        compile(recipe(heading), heading, "exec")


def run(folder: Path, heading: str, **variables: str) -> str:
    """Run a recipe in a directory with the reports of a run."""
    reports = folder / "reports"
    reports.mkdir()
    run_time_report(reports / "run_time.sqlite", iterations=[(1, 7.0, 2.5, 4.0, 100_000, 1)])
    memory_report(reports / "memory.sqlite")
    (folder / "recipe.py").write_text(f"RUN = 'reports'\n{recipe(heading)}", encoding="utf-8")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, "recipe.py"],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"needs {package}")


@pytest.mark.clients
@needs("wandb")
def test_wandb_recipe_logs_figures_table_and_page(tmp_path: Path) -> None:
    run(tmp_path, "W&B", WANDB_MODE="offline", WANDB_SILENT="true")
    kept = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(kept) == 1
    (table,) = kept[0].rglob("operations*.table.json")
    document = json.loads(table.read_text())
    name = document["columns"].index("name")
    assert "linear" in [row[name] for row in document["data"]]
    (page,) = kept[0].rglob("report*.html")
    assert "linear" in page.read_text(encoding="utf-8")


@pytest.mark.clients
@needs("mlflow")
def test_mlflow_recipe_logs_figures_table_and_page(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    run(tmp_path, "MLflow", MLFLOW_TRACKING_URI=store, MLFLOW_ALLOW_FILE_STORE="true")
    (metric,) = tmp_path.joinpath("store").rglob("iteration_ns")
    assert float(metric.read_text().split()[1]) == 7e6
    (table,) = tmp_path.joinpath("store").rglob("operations.json")
    assert "linear" in table.read_text()
    (page,) = tmp_path.joinpath("store").rglob("report.html")
    assert "linear" in page.read_text(encoding="utf-8")


@pytest.mark.clients
@needs("accelerate")
def test_accelerate_recipe_measures_steps(tmp_path: Path) -> None:
    assert run(tmp_path, "accelerate", CUDA_VISIBLE_DEVICES="").split()[0] == "5"
