"""A run that memory would not hold: the first steps in memory, sums over the whole rank by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cluster.made import Plan, make, partials_of
from tests.cluster.test_matching import later
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster import waits
from unified_prof.cluster.rank_partial import Partial
from unified_prof.cluster.summary import RunSummary, summarize_run

pytest.importorskip("pyarrow")

PLAN = Plan(steps=6, setup_ns=1_000_000, slow={5: 1.2})


def both(found: list[Partial]) -> tuple[RunSummary, RunSummary]:
    files = {one.facts.rank: partials.partial_to_parquet(one) for one in found}
    cut = [partials.limit_to_first_steps(one, 30) for one in found]
    end_times = [one.until for one in cut if one.until is not None]
    assert set(end_times) <= {2, 3}  # stages do not have equally many operations
    assert all(len(one.communication["start"]) <= 30 for one in cut)
    shorter = summarize_run(
        cut, read=lambda rank: partials.read_communication(files[rank], "it"), until=min(end_times)
    )
    return summarize_run(found), shorter


def without(rows: list[tuple[Any, ...]], *places: int) -> list[tuple[Any, ...]]:
    return [tuple(v for at, v in enumerate(row) if at not in places) for row in rows]


def test_sums_are_those_of_the_whole_run() -> None:
    whole, shorter = both(partials_of(make(PLAN)))
    # All but exposed wait and bubble, for which single kernels would be needed.
    assert without(shorter.tables["STEP_RANK"], 8, 10) == without(whole.tables["STEP_RANK"], 8, 10)
    assert shorter.tables["COLLECTIVE"] == whole.tables["COLLECTIVE"]
    assert without(shorter.tables["BLAME"], 9) == without(whole.tables["BLAME"], 9)
    assert shorter.tables["OPERATION_RANK"] == whole.tables["OPERATION_RANK"]
    assert [(one.kind, one.ranks) for one in shorter.findings] == [("slow_rank", (5,))]
    cost = whole.findings[0].cost_ms_per_step
    assert shorter.findings[0].cost_ms_per_step == pytest.approx(cost, rel=0.2)


def test_recordings_that_began_later_are_shifted_here_as_well() -> None:
    found = [later(one, 5) if one.facts.rank == 3 else one for one in partials_of(make(PLAN))]
    whole, shorter = both(found)
    assert shorter.tables["COLLECTIVE"] == whole.tables["COLLECTIVE"]
    assert without(shorter.tables["STEP_RANK"], 8, 10) == without(whole.tables["STEP_RANK"], 8, 10)


def test_a_rank_within_the_limit_stays_whole() -> None:
    one = partials_of(make(PLAN))[0]
    assert partials.limit_to_first_steps(one, 1_000) is one


def test_events_by_slice_are_those_by_number() -> None:
    rng = np.random.default_rng(7)
    quick, slow = waits._StreamedEvents(), waits._StreamedEvents()
    for rank in range(4):
        first, count = int(rng.integers(0, 3)), int(rng.integers(1, 40))
        numbers = np.arange(first, first + count)
        rows = rng.permutation(count)
        table = {name: rng.integers(-1, 9, count) for name in ("move", "step", "bytes")}
        own = rng.integers(1, 50, count)
        at = waits._as_slice(numbers)
        assert at == slice(first, first + count)
        for held, where in ((quick, at), (slow, numbers)):
            held.grow(first + count)
            held.add(where, rank, own, table, rows)
    np.testing.assert_array_equal(quick.columns(), slow.columns())
    assert isinstance(waits._as_slice(np.array([0, 1, 3])), np.ndarray)
    assert isinstance(waits._as_slice(np.array([1, 0, 2])), np.ndarray)
