"""`uprof report --stats`: distribution of the durations of operations and kernels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import memory_report, run_time_report
from unified_prof.explain.api import open_reports
from unified_prof.recording.calls import _by_key
from unified_prof.recording.model import Totals
from unified_prof.report import report_formats
from unified_prof.report.figures import peak_parts
from unified_prof.report.formats import ReportRequest


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
