"""Lines of a headline that are too long for a person where no terminal breaks them."""

from __future__ import annotations

import pytest

from unified_prof.report.terminal import TerminalPage


def told(text: str, width: int | None = None) -> list[str]:
    page = TerminalPage(width=width, color=False)
    page.fact("idle", text)
    return page.text().splitlines()


@pytest.mark.parametrize("count", [1, 5, 15])
def test_a_long_fact_is_broken_between_its_parts(count: int) -> None:
    parts = [f"waiting for reason number {number} 1.00 ms" for number in range(count)]
    lines = told("; ".join(parts))
    assert "; ".join(line[14:].removesuffix(";") for line in lines) == "; ".join(parts)
    assert all(line.startswith(" " * 14) for line in lines[1:])
    assert len(lines) == (1 if count <= 5 else 8)
    assert all(len(line) <= 200 for line in lines)


def test_one_that_has_no_parts_stays_on_its_line() -> None:
    assert told("x" * 500) == [f"idle          {'x' * 500}"]


def test_a_terminal_breaks_lines_itself() -> None:
    text = "; ".join(["host-bound 1.00 ms"] * 20)
    assert [len(line) > 80 for line in told(text, width=80)].count(True) == 0
