"""Figures of reports in Python equal those of the commands."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import unified_prof
from tests.analysis.builders import training_step
from tests.cli.test_compare import write_run
from tests.cli.test_report import uprof
from unified_prof.errors import UsageError


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    return path


def test_document_equals_that_of_the_command(timeline: Path) -> None:
    (answer,) = unified_prof.figures(timeline)
    (expected,) = json.loads(uprof("report", timeline, "--format", "json").stdout)["reports"]
    found = json.loads(json.dumps(answer.document))
    assert found["breakdowns"].keys() == expected["breakdowns"].keys()
    assert found["totals"] == expected["totals"]
    rows = [row.name for row in answer.breakdown("kernel").rows]
    assert rows == [row["name"] for row in expected["breakdowns"]["kernel"]["rows"]]


def test_optional_breakdowns_are_computed_only_if_requested(timeline: Path) -> None:
    (answer,) = unified_prof.figures(timeline)
    with pytest.raises(UsageError, match="breakdown 'path' was not requested"):
        answer.breakdown("path")
    (answer,) = unified_prof.figures(timeline, by="path")
    assert answer.breakdown("path").rows
    with pytest.raises(UsageError, match="unknown breakdown 'speed'"):
        unified_prof.figures(timeline, by=["speed"])


def test_gate_accepts_one_report_or_several_per_side(tmp_path: Path) -> None:
    base = [write_run(tmp_path / f"base{n}", seed=n) for n in range(3)]
    slow = [write_run(tmp_path / f"slow{n}", slow_line=1.5, seed=9 + n) for n in range(3)]
    assert unified_prof.gate(base, slow).outcome == "regression"
    assert unified_prof.gate(base, base).outcome == "pass"
    assert unified_prof.gate(base[0], slow[0]).outcome == "inconclusive"
    assert unified_prof.gate(base[0], slow[0], noise=0.01).outcome == "regression"
    assert unified_prof.gate(base[0], base[1], metrics=["peak-memory"]).outcome == "pass"


def test_breakdown_is_converted_to_polars(timeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = unified_prof.figures(timeline)
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=list))
    rows = answer.to_polars("kernel")
    assert [row["name"] for row in rows] == [row.name for row in answer.breakdown("kernel").rows]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UsageError, match="polars is not installed"):
        answer.to_polars()


def test_breakdown_is_converted_to_pandas_if_it_is_installed(timeline: Path) -> None:
    (answer,) = unified_prof.figures(timeline)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(UsageError, match="pandas is not installed"):
            answer.to_pandas()
        return
    table = answer.to_pandas("kernel")
    assert list(table["name"]) == [row.name for row in answer.breakdown("kernel").rows]
    assert table["total_ns"].sum() == answer.breakdown("kernel").total_ns
