"""Long runs: the first steps are held in memory, and the rest is summed rank by rank."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, partials_of, simulate
from tests.cluster.test_matching import without_first
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster import waits
from unified_prof.cluster.rank_partial import COMMUNICATION_COLUMNS, Partial
from unified_prof.cluster.sequences import SharedColumns, sequences_of
from unified_prof.cluster.summary import RunSummary, summarize_run
from unified_prof.cluster.waits import KeyMembers, KeySums, sum_key

pytest.importorskip("pyarrow")

PLAN = Plan(steps=6, setup_ns=1_000_000, slow={5: 1.2})


def first_steps(found: list[Partial], shared: SharedColumns | None = None) -> list[Partial]:
    return [
        partials.read_first_steps(partial(partials.partial_to_parquet, one), "it", 30, shared)
        for one in found
    ]


def whole_and_streamed(found: list[Partial]) -> tuple[RunSummary, RunSummary]:
    cut = first_steps(found)
    assert {one.until for one in cut} <= {2, 3}  # stages have different numbers of operations
    assert all(one.operations <= 30 for one in cut)
    return summarize_run(found), summarize_run(cut)


def without_columns(rows: list[tuple[Any, ...]], *places: int) -> list[tuple[Any, ...]]:
    return [tuple(v for at, v in enumerate(row) if at not in places) for row in rows]


@pytest.mark.slow
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
    data = partials.partial_to_parquet(one)
    assert partials.read_first_steps(lambda: data, "it", 1_000).held is None


def test_columns_of_first_steps_are_read_again_when_used() -> None:
    one = partials_of(simulate(PLAN))[5]
    (cut,) = first_steps([one])
    for part in ("communication", "marks"):
        columns = getattr(cut, part)
        for name, values in getattr(one, part).items():
            count = len(columns[name])
            assert 0 < count < len(values)
            np.testing.assert_array_equal(columns[name], values[:count], name)
    marks = {name: values[: len(cut.marks["time"])] for name, values in one.marks.items()}
    assert cut.mark_figures() == partials.figures_of(marks)
    assert cut.operations == len(cut.communication["start"])


@pytest.mark.slow
def test_run_of_several_ranks_in_shared_memory_is_the_same() -> None:
    found = partials_of(simulate(PLAN))
    shared = SharedColumns()
    alone, together = (summarize_run(first_steps(found, memory)) for memory in (None, shared))
    assert alone.tables == together.tables
    values = np.arange(5, dtype=np.int16)
    assert shared(values) is shared(values.copy())
    assert shared(values) is not shared(values, whole=True)
    swapped = values[::-1].copy()  # the same sum and length
    np.testing.assert_array_equal(shared(swapped), swapped)
    np.testing.assert_array_equal(shared(values), values)


def sums_of(key: KeyMembers, members: list[dict[str, Any]]) -> KeySums:
    """Return the sums of one group and kind from plain columns."""
    whole = [
        sequences_of(
            {
                **{name: np.zeros(len(one["seq"]), np.int64) for name in COMMUNICATION_COLUMNS},
                **one,
            },
            ["all_reduce"],
        ).whole
        for one in members
    ]
    return sum_key(key, whole.__getitem__)


@pytest.mark.parametrize("cells", [1 << 20, 4])
@pytest.mark.parametrize("seed", range(4))
def test_sums_equal_single_events(seed: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_CELLS", cells)
    rng = np.random.default_rng(seed)
    members = []
    for rank in range(3):
        first = int(rng.integers(0, 3)) * (seed > 1)
        count = 9 if seed <= 1 else int(rng.integers(3, 12))
        numbers = np.arange(count)
        if seed == 3 and rank == 1:
            numbers = np.delete(numbers, 1)
        start = rng.integers(0, 9, len(numbers))
        columns = {name: rng.integers(-1, 3, len(numbers)) for name in ("move", "step", "bytes")}
        end = start + rng.integers(1, 50, len(numbers))
        members.append({"seq": numbers + first, "start": start, "end": end, **columns})
        if seed == 0:
            members[-1]["step"] = np.arange(9) // 4
    key = KeyMembers(0, 0, 3, ((0, 0, 0), (1, 0, 0), (2, 0, 1 if seed == 1 else 0)))
    found = sums_of(key, members)
    events: dict[int, list[tuple[int, int, int]]] = {}
    for rank, (table, (_, _, shift)) in enumerate(zip(members, key.members, strict=True)):
        for at, number in enumerate((table["seq"] + shift).tolist()):
            took = int(table["end"][at] - table["start"][at])
            events.setdefault(number, []).append((took, rank, at))
    expected: dict[tuple[int, int], int] = {}
    caused = np.zeros((2, 3), np.int64)
    for rows in events.values():
        least, last, _ = min(rows, key=lambda row: row[:2])
        if len(rows) == 3:
            caused[:, last] += sum(took - least for took, _, _ in rows), 1
        for took, rank, at in rows:
            step = int(members[rank]["step"][at])
            if len(rows) > 1 and step >= 0:
                expected[rank, step] = expected.get((rank, step), 0) + took - least
    np.testing.assert_array_equal(found.caused, caused)
    inside = np.argwhere(found.waits[4]).tolist()
    assert {
        (rank, int(found.steps[at])): found.waits[0, rank, at] for rank, at in inside
    } == expected
    assert sum(row[4] for row in found.collectives) == len(events)
