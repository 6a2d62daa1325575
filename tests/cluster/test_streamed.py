"""Long runs: the first steps are held in memory, and the rest is summed rank by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, partials_of, simulate
from tests.cluster.test_matching import without_first
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster import waits
from unified_prof.cluster.rank_partial import Partial
from unified_prof.cluster.summary import RunSummary, summarize_run

pytest.importorskip("pyarrow")

PLAN = Plan(steps=6, setup_ns=1_000_000, slow={5: 1.2})


def whole_and_streamed(found: list[Partial]) -> tuple[RunSummary, RunSummary]:
    files = {one.facts.rank: partials.partial_to_parquet(one) for one in found}
    cut = [partials.limit_to_first_steps(one, 30) for one in found]
    end_times = [one.until for one in cut if one.until is not None]
    assert set(end_times) <= {2, 3}  # stages have different numbers of operations
    assert all(len(one.communication["start"]) <= 30 for one in cut)
    shorter = summarize_run(
        cut, read=lambda rank: partials.read_communication(files[rank], "it"), until=min(end_times)
    )
    return summarize_run(found), shorter


def without_columns(rows: list[tuple[Any, ...]], *places: int) -> list[tuple[Any, ...]]:
    return [tuple(v for at, v in enumerate(row) if at not in places) for row in rows]


def test_streamed_sums_equal_those_of_the_whole_run() -> None:
    whole, shorter = whole_and_streamed(partials_of(simulate(PLAN)))
    # Except exposed wait and bubble, which need single kernels.
    assert without_columns(shorter.tables["STEP_RANK"], 8, 10) == without_columns(
        whole.tables["STEP_RANK"], 8, 10
    )
    assert shorter.tables["COLLECTIVE"] == whole.tables["COLLECTIVE"]
    assert without_columns(shorter.tables["BLAME"], 9) == without_columns(whole.tables["BLAME"], 9)
    assert shorter.tables["OPERATION_RANK"] == whole.tables["OPERATION_RANK"]
    assert [(one.kind, one.ranks) for one in shorter.findings] == [("slow_rank", (5,))]
    cost = whole.findings[0].cost_ms_per_step
    assert shorter.findings[0].cost_ms_per_step == pytest.approx(cost, rel=0.2)


def test_recordings_that_start_later_are_shifted_in_streamed_runs() -> None:
    found = [
        without_first(one, 5) if one.facts.rank == 3 else one for one in partials_of(simulate(PLAN))
    ]
    whole, shorter = whole_and_streamed(found)
    assert shorter.tables["COLLECTIVE"] == whole.tables["COLLECTIVE"]
    assert without_columns(shorter.tables["STEP_RANK"], 8, 10) == without_columns(
        whole.tables["STEP_RANK"], 8, 10
    )


def test_rank_within_the_limit_is_not_cut() -> None:
    one = partials_of(simulate(PLAN))[0]
    assert partials.limit_to_first_steps(one, 1_000) is one


def test_streamed_events_by_slice_equal_those_by_number() -> None:
    rng = np.random.default_rng(7)
    quick, slow = waits._StreamedEvents(), waits._StreamedEvents()
    for rank in range(4):
        first, count = int(rng.integers(0, 3)), int(rng.integers(1, 40))
        numbers = np.arange(first, first + count)
        rows = rng.permutation(count)
        table = {name: rng.integers(-1, 9, count) for name in ("move", "step", "bytes")}
        took = rng.integers(1, 50, count)
        at = waits._as_slice(numbers)
        assert at == slice(first, first + count)
        for held, where in ((quick, at), (slow, numbers)):
            held.grow(first + count)
            held.add(where, rank, took, table, rows)
    np.testing.assert_array_equal(quick.columns(), slow.columns())
    assert isinstance(waits._as_slice(np.array([0, 1, 3])), np.ndarray)
    assert isinstance(waits._as_slice(np.array([1, 0, 2])), np.ndarray)
