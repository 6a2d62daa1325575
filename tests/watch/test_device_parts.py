"""Marks on a device: their cost is limited, and unmarked steps have no times of passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.tracking import watch
from unified_prof.tracking.passes import BACKWARD, FORWARD, OTHER


@pytest.mark.parametrize("step_ns", [1_000_000, 10_000_000, 1_000_000_000])
def test_marks_take_a_limited_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    now = spent = 0

    def use(cost_ns: int, result: float = 0.0) -> float:
        nonlocal now, spent
        now, spent = now + cost_ns, spent + cost_ns
        return result

    event = SimpleNamespace(
        record=lambda: use(20_000),
        query=lambda: True,
        elapsed_time=lambda _other: use(10_000, step_ns / 2e6),
    )
    device: Any = SimpleNamespace(kind="cuda", is_touched=True, is_capturing=False)
    monkeypatch.setattr(watch, "perf_counter_ns", lambda: now)
    parts = watch.DeviceParts(device)
    monkeypatch.setattr(parts, "_new", lambda: event)
    marked = []
    for step in range(1000):
        parts.begin()
        for part in (FORWARD, BACKWARD, OTHER):
            parts.switch(part)
            now += step_ns // 3
        if marks := parts.end():
            marked.append(step)
            found = parts.read(marks)
            assert found is not None
            assert found[FORWARD] == found[BACKWARD] == step_ns // 2
    assert spent <= 0.0031 * now + 100_000
    assert len(marked) == 1000 if step_ns > 100_000_000 else 3 < len(marked) < 1000
