"""Marks on a device: their cost is limited, and unmarked steps have no times of passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.tracking import watch
from unified_prof.tracking.passes import BACKWARD, FORWARD, OTHER


def marked_steps(
    monkeypatch: pytest.MonkeyPatch, step_ns: int, mark_ns: int
) -> tuple[list[int], float]:
    """Return which of 1,000 steps are marked, and the share of the time that marks take."""
    now = spent = 0

    def use(cost_ns: int, result: float = 0.0) -> float:
        nonlocal now, spent
        now, spent = now + cost_ns, spent + cost_ns
        return result

    event = SimpleNamespace(
        record=lambda: use(mark_ns),
        query=lambda: True,
        elapsed_time=lambda _other: use(mark_ns // 2, step_ns / 2e6),
    )
    device: Any = SimpleNamespace(kind="cuda", is_touched=True, is_capturing=False)
    monkeypatch.setattr(watch, "perf_counter_ns", lambda: now)
    parts = watch.DeviceParts(device)
    monkeypatch.setattr(parts, "_new", lambda: event)
    marked = []
    for step in range(1000):
        parts.begin(step)
        for part in (FORWARD, BACKWARD, OTHER):
            parts.switch(part)
            now += step_ns // 3
        if marks := parts.end():
            marked.append(step)
            found = parts.read(marks)
            assert found is not None
            assert found[FORWARD] == found[BACKWARD] == step_ns // 2
    return marked, spent / now


@pytest.mark.parametrize("step_ns", [1_000_000, 10_000_000, 1_000_000_000])
def test_marks_take_a_limited_share_of_time(monkeypatch: pytest.MonkeyPatch, step_ns: int) -> None:
    marked, share = marked_steps(monkeypatch, step_ns, 20_000)
    assert share < 0.0032
    assert len(marked) == 1000 if step_ns > 100_000_000 else 3 < len(marked) < 1000


def test_ranks_of_different_speed_mark_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = (
        marked_steps(monkeypatch, 10_000_000, mark_ns)[0][2:] for mark_ns in (20_000, 60_000)
    )
    assert 30 < len(slow) < len(fast)
    assert set(slow) < set(fast)
