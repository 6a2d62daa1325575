"""What a whole report for the terminal and the brief one at the end of a run have in common."""

from __future__ import annotations

from collections.abc import Iterable

from unified_prof.report import heading, tables, words
from unified_prof.report.figures import Figures, Selection
from unified_prof.report.sheet import Sheet


def first_to_do(page: Sheet, figures: Figures) -> None:
    """Add what to do first, if anything was found, and an empty line."""
    lines = heading.first_to_do(figures)
    for number, line in enumerate(lines):
        page.fact("" if number else "to do first", line)
    if lines:
        page.gap()


def headline(page: Sheet, figures: Figures) -> None:
    """Add the headline figures, and a table of the devices if there are any."""
    for what, text in heading.headline(figures):
        page.fact(what, text)
    if figures.summary.devices:
        page.gap()
        page.table(tables.device_columns(figures.summary.devices))


def rows(page: Sheet, selection: Selection, *, more: str) -> None:
    """Add the rows of a breakdown; `more` says where those that were left out are."""
    if selection.rows:
        page.gap()
        page.table(tables.columns(selection))
    if selection.left_out:
        page.note(f"and {words.number(selection.left_out)} more{more}")


def remarks(page: Sheet, found: Iterable[tuple[str, str]]) -> None:
    """Add what was odd, after an empty line if anything was."""
    for number, (what, why) in enumerate(found):
        if not number:
            page.gap()
        page.remark(what, why)
