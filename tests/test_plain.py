"""Text of unknown origin does nothing but appear, on one line."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.base.text import printable, storable

_ANY_TEXT = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("conv2d", "conv2d"),
        ("卷积 é 🙂", "卷积 é 🙂"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\t", r"two\x0alines\x09"),
        ("break\u2028here", r"break\u2028here"),
        ("abc\u202ecba", r"abc\u202ecba"),
        ("\x9b2J", r"\x9b2J"),
        ("\ud800", r"\ud800"),
        ("[bold]report[/bold].db", "[bold]report[/bold].db"),
    ],
)
def test_names_do_nothing_but_appear(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_bytes_of_a_name_that_is_not_utf_8_appear_as_these_bytes() -> None:
    assert printable(os.fsdecode(b"caf\xe9.db")) == r"caf\xe9.db"


@given(_ANY_TEXT)
def test_the_result_is_one_line_that_can_be_encoded_and_stays(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert printable(shown) == shown
    assert not any(unicodedata.category(one) in {"Cc", "Cf", "Cs"} for one in shown)


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(_ANY_TEXT)
def test_stored_is_what_is_utf_8_as_it_is_and_a_raw_byte_as_that_byte(text: str) -> None:
    stored = storable(text)
    stored.encode("utf-8")
    assert storable(stored) == stored
    if not any("\ud800" <= one <= "\udfff" for one in text):
        assert stored == text


def test_names_that_are_not_utf_8_are_stored_alike_by_all_writers() -> None:
    assert storable(os.fsdecode(b"caf\xe9.py")) == r"caf\xe9.py"
