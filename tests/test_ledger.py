from __future__ import annotations

import numpy as np

from unified_prof.base.columns import Entry, Ledger


def test_counts_of_one_name_add_up_and_the_first_case_stays() -> None:
    ledger = Ledger()
    ledger.add("lost_slice", "slice 3")
    ledger.add("lost_slice", "slice 5", 2)
    assert ledger == {"lost_slice": Entry(3, "slice 3")}


def test_the_first_case_in_words_is_kept_even_where_a_wordless_one_came_before() -> None:
    ledger = Ledger()
    ledger.add("unmatched", count=4)
    ledger.add("unmatched", "event 7")
    assert ledger["unmatched"] == (5, "event 7")


def test_none_at_all_leaves_no_trace() -> None:
    ledger = Ledger()
    ledger.add("unmatched", "event 7", 0)
    assert not ledger
    assert list(ledger) == []


def test_names_come_in_the_order_in_which_they_occurred() -> None:
    ledger = Ledger()
    for name in ("b", "a", "b"):
        ledger.add(name)
    assert list(ledger) == ["b", "a"]


def test_what_others_counted_is_added() -> None:
    one, other = Ledger(), Ledger()
    one.add("a", "mine")
    other.add("a", "theirs", 2)
    other.add("b")
    one.merge(other)
    assert dict(one) == {"a": (3, "mine"), "b": (1, "")}


def test_what_numpy_counted_becomes_a_plain_number() -> None:
    ledger = Ledger()
    cases = np.array([2, 3])
    ledger.add("a", count=cases.sum())
    assert type(ledger["a"].cases) is int
