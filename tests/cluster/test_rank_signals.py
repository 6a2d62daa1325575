"""Ranks and links are compared with each other as computed by hand or by simple code."""

import statistics
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.cluster import moe_imbalance, rank_signals, rule_context, slow_links
from unified_prof.cluster.rank_signals import (
    chance_limit,
    median_of_others,
    robust_deviation,
    upper_cluster,
)


@given(st.lists(st.integers(-9, 9), max_size=9))
def test_median_of_others_equals_that_of_the_list_without_the_value(values: list[int]) -> None:
    others = [values[:at] + values[at + 1 :] for at in range(len(values))]
    expected = [statistics.median(one) if one else np.nan for one in others]
    np.testing.assert_array_equal(median_of_others(np.array(values, float)), expected)


@pytest.mark.parametrize(
    ("values", "majority", "expected"),
    [
        ([0, 1, 0, 1.1, 0], False, [0, 1, 0, 1.1, 0]),
        ([3, 4, 3.1, 4.2], False, [0, 0.95, 0, 1.15]),
        ([0, 1, 1, 1, 0], False, None),  # more than half are above
        ([0, 1, 1, 1, 0], True, [0, 1, 1, 1, 0]),
        ([0, 0, 0, 1], True, None),  # one value is no cluster
        ([0, 1, 1], True, None),
        ([0, 0, 1, np.nan], True, None),
        ([0, 0, 0.03, 0.03], False, [0, 0, 0.03, 0.03]),  # the smallest gap
        ([0, 0, 0.029, 0.029], False, None),
        ([0, 0.1, 0.7, 0.8], False, [0, 0, 0.65, 0.75]),  # 0.6 is 8 times the spread of 0.074
        ([0, 0.2, 0.8, 0.9], False, None),  # 0.6 is 4 times the spread of 0.15
    ],
)
def test_values_above_a_gap_are_a_cluster(
    values: list[float], majority: bool, expected: list[float] | None
) -> None:
    found = upper_cluster(np.array(values, float), majority=majority)
    assert found is None if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([(0, 4), (1, 5)], [(0, 4), (1, 5)]),
        ([(0, 1), (2, 3), (1, 2), (4, 5)], [(0, 1, 2, 3), (4, 5)]),
        ([(3, 0), (0, 1), (1, 2), (2, 3)], [(0, 1, 2, 3)]),
        ([(0, 4, 8, 12), (1, 5, 9, 13)], [(0, 4, 8, 12), (1, 5, 9, 13)]),
        ([], []),
    ],
)
def test_pairs_of_stages_that_share_a_rank_are_one_pipeline(
    groups: list[tuple[int, ...]], expected: list[tuple[int, ...]]
) -> None:
    assert rank_signals.pipelines(groups) == expected


NONE = np.nan
MAD = 1.4826  # Standard deviation of a normal distribution with a median absolute deviation of 1.


@pytest.mark.parametrize(
    ("values", "peers", "hosts", "expected"),
    [
        # One host, or unknown hosts: the other ranks of the role.
        ([1, 2, 6], [0, 0, 0], "aaa", [4, 3.5, 1.5]),
        ([1, 2, 6, 7], [0, 0, 1, 1], [None] * 4, [2, 1, 7, 6]),
        ([1, 2], [0, 1], "aa", [NONE, NONE]),
        # Peers on several other hosts.
        ([1, 2, 3, 4, 5, 7], [0] * 6, "aabbcc", [4.5, 4.5, 3.5, 3.5, 2.5, 2.5]),
        # Peers on one other host, which may be the faulty one: all ranks of other hosts.
        ([1, 3, 5, 9], [0, 0, 1, 1], "abac", [6, 5, 6, 3]),
    ],
)
def test_ranks_are_compared_with_peers_on_other_hosts(
    values: list[float], peers: list[int], hosts: Sequence[str | None], expected: list[float]
) -> None:
    found = rank_signals.median_elsewhere(np.array(values, float), np.array(peers), hosts)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("values", "peers", "hosts", "expected"),
    [
        # Fewer than four hosts: deviations from the median of host and role, here 2, 2, 7, 12 ...
        ([1, 3, 7, 10, 14], [0, 0, 1, 0, 0], "aaabb", 1),  # -1, 1, 0, -2, 2
        ([0, 4, 8], [0, 0, 0], "abc", 0),
        # ... and from four hosts on, from the ranks of other hosts: -4, -4, 4, 8.
        ([0, 0, 4, 8], [0, 0, 0, 0], "abcd", 4),
    ],
)
def test_spread_of_ranks_leaves_out_differences_between_few_hosts(
    values: list[float], peers: list[int], hosts: str, expected: float
) -> None:
    found = rank_signals.spread_of_alike(np.array(values, float), np.array(peers), hosts)
    assert found == pytest.approx(MAD * expected)


