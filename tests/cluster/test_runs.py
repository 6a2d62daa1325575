"""Recordings of two runs of a program are distinguished, or refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.simulated_run import Plan, partials_of, simulate
from unified_prof.cluster.rank_partial import Partial, PartialSource
from unified_prof.cluster.summary import RunSummary, summarize_run
from unified_prof.errors import UsageError

PLAN = Plan(steps=8, batches=4, noise=0.05)
SECOND = 1_000_000_000
HOUR = 3600 * SECOND


SLIGHTLY_SLOWER = dict.fromkeys(range(16), 1.02)
"""No two runs take exactly the same time."""


def recorded(seed: int, later: int = 0, **other: Any) -> list[Partial]:
    simulated = simulate(replace(PLAN, seed=seed, **other))
    return [shifted(one, later) for one in partials_of(simulated)]


def shifted(one: Partial, later: int) -> Partial:
    """Return the recording with all times moved by `later` ns."""
    communication, marks, steps = (dict(part) for part in (one.communication, one.marks, one.steps))
    for part, names in ((communication, ("start", "end")), (steps, ("start", "end"))):
        for name in names:
            part[name] = part[name] + later
    marks["time"] = marks["time"] + later
    return replace(one, communication=communication, marks=marks, steps=steps)


def mixed(first: list[Partial], second: list[Partial], of_second: set[int]) -> list[Partial]:
    pairs = zip(first, second, strict=True)
    return [b if a.facts.rank in of_second else a for a, b in pairs]


def summary_of_partials(found: list[Partial]) -> RunSummary:
    where = {one.facts.rank: PartialSource(f"run/rank{one.facts.rank}.db") for one in found}
    return summarize_run(found, where)


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    ("others", "later"),
    [
        ({3}, HOUR),
        ({3}, 7 * SECOND),
        ({1, 12, 14}, HOUR),
        ({1, 12, 14}, 7 * SECOND),
        ({4, 5, 6, 7}, HOUR),  # a whole host, whose clock may be wrong by seconds
    ],
)
def test_ranks_of_another_run_are_left_out_with_the_reason(others: set[int], later: int) -> None:
    summary = summary_of_partials(
        mixed(recorded(1), recorded(2, later, slow=SLIGHTLY_SLOWER), others)
    )
    assert {one.rank for one in summary.unread} == others
    assert summary.ranks_read == 16 - len(others)
    for one in summary.unread:
        assert one.file == f"run/rank{one.rank}.db"
        assert "belongs to another run than rank 0 and" in one.why
        assert f"recorded {later / 1e9:,.0f} s after that" in one.why
    assert summary.findings == []


def test_equal_halves_of_two_runs_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        summary_of_partials(
            mixed(recorded(1), recorded(2, HOUR, slow=SLIGHTLY_SLOWER), set(range(8, 16)))
        )
    text = str(caught.value)
    assert "recordings are from 2 runs: run/rank0.db (rank 0 on host0, 2025-11-20 " in text
    assert "and 7 more; run/rank8.db (rank 8 on host2, 2025-11-20 " in text


@pytest.mark.parametrize("skew", [2_000_000, 5 * SECOND, HOUR])
def test_clock_skew_does_not_make_two_runs(skew: int) -> None:
    summary = summary_of_partials(recorded(1, skew_ns=skew))
    assert summary.unread == ()
    assert summary.ranks_read == 16


def test_slow_or_late_rank_belongs_to_the_run() -> None:
    assert summary_of_partials(recorded(1, slow={3: 3.0}, late={9: 50_000_000})).unread == ()


def test_simultaneous_jobs_on_other_hosts_are_two_runs() -> None:
    long: dict[str, Any] = {"batches": 8, "steps": 4, "noise": 0.05}
    summary = summary_of_partials(
        mixed(recorded(1, **long), recorded(2, slow=dict.fromkeys(range(16), 1.3), **long), {13})
    )
    assert [one.rank for one in summary.unread] == [13]
    assert "their collectives do not end together" in summary.unread[0].why
