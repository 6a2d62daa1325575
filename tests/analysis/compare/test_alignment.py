"""Alignment of two sequences of operations by their keys."""

import itertools
import time
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.compare import alignment
from unified_prof.compare.alignment import Pair, Pairs, number
from unified_prof.compare.comparable import Place, pair

Keys = Sequence[Hashable]
"""Keys of an element, most specific first; None pairs with nothing."""

words = st.lists(st.sampled_from("abcdef"), max_size=30)


def tuples(pairs: Pairs) -> list[Pair]:
    first, second = pairs
    return list(zip(first.tolist(), second.tolist(), strict=True))


def common_subsequence(base: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    return tuples(alignment.common_subsequence(*number(base, new)))


def align(base: Sequence[Keys], new: Sequence[Keys], *, moved_levels: int = 2) -> list[Pair]:
    """Align elements that have the same number of keys."""
    levels = len(base[0]) if base else len(new[0]) if new else 0
    sides = [
        number([keys[level] for keys in base], [keys[level] for keys in new])
        for level in range(levels)
    ]
    first, second = [one for one, _ in sides], [one for _, one in sides]
    return tuples(alignment.align(first, second, moved_levels=moved_levels))


def longest(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


@given(words, words)
def test_common_subsequence_is_increasing_and_no_pair_can_be_added(
    a: list[str], b: list[str]
) -> None:
    pairs = common_subsequence(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    for (i, j), (k, m) in itertools.pairwise([(-1, -1), *pairs, (len(a), len(b))]):
        assert i < k
        assert j < m
        assert not {*a[i + 1 : k]} & {*b[j + 1 : m]}
    assert len(alignment._longest(*(one.tolist() for one in number(a, b)))) == longest(a, b)


distinct = st.lists(st.integers(0, 12), unique=True)


@given(distinct, distinct)
def test_common_subsequence_of_distinct_elements_is_the_longest(a: list[int], b: list[int]) -> None:
    assert len(common_subsequence(a, b)) == longest(a, b)


@given(words, st.data())
def test_insertions_and_removals_keep_other_pairs(a: list[str], data: st.DataObject) -> None:
    kept = [x for x in a if data.draw(st.booleans())]
    assert len(common_subsequence(a, kept)) == len(kept) == longest(a, kept)


@given(words)
def test_sequence_pairs_with_itself_one_to_one(a: list[str]) -> None:
    assert common_subsequence(a, a) == [(i, i) for i in range(len(a))]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=20),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=20),
)
def test_each_element_is_paired_once_and_pairs_share_a_key(
    a: list[tuple[str, str]], b: list[tuple[str, str]]
) -> None:
    pairs = align(a, b)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(a[i][0] == b[j][0] or a[i][1] == b[j][1] for i, j in pairs)


def test_inserted_operation_shifts_no_pair() -> None:
    base = [("l1", "linear"), ("l2", "relu"), ("l3", "linear")]
    new = [("l1", "linear"), ("new", "dropout"), ("l2", "relu"), ("l3", "linear")]
    assert align(base, new) == [(0, 0), (1, 2), (2, 3)]


def test_operation_on_a_shifted_line_is_paired_by_name() -> None:
    base = [("m:10", "linear"), ("m:11", "relu")]
    new = [("m:12", "linear"), ("m:13", "relu")]
    assert align(base, new) == [(0, 0), (1, 1)]


def test_weak_key_does_not_cross_a_pair_of_strong_keys() -> None:
    base = [("a", "linear"), ("b", "relu")]
    new = [("b", "relu"), ("c", "linear")]
    assert align(base, new, moved_levels=1) == [(1, 0)]


def test_moved_operation_is_paired() -> None:
    base = [("a", "x"), ("b", "y"), ("c", "z")]
    assert align(base, [*base[1:], base[0]]) == [(0, 2), (1, 0), (2, 1)]


def test_missing_key_pairs_with_nothing() -> None:
    assert align([(None, "x")], [(None, "y")]) == []


def test_ten_thousand_operations_of_one_line_take_no_quadratic_time() -> None:
    base = [("line", "mul")] * 10_000
    new = [("line", "mul")] * 9_000 + [("other", "add")] * 2_000
    start = time.process_time()
    assert len(align(base, new)) == 9_000
    assert time.process_time() - start < 10


maybe = st.none() | st.integers(0, 8)
elements = st.lists(st.tuples(maybe, st.integers(0, 4)), max_size=40)


@given(elements, elements, st.integers(0, 12))
def test_array_and_list_algorithms_give_the_same_pairs(
    a: list[tuple[int | None, int]], b: list[tuple[int | None, int]], few: int
) -> None:
    """Arrays are faster for many elements, lists for few."""
    expected = align(a, b)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(alignment, "_MAX_LIST_LENGTH", few)
        assert align(a, b) == expected


text = st.sampled_from(["", "a", "b", "model.py:1", "model.py:2", "x.py:1"])
kinds = st.sampled_from(["operation", "weight", "activation", "between", "kernel"])
some_places = st.lists(
    st.builds(Place, text, st.none() | text, st.none() | text, kinds), max_size=9
)


def keys(place: Place) -> list[tuple[str, ...] | None]:
    """Return the keys of a place, most specific first; None for a key that does not apply."""
    kind, name, module, line = place.kind, place.name, place.module, place.line
    is_operation = kind in ("operation", "kernel")
    is_placed = is_operation or module is not None or line is not None
    has_file = line is not None and (is_operation or module is None)
    return [
        (kind, name, module or "", line or "") if is_placed else None,
        None if module is None else (kind, name, module),
        (kind, name, (line or "").rpartition(":")[0]) if has_file else None,
        (kind, name) if is_operation else None,
    ]


@given(some_places, some_places)
def test_places_are_paired_by_their_keys(a: list[Place], b: list[Place]) -> None:
    first, second = pair(a, b)
    found = list(zip(first.tolist(), second.tolist(), strict=True))
    assert found == align([*map(keys, a)], [*map(keys, b)])


@pytest.mark.slow
def test_comparison_of_distinct_names_takes_linear_time() -> None:
    base = [Place(f"operation {i}", None, None) for i in range(100_000)]
    new = [Place(f"operation {i + i % 50 // 49}", None, None) for i in range(100_000)]
    start = time.process_time()
    first, _ = pair(base, new)
    assert time.process_time() - start < 20
    assert len(first) == 98_000
