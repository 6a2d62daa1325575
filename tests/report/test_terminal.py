"""Text of documents: wrapping and columns."""

from __future__ import annotations

import pytest

from unified_prof.report.document import Column, Document
from unified_prof.report.terminal import render_text


def fact_lines(text: str, width: int | None = None) -> list[str]:
    document = Document()
    document.fact("idle", text)
    return render_text(document, width=width).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, None])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_facts_are_wrapped_with_an_indent_and_units_stay_with_their_numbers(
    count: int, width: int | None
) -> None:
    text = "; ".join(f"idle for reason {number} 1.00 ms (10.0 %)" for number in range(count))
    lines = fact_lines(text, width)
    assert " ".join(line[14:] for line in lines) == text
    assert all(line.startswith(" " * 14) for line in lines[1:])
    assert all(len(line) <= (width or 120) for line in lines)
    assert not any(line.strip().startswith(("ms", "%")) for line in lines)


def test_a_word_that_is_too_long_is_not_broken_in_a_pipe() -> None:
    assert fact_lines("x" * 500) == [f"idle          {'x' * 500}"]


def test_empty_columns_are_dropped_first_on_a_narrow_terminal() -> None:
    document = Document()
    document.table(
        [
            Column("device", ("device 0 (Ascend910B4)",), is_name=True),
            Column("steps", ("152 ms",)),
            Column("copies", ("1.00 ms (0.7 %)",), importance=6),
            Column("overlapped", ("-",), importance=9),
            Column("communication", ("101 ms (66.6 %)",), importance=7),
        ]
    )
    assert render_text(document, width=50).splitlines()[0].split() == [
        "device",
        "steps",
        "communication",
    ]
