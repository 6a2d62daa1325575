"""The report of what tests cost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import costs
from tests.conftest import with_fewer_examples

CASES = {"a.py::test_x[1]": 0.9, "a.py::test_x[2]": 0.3, "a.py::test_y": 0.7, "b.py::test_z": 1.5}


def test_what_is_dear_is_named_the_dearest_first() -> None:
    assert costs.told(CASES, 5.0) == [
        "3 s, within the budget of 5 s",
        "  1.50 s  b.py::test_z",
        "  1.20 s  a.py::test_x (2 cases)",
        "2 tests with a case over 0.8 s: mark them slow, or some cases",
    ]


def test_a_budget_that_is_exceeded_is_said() -> None:
    assert costs.told({"a.py::test_y": 0.7}, 0.6) == ["1 s, over the budget of 1 s"]


def test_a_test_costs_what_it_computes_and_not_what_it_waits(
    request: pytest.FixtureRequest,
) -> None:
    before = costs.processor_s()
    time.sleep(0.05)
    assert costs.processor_s() - before < 0.05
    while costs.processor_s() - before < 0.05:
        pass
    assert request.node.stash[costs.begun] <= before


def test_properties_are_tried_with_fewer_examples_in_the_quick_suite() -> None:
    tried: list[int] = []

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def whole(number: int) -> None:
        tried.append(number)

    item: Any = SimpleNamespace(obj=whole)
    with_fewer_examples(item)
    with_fewer_examples(item)
    whole()
    assert 1 < len(tried) <= 10
