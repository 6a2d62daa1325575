"""Two runs of devices compared as text."""

from __future__ import annotations

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report import words
from unified_prof.report.device.formats import Shown
from unified_prof.report.device.headline import headline, remarks, title
from unified_prof.report.device.tables import tables
from unified_prof.report.sheet import Sheet
from unified_prof.report.terminal import Page


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison for a terminal, or for a pipe."""
    page = Page(width=shown.width, color=shown.color, full_names=shown.full_names)
    add(page, found, shown)
    return page.text()


def add(page: Sheet, found: DeviceDifference, shown: Shown) -> None:
    """Add a comparison to a page."""
    page.title(title(found))
    for warning in found.warnings:
        page.remark("warning", words.neutral(warning))
    for what, line in headline(found):
        page.fact(what, words.neutral(line))
    for heading, columns, left_out in tables(found, shown):
        page.heading(heading)
        page.table(columns)
        if left_out:
            page.left_out(left_out)
    for line in remarks(found):
        page.note(words.neutral(line))
