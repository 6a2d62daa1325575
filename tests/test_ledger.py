"""Ledger of anomalies: a count and the first detail per name."""

import numpy as np

from unified_prof.base.columns import Entry, Ledger


def test_counts_of_a_name_add_up_and_the_first_detail_is_kept() -> None:
    ledger = Ledger()
    ledger.add("lost_slice", "slice 3")
    ledger.add("lost_slice", "slice 5", 2)
    assert ledger == {"lost_slice": Entry(3, "slice 3")}


def test_first_nonempty_detail_is_kept() -> None:
    ledger = Ledger()
    ledger.add("unmatched", count=4)
    ledger.add("unmatched", "event 7")
    assert ledger["unmatched"] == (5, "event 7")


def test_count_of_zero_adds_no_entry() -> None:
    ledger = Ledger()
    ledger.add("unmatched", "event 7", 0)
    assert not ledger
    assert list(ledger) == []


def test_names_are_in_order_of_occurrence() -> None:
    ledger = Ledger()
    for name in ("b", "a", "b"):
        ledger.add(name)
    assert list(ledger) == ["b", "a"]


def test_merge_adds_the_counts_of_another_ledger() -> None:
    one, other = Ledger(), Ledger()
    one.add("a", "first")
    other.add("a", "second", 2)
    other.add("b")
    one.merge(other)
    assert dict(one) == {"a": (3, "first"), "b": (1, "")}


def test_numpy_count_becomes_an_int() -> None:
    ledger = Ledger()
    cases = np.array([2, 3])
    ledger.add("a", count=cases.sum())
    assert type(ledger["a"].cases) is int
