"""Repeated sequences, compared with counting each of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.explain.advice.sequence_rules import (
    first_rotation,
    non_overlapping,
    period,
    repeated_sequences,
)

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4)


@given(ROWS, st.integers(0, 3), st.integers(2, 4), st.integers(4, 6))
def test_repeated_sequences_equal_those_counted_one_by_one(
    parts: list[list[int]], more_than: int, shortest: int, longest: int
) -> None:
    token = np.array([one for part in parts for one in part], np.int64)
    segment = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64)
    expected: dict[tuple[int, ...], list[int]] = {}
    first = 0
    for part in parts:
        for length in range(shortest, longest + 1):
            for at in range(len(part) - length + 1):
                expected.setdefault(tuple(part[at : at + length]), []).append(first + at)
        first += len(part)
    found: dict[tuple[int, ...], list[int]] = {}
    for length, place, number in repeated_sequences(
        token, segment, shortest=shortest, longest=longest, more_than=more_than
    ):
        names: dict[int, tuple[int, ...]] = {}
        for at, one in zip(place.tolist(), number.tolist(), strict=True):
            sequence = tuple(token[at : at + length].tolist())
            assert names.setdefault(one, sequence) == sequence
            found.setdefault(sequence, []).append(at)
    assert found == {one: at for one, at in expected.items() if len(at) > more_than}


@pytest.mark.parametrize(
    ("text", "again"), [("abc", 3), ("abcabc", 3), ("abca", 3), ("aaa", 1), ("aba", 2), ("a", 1)]
)
def test_period_of_a_sequence(text: str, again: int) -> None:
    assert period([ord(one) for one in text]) == again


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 7))
def test_all_rotations_have_the_same_first_one(sequence: list[int], by: int) -> None:
    by %= len(sequence)
    assert first_rotation([*sequence[by:], *sequence[:by]]) == first_rotation(sequence)


def test_overlapping_occurrences_count_once() -> None:
    begins = np.array([0, 2, 4, 5, 9], np.int64)
    assert begins[non_overlapping(begins, 3)].tolist() == [0, 4, 9]
    assert begins[non_overlapping(begins, 1)].tolist() == begins.tolist()
