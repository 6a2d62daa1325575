"""`uprof report --stats`: distribution of the durations of operations and kernels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from unified_prof.cli.app import app
from unified_prof.explain.api import open_reports
from unified_prof.recording.calls import _by_key
from unified_prof.recording.model import Totals
from unified_prof.report import report_formats
from unified_prof.report.figures import peak_parts
from unified_prof.report.formats import ReportRequest

TIMES = [7, 100, 30, 30, 55, 2000, 81]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "msprof_20260101000000.db"
    with Device(path) as device:
        device.call(0, 40, "aten::mm", launches=1)
        device.call(50, 90, "aten::mm", launches=2)
        device.call(100, 140, "aten::add", launches=3)
        for number, time in enumerate(TIMES):
            start = 10_000 * (number + 1)
            device.task(start, start + time, connection=min(number, 3), kernel=("mm", "MatMul"))
        device.task(200_000, 200_060, connection=9, kernel=("alone", "Add"))
    return path


def rows(path: Path, by: str, **wishes: Any) -> dict[str, dict[str, Any]]:
    with open_reports(path) as opened:
        document = json.loads(report_formats.produce_json(opened, ReportRequest(by=by, **wishes)))
    return {row["name"]: row for row in document["reports"][0]["breakdowns"][by]["rows"]}


def test_kernels_have_minimum_percentiles_maximum_and_deviation(path: Path) -> None:
    found = rows(path, "kernel", statistics=True)
    row = found["mm"]
    assert (row["min_ns"], row["median_ns"], row["p99_ns"], row["max_ns"]) == (7, 55, 1886, 2000)
    assert row["stddev_ns"] == pytest.approx(np.std(TIMES, ddof=1))
    # A single duration has no deviation: it is unknown, not zero.
    assert (found["alone"]["min_ns"], found["alone"]["stddev_ns"]) == (60, None)


def test_percentiles_are_interpolated(path: Path) -> None:
    row = rows(path, "operation", statistics=True)["aten::mm"]
    assert (row["min_ns"], row["median_ns"], row["p99_ns"], row["max_ns"]) == (30, 65, 99, 100)


def test_a_narrow_terminal_shows_the_statistics_instead_of_parts(tmp_path: Path) -> None:
    run_time_report(tmp_path / "run_time.sqlite")
    memory_report(tmp_path / "memory.sqlite")
    with open_reports(tmp_path) as opened:
        request = ReportRequest(statistics=True, width=80)
        text = report_formats.produce_text(opened, request)
    (heading,) = (line for line in text.splitlines() if line.startswith("operation  "))
    assert {"calls", "time", "min", "median", "p99"} <= {*heading.split()}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12)), max_size=300))
def test_percentiles_equal_those_of_numpy(found: list[tuple[int, int]]) -> None:
    key, times = (np.array([one[place] for one in found], np.int64) for place in (0, 1))
    for group, row in _by_key(key, times).items():
        median, late = np.percentile(times[key == group], (50, 99))
        assert row["median_ns"] == pytest.approx(median, abs=1)
        assert row["p99_ns"] == pytest.approx(late, abs=1)


def test_operations_have_launches_and_durations_per_call(path: Path) -> None:
    found = rows(path, "operation", statistics=True)
    assert found["aten::mm"]["launches"] == 2
    assert (found["aten::mm"]["min_ns"], found["aten::mm"]["max_ns"]) == (30, 100)
    assert found["aten::add"]["launches"] == 4
    assert found["aten::add"]["max_ns"] == 30 + 55 + 2000 + 81


def test_statistics_are_shown_only_if_requested(path: Path) -> None:
    assert "stddev_ns" not in rows(path, "kernel")["mm"]
    with open_reports(path) as opened:
        assert "stddev" not in report_formats.produce_text(opened, ReportRequest(by="kernel"))
        assert "stddev" in report_formats.produce_text(
            opened, ReportRequest(by="kernel", statistics=True)
        )
        assert "p99_ns" in report_formats.produce_csv(
            opened, ReportRequest(by="kernel", statistics=True)
        )


def test_tracked_operations_have_statistics(tmp_path: Path) -> None:
    found = rows(run_time_report(tmp_path / "run_time.sqlite"), "operation", statistics=True)
    assert (found["linear"]["min_ns"], found["linear"]["max_ns"]) == (1_500_000, 4_500_000)
    assert "launches" not in found["linear"]


def test_statistics_of_a_breakdown_without_durations_are_refused(tmp_path: Path) -> None:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    result = CliRunner().invoke(app, ["report", str(path), "--by", "module", "--stats"])
    assert result.exit_code != 0


def test_activations_that_do_not_exist_at_once_are_not_in_the_peak() -> None:
    parts = peak_parts(Totals(peak_bytes=100, activation_bytes=90, most_activation_bytes=30))
    assert parts["activations"] == 30
    assert sum(parts.values()) == 100


@given(st.integers(0, 2**40), st.tuples(*[st.none() | st.integers(0, 2**40)] * 4))
def test_parts_of_the_peak_memory_add_up_to_it(peak: int, sizes: tuple[int | None, ...]) -> None:
    names = ("weight_bytes", "optimizer_state_bytes", "gradient_bytes", "activation_bytes")
    known: dict[str, Any] = dict(zip(names, sizes, strict=True))
    parts = peak_parts(Totals(peak_bytes=peak, **known))
    if any(sizes):
        assert sum(parts.values()) == peak
        assert min(parts.values()) >= 0
        assert ("weights, inputs, temporaries and other tensors" in parts) == (sizes[0] is None)
    else:
        assert parts == {}
