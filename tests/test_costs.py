"""The report of the CPU time of tests."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import costs
from tests.conftest import reduce_examples

CASES = {"a.py::test_x[1]": 0.9, "a.py::test_x[2]": 0.3, "a.py::test_y": 0.4, "b.py::test_z": 1.5}


def test_expensive_tests_are_listed_by_cost() -> None:
    assert costs.report_lines(CASES, 5.0) == [
        "3 s, within the budget of 5 s",
        "  1.50 s  b.py::test_z",
        "  1.20 s  a.py::test_x (2 cases)",
        "2 tests with a case over 0.5 s: mark them slow, or some cases",
    ]


def test_exceeded_budget_is_reported() -> None:
    cases = {"a.py::test_x": 0.4, "a.py::test_y": 0.3}
    assert costs.report_lines(cases, 0.6) == ["1 s, over the budget of 1 s"]


def test_cost_is_cpu_time_and_not_waiting_time(request: pytest.FixtureRequest) -> None:
    before = costs.processor_s()
    time.sleep(0.05)
    assert costs.processor_s() - before < 0.05
    while costs.processor_s() - before < 0.05:
        pass
    assert request.node.stash[costs.start_s] <= before


def test_property_tests_try_fewer_examples_in_the_quick_suite() -> None:
    tried: list[int] = []

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def timed_test(number: int) -> None:
        tried.append(number)

    item: Any = SimpleNamespace(obj=timed_test)
    reduce_examples(item)
    reduce_examples(item)
    timed_test()
    assert 1 < len(tried) <= 10