def test_values_rarely_exceed_the_limit_by_chance() -> None:
    rng = np.random.default_rng(0)
    for count, expected in ((8, 5.54), (64, 5.51), (1024, 6.23)):
        values = rng.normal(size=(400, count))
        limits = [chance_limit(count) * robust_deviation(row) for row in values]
        assert (values.max(axis=1) > limits).mean() < 0.03
        assert chance_limit(count) == pytest.approx(expected, abs=0.01)


def test_deviation_of_known_values_is_robust() -> None:
    assert robust_deviation(np.array([-1, 3, NONE, 2, 90, np.inf])) == pytest.approx(2.5 * MAD)
    assert robust_deviation(np.array([NONE])) == 0


@pytest.mark.parametrize(
    ("took", "slow"),
    [
        ([10], []),
        ([10, 15], []),  # one of two: 1.5 times the other
        ([10, 15.1], [(1, 1.51, 10, False)]),
        ([10, 10, 12.4], []),  # one of several: 1.25 times the others
        ([10, 12.6, 10], [(1, 1.26, 10, False)]),
        ([8, 10, 12.5, 20], []),  # far from each other as usual
        ([10, 10, 14.9, 14.9], []),  # two clusters: 1.5 times the lower one
        ([10, 10, 15.1, 15.1], [(2, 1.51, 10, False), (3, 1.51, 10, False)]),
        ([20, 10, 10, 20, 20, 20], [(at, 2, 10, True) for at in (0, 3, 4, 5)]),
        ([20, 10, 10, 20, 20], [(at, 2, 10, True) for at in (0, 3, 4)]),
    ],
)
def test_transfers_far_above_the_usual_time_are_slow(
    took: list[float], slow: list[tuple[int, float, float, bool]]
) -> None:
    found = slow_links._slow_times(np.array(took, float))
    assert [one[0] for one in found] == [one[0] for one in slow]
    for got, expected in zip(found, slow, strict=True):
        assert got == pytest.approx(expected)


