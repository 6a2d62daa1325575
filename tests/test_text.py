"""Texts of unknown origin are escaped to one harmless line; decimal numbers are exact."""

import os
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.base.text import parsed_fact, printable, some_of, storable, us_text_to_ns

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
def test_control_characters_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown


def test_bytes_that_are_not_utf_8_are_escaped() -> None:
    assert printable(os.fsdecode(b"caf\xe9.db")) == r"caf\xe9.db"


@given(_ANY_TEXT)
def test_escaped_text_is_one_encodable_line_and_stable(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert printable(shown) == shown
    assert not any(unicodedata.category(one) in {"Cc", "Cf", "Cs"} for one in shown)


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_printable_text_is_unchanged(text: str) -> None:
    assert printable(text) == text


@given(_ANY_TEXT)
def test_storable_text_is_valid_utf_8_and_stable(text: str) -> None:
    stored = storable(text)
    stored.encode("utf-8")
    assert storable(stored) == stored
    if not any("\ud800" <= one <= "\udfff" for one in text):
        assert stored == text


def test_names_that_are_not_utf_8_are_stored_as_escapes() -> None:
    assert storable(os.fsdecode(b"caf\xe9.py")) == r"caf\xe9.py"

    @given(st.integers(min_value=0, max_value=2**63 - 1))
    def test_microseconds_are_converted_to_exact_nanoseconds(ns: int) -> None:
        assert us_text_to_ns(str(Decimal(ns) / 1000)) == ns

    @pytest.mark.parametrize(
        "text", ["", "abc", "nan", "inf", "-inf", "1.2.3", "1e999999999", "1e40"]
    )
    def test_invalid_number_is_refused(text: str) -> None:
        with pytest.raises(ValueError, match="not a decimal number"):
            us_text_to_ns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[1, 2]", [1, 2]), (str([2**63 - 1]), [2**63 - 1]), (str([2**63]), []), ("[" * 9999, [])],
)
def test_damaged_facts_are_empty(text: str, expected: list[int]) -> None:
    assert parsed_fact({"a": text}, "a", list) == expected
    assert parsed_fact({"a": text}, "a", dict) == {}


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, ""), (1, "0"), (2, "0; 1"), (3, "0; 1 and 1 row"), (1502, "0; 1 and 1,500 row")],
)
def test_texts_beyond_a_number_are_counted(count: int, shown: str) -> None:
    assert some_of(map(str, range(count)), 2, "row", "; ") == shown
