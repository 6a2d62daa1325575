"""Changes of steps: what was planted is found in time, and healthy noise is not reported."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from unified_prof.compare.step_changes import Change, StepChanges
from unified_prof.sqlite.watch_file import StepRow

MIB = 1 << 20
Values = NDArray[np.floating[Any]]
Random = np.random.Generator


def rows(
    lengths_ms: Iterable[float], memory_bytes: Iterable[float] | None = None, **parts_ns: int
) -> list[StepRow]:
    """Steps of which a tenth is data loading, 30 % forward, 40 % backward, 10 % optimizer."""
    lengths = [int(one * 1e6) for one in lengths_ms]
    sizes = [None] * len(lengths) if memory_bytes is None else [int(one) for one in memory_bytes]
    return [
        StepRow(
            *(step, step, length, length // 10, length * 3 // 10, length * 2 // 5, length // 10),
            *(0, 0, None, size, None, None, None),
        )._replace(**parts_ns)
        for step, (length, size) in enumerate(zip(lengths, sizes, strict=True))
    ]


def found(steps: Sequence[StepRow], chunk: int = 10) -> list[Change]:
    """Add the rows in chunks as they arrive during a run."""
    changes = StepChanges()
    return [
        change
        for first in range(0, len(steps), chunk)
        for change in changes.add(steps[first : first + chunk])
    ]


def correlated(rng: Random, count: int, deviation: float, memory: float) -> Values:
    """First-order autoregressive noise with a standard deviation of `deviation`."""
    values = rng.normal(0, deviation, count)
    shocks = values * np.sqrt(1 - memory**2)
    for place in range(1, count):
        values[place] = memory * values[place - 1] + shocks[place]
    return values


def regimes(rng: Random, count: int, period: int, other: int, factor: float) -> Values:
    """Steps of which the last `other` of each `period` take `factor` times as long."""
    place = np.arange(count) % period
    return np.exp(rng.normal(0, 0.03, count)) * np.where(place >= period - other, factor, 1.0)


# Lengths of healthy runs over their typical length.
LENGTHS: dict[str, Callable[[Random, int], Values]] = {
    "white noise of 5 %": lambda rng, n: np.exp(rng.normal(0, 0.05, n)),
    "white noise of 15 %": lambda rng, n: np.exp(rng.normal(0, 0.15, n)),
    "autocorrelated": lambda rng, n: np.exp(correlated(rng, n, 0.05, 0.9)),
    "heavy-tailed": lambda rng, n: 1 + 0.04 * np.abs(rng.standard_t(2, n)),
    "infinite variance": lambda rng, n: 1 + 0.02 * rng.pareto(1.5, n),
    "a long evaluation step": lambda rng, n: regimes(rng, n, 200, 1, 12.0),
    "20 slow steps of 200": lambda rng, n: regimes(rng, n, 200, 20, 2.5),
    "40 slow steps of 200": lambda rng, n: regimes(rng, n, 200, 40, 1.6),
    "40 fast steps of 200": lambda rng, n: regimes(rng, n, 200, 40, 0.4),
    "halves of 200 steps": lambda rng, n: regimes(rng, n, 200, 100, 1.5),
    "checkpoints": lambda rng, n: regimes(rng, n, 500, 1, 30.0),
    "sequence lengths": lambda rng, n: rng.choice([0.6, 0.8, 1, 1.4, 2.0], n),
    "sorted sequence lengths": lambda rng, n: np.repeat(
        rng.choice([0.6, 0.8, 1, 1.4, 2.0], n // 8 + 1), 8
    )[:n],
    "pauses": lambda rng, n: (
        np.exp(rng.normal(0, 0.04, n)) + (rng.random(n) < 0.02) * rng.exponential(0.8, n)
    ),
    "warm-up of 300 steps": lambda rng, n: (
        np.exp(rng.normal(0, 0.04, n)) * (1 + 0.8 * np.exp(-np.arange(n) / 300))
    ),
    "compilation": lambda rng, n: (
        np.exp(rng.normal(0, 0.04, n)) * np.where(np.arange(n) < 15, 40, 1)
    ),
}
# Memory of healthy runs in MiB.
SIZES: dict[str, Callable[[Random, int], Values]] = {
    "constant": lambda rng, n: np.full(n, 3000.0),
    "white noise": lambda rng, n: 3000 + rng.normal(0, 20, n),
    "autocorrelated": lambda rng, n: 3000 + correlated(rng, n, 30, 0.995),
    "warm-up": lambda rng, n: 3000 - 1500 * np.exp(-np.arange(n) / 500) + rng.normal(0, 2, n),
    "sawtooth": lambda rng, n: 3000 + np.arange(n) % 300 * 5.0,
    "evaluation": lambda rng, n: 3000 + np.where(np.arange(n) % 200 >= 180, 1000.0, 0.0),
    "larger shapes": lambda rng, n: np.maximum.accumulate(3000 * (1 + 0.3 * rng.beta(2, 5, n))),
    "plateaus": lambda rng, n: 3000 + np.minimum(np.arange(n) // 700, 5) * 200.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("model", LENGTHS)
def test_healthy_lengths_are_no_drift(model: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng((seed, 1))
        assert found(rows(50 * LENGTHS[model](rng, 10_000)), chunk=100) == [], seed


def slow_steps(steps: Sequence[StepRow]) -> list[int]:
    """Return the steps that are reported as slow if rows are added every 500 ms, as in a run."""
    changes, waiting, reported = StepChanges(), list[StepRow](), list[int]()
    for row in steps:
        if row.length_ns > changes.slow_limit_ns and changes.is_unusual(row.step, row.length_ns):
            reported.append(row.step)
        waiting.append(row)
        if sum(one.length_ns for one in waiting) > 500e6:
            changes.add(waiting)
            waiting.clear()
    return reported


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("model", LENGTHS)
def test_slow_steps_that_recur_are_not_reported_again(model: str) -> None:
    lengths = 10 * LENGTHS[model](np.random.default_rng(1), 10_000)
    assert len(slow_steps(rows(lengths))) <= 10
    lengths[7003:7008] += 100
    assert {*range(7003, 7008)} & {*slow_steps(rows(lengths))}


def test_the_first_slow_steps_and_those_after_a_longer_time_are_reported() -> None:
    lengths = np.full(9_000, 10.0)
    lengths[200:4000:200] = 40
    lengths[[5000, 8000]] = 40
    lengths[4500] = 100
    assert slow_steps(rows(lengths)) == [200, 400, 4500, 8000]


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
def test_healthy_memory_does_not_grow(model: str) -> None:
    for seed in range(20):
        sizes = SIZES[model](np.random.default_rng((seed, 2)), 10_000) * MIB
        assert found(rows(np.full(10_000, 50.0), sizes), chunk=100) == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("model", ["white noise of 5 %", "heavy-tailed"])
@pytest.mark.parametrize("begin", [240, 1000])
def test_a_drift_of_10_percent_is_found_within_300_steps(model: str, begin: int) -> None:
    for seed in range(10):
        steps = np.arange(begin + 900)
        noise = LENGTHS[model](np.random.default_rng((seed, 3)), len(steps))
        lengths = 50 * noise * (1 + 0.1 * np.clip((steps - begin) / 500, 0, 1))
        first, *others = found(rows(lengths))
        assert begin < first.step <= begin + 800
        assert not others
    assert first.kind == "drift"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["white noise of 5 %", "heavy-tailed"])
@pytest.mark.parametrize("begin", [240, 2005])
def test_a_jump_of_20_percent_is_found_within_100_steps(model: str, begin: int) -> None:
    for seed in range(10):
        noise = LENGTHS[model](np.random.default_rng((seed, 4)), begin + 1500)
        lengths = 50 * noise * np.where(np.arange(begin + 1500) >= begin, 1.2, 1)
        (change,) = found(rows(lengths))
        assert begin < change.step <= begin + 100


def test_drift_names_its_begin_its_size_and_the_part() -> None:
    steps = rows([51.0] * 3000)
    steps[2000:] = [
        row._replace(length_ns=57_120_000, data_ns=row.data_ns + 6_120_000) for row in steps[2000:]
    ]
    (change,) = found(steps)
    assert change.text == (
        "steps take 12.0 % longer since about step 2,000: typically 57.1 ms, before 51.0 ms; "
        "data loading takes 6.12 ms more"
    )


def test_the_number_of_rows_per_call_does_not_matter() -> None:
    steps = rows(np.repeat([50.0, 60.0, 75.0], 700), np.arange(2100) * MIB + 3e9)
    changes = found(steps, chunk=1)
    assert sorted(change.kind for change in changes) == ["drift", "drift", "memory_growth"]
    assert changes == found(steps, chunk=33) == found(steps, chunk=len(steps))


def test_faster_steps_and_lengths_reported_before_are_no_drift() -> None:
    changes = found(rows(np.repeat([50.0, 40.0, 50.0, 40.0, 50.0], 1000)))
    assert [change.kind for change in changes] == ["drift"]
    assert 2000 < changes[0].step <= 2100


def test_rows_with_an_event_are_ignored() -> None:
    lengths = np.where(np.arange(5000) % 4 == 3, 200.0, 50.0)
    steps = [row._replace(event=0 if row.length_ns > 1e8 else None) for row in rows(lengths)]
    assert found(steps) == []
    changes = StepChanges()
    changes.add(steps)
    assert changes.slow_limit_ns == 100_000_000


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("data_ns", "data loading"),
        ("forward_ns", "forward"),
        ("backward_ns", "backward"),
        ("optimizer_ns", "optimizer"),
        ("wait_ns", "host wait"),
        ("gc_ns", "garbage collection"),
        ("", "other code"),
    ],
)
def test_a_slow_step_names_the_part_that_grew(column: str, part: str) -> None:
    changes = StepChanges()
    steps = rows([50.0] * 100)
    changes.add(steps[:30])
    assert changes.slow_limit_ns == sys.maxsize
    changes.add(steps[30:])
    assert changes.slow_limit_ns == 100_000_000
    slow = steps[-1]._replace(step=812, length_ns=400_000_000)
    if column:
        slow = slow._replace(**{column: getattr(slow, column) + 350_000_000})
    assert changes.slow(slow) == Change(
        "slow_step",
        812,
        "step 812 took 400 ms, 8.0 times the median of 50.0 ms: "
        f"{part} took 350 ms more than usual",
    )


def test_a_device_part_is_named_before_the_wait_for_it() -> None:
    changes = StepChanges()
    steps = rows([50.0] * 100)
    changes.add(steps)
    slow = steps[-1]._replace(
        length_ns=400_000_000, backward_ns=360_000_000, wait_ns=350_000_000, optimizer_ns=None
    )
    assert changes.slow(slow).text.endswith("backward took 340 ms more than usual")


def test_lengths_that_recur_in_more_than_5_percent_of_steps_are_not_slow() -> None:
    changes = StepChanges()
    changes.add(rows(np.where(np.arange(200) % 10 == 0, 150.0, 50.0)))
    assert changes.slow_limit_ns == 165_000_000


@pytest.mark.parametrize(("leak", "within"), [(1.2 * MIB, 800), (100_000, 1500), (20_000, 8000)])
def test_growing_memory_is_found_and_not_repeated_at_once(leak: float, within: int) -> None:
    rng = np.random.default_rng(5)
    sizes = 3e9 + rng.normal(0, 2 * MIB, 12_000)
    sizes += np.clip(np.arange(12_000) - 900, 0, None) * leak
    changes = found(rows(np.full(12_000, 50.0), sizes))
    assert 900 < changes[0].step <= 900 + within
    assert len(changes) <= 1 + np.log(sizes[-1] / sizes[0]) / np.log(1.5)
    assert changes[0].text.startswith("memory grows steadily by ")
    if leak > MIB:
        assert re.search(
            r"by 1\.\d+ MiB per step since about step (8[5-9]|9\d)\d ", changes[0].text
        )


@given(
    st.lists(
        st.builds(
            StepRow,
            st.integers(0, 5),
            *[st.integers(-(2**62), 2**62)] * 3,
            *[st.none() | st.integers(-(2**62), 2**62)] * 3,
            *[st.integers(0, 2**62)] * 2,
            *[st.none() | st.integers(0, 2**62)] * 5,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_row_raises(steps: list[StepRow]) -> None:
    changes = StepChanges()
    changes.slow(steps[0])
    changes.add([row._replace(event=None) for row in steps] * 90)
    for row in steps:
        changes.slow(row)


@pytest.mark.timing
def test_100_rows_take_less_than_200_us() -> None:
    steps = rows(np.full(20_000, 50.0), np.full(20_000, 3e9))
    start = time.process_time()
    found(steps, chunk=100)
    assert time.process_time() - start < 200 * 200e-6