@pytest.mark.parametrize(
    ("took", "slow"),
    [  # times of each link in steps 4 to 7
        ([[10, 10, 20, 10], [10] * 4, [10] * 4], [(0, [6], 2)]),
        ([[20, 10, 20, 10], [10] * 4, [10] * 4], [(0, [4, 6], 2)]),
        ([[10, 10, 12, 10], [10] * 4, [10] * 4], []),  # below 1.25
        ([[20] * 4, [10] * 4, [10] * 4], []),  # in all steps
        ([[10, 10, 20, 10]] * 3, []),  # in this step, all links are slow
        ([[10, 10, 20, 10], [10] * 4], [(0, [6], 2)]),  # too few links to compare a step ...
        ([[20, 10, 10, 10], [10] * 4], []),  # ... of which the first may be slow
        ([[20, 12, 10, 10], [10] * 4, [10] * 4], [(0, [4], 2)]),
        ([[20, 14.5, 10, 10], [10] * 4, [10] * 4], [(0, [4, 5], 1.703)]),
    ],
)
def test_link_that_is_slow_only_in_some_steps_is_found_with_them(
    took: list[list[float]], slow: list[tuple[int, list[int], float]]
) -> None:
    times = np.array(took, float)
    link, step = (one.ravel() for one in np.indices(times.shape))
    found = list(slow_links._slow_cells(link, step + 4, times.ravel()))
    assert [(one, (step[at] + 4).tolist()) for one, at, _, _ in found] == [o[:2] for o in slow]
    for (_, _, ratio, usual), (_, _, expected) in zip(found, slow, strict=True):
        assert usual == 10
        assert ratio == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("source", "target", "per_host"),
    [
        *((("rank", 5), None, 4), (None, ("rank", 5), 4)),
        *((("rank", 5), None, 1), (None, ("rank", 5), 1)),  # not: host 5
        *((("host", "1"), None, 4), (None, ("host", "1"), 4), (("host", "2"), ("host", "1"), 4)),
        (("device", 2), ("device", 2), 4),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_cause_of_slow_links_is_the_end_that_they_share(
    source: Any, target: Any, per_host: int, both: bool
) -> None:
    """All pairs of ranks of 8 hosts are compared; those from `source` to `target` are slow."""
    world = range(8 * per_host)
    facts = [SimpleNamespace(host=str(r // per_host), device_id=r % per_host) for r in world]
    ends = [{("rank", r), ("host", f.host), ("device", f.device_id)} for r, f in enumerate(facts)]

    def is_slow(a: int, b: int) -> bool:
        return source in {None, *ends[a]} and target in {None, *ends[b]}

    pairs: set[Any] = {(a, b) for a in world for b in world if facts[a].host != facts[b].host}
    slow = [
        slow_links.SlowLink((min(pair), max(pair)), pair, -1, 2, (), 1, 2)
        for pair in sorted(pairs)
        if is_slow(*pair) or (both and is_slow(*pair[::-1]))
    ]
    context: Any = SimpleNamespace(
        matched=SimpleNamespace(facts=facts),
        host=lambda rank: facts[rank].host,
        hosts=lambda ranks: sorted({facts[rank].host for rank in ranks}),
    )
    causes, links = slow_links._common_cause(context, pairs, slow) or ([], [])
    expected = {(source, target), *([(target, source)] if both else [])}
    assert (set(causes), sorted(one.ends or () for one in links)) == (
        expected,
        [one.ends for one in slow],
    )


@pytest.mark.parametrize(
    ("groups", "shape", "expected"),
    [
        ([("pp", (0, 1)), ("pp", (2, 3))], {}, [0, 1, 0, 1]),
        ([("pp", (0, 1)), ("pp", (1, 2)), ("pp", (2, 3))], {}, [0, 1, 2, 3]),  # one pipeline
        ([("pp", (0, 1))], {}, [0, 1, None, None]),
        ([("pp", (0, 1))], {"pp": 1}, [0, 1, 0, 0]),
        ([("tp", (0, 1))], {"pp": 2}, [0] * 4),  # groups have names: there are no stages
        ([("other", (0, 1))], {"pp": 2}, [None] * 4),
        ([("other", (0, 1))], {"pp": 1}, [0] * 4),
    ],
)
def test_position_in_a_group_is_unknown_unless_recorded(
    groups: list[tuple[str, tuple[int, ...]]], shape: dict[str, int], expected: list[int | None]
) -> None:
    matched: Any = SimpleNamespace(
        groups=[SimpleNamespace(kind=k, ranks=ranks, is_recorded=True) for k, ranks in groups],
        ranks=range(4),
        facts=[SimpleNamespace(shape=shape)] * 4,
    )
    assert rank_signals._group_positions(matched, "pp") == expected


@pytest.mark.parametrize(
    ("load", "each", "expected"),
    [
        ([[2, 4], [4, 8]], False, [[1.5, 1.5], [0.75, 0.75]]),  # totals 6 and 12, mean 9
        ([[1, 3], [3, 1]], False, [[1, 1], [1, 1]]),  # equal totals
        ([[1, 3], [3, 1]], True, [[2, 2 / 3], [2 / 3, 2]]),
        ([[0, 0], [3, 1]], True, [[1, 1], [0.5, 0.5]]),  # nothing to make larger
    ],
)
def test_load_of_experts_is_evened_in_total_or_in_each_exchange(
    load: list[list[float]], each: bool, expected: list[list[float]]
) -> None:
    found = moe_imbalance._evening(np.array(load, float), each=each)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (range(10), " in every step"),
        ([7], " in step 7"),
        ([8, 9], " in steps 8 and 9"),
        ([7, 8, 9], " since step 7"),
        ([0, 2, 4, 6, 9], " in steps 0, 2, 4, 6 and 9"),
        ([0, 1, 2, 4, 6, 9], " in 6 of 10 steps (0, 1, 2, 4, 6, ...)"),
    ],
)
def test_up_to_five_steps_are_named(steps: Sequence[int], text: str) -> None:
    context: Any = SimpleNamespace(steps=tuple(range(10)), has_steps=lambda: True)
    assert rule_context.steps_text(context, steps, " in every step") == text


@pytest.mark.parametrize(
    ("late", "kept"),
    [
        ("110111", "000111"),  # at least three blocks of steps in a row ...
        ("11", "11"),  # ... or all
        ("1110" * 4 + "11", "1110" * 4 + "00"),
        ("1110" * 4 + "111", "0" * 19),  # a sixth of 19 blocks are four
    ],
)
def test_watched_ranks_must_be_late_for_some_time(late: str, kept: str) -> None:
    mask = np.array([[mark == "1" for mark in late]])
    context: Any = SimpleNamespace(is_watched=True)
    found = rule_context.lasting(context, mask)
    assert "".join(str(int(one)) for one in found[0]) == kept
