"""A run of many ranks for the terminal: what costs most first, and no more than a screen."""

from __future__ import annotations

from unified_prof.cluster.overview import Overview
from unified_prof.report import words
from unified_prof.report.cluster import sections
from unified_prof.report.cluster.formats import Request
from unified_prof.report.terminal import Page


def produce(overview: Overview, request: Request) -> str:
    """Return the run as text."""
    page = Page(width=request.width, color=request.color, full_names=request.full_names)
    page.title(sections.title(overview))
    for what, text in sections.headline(overview):
        page.fact(what, text)
    for line in sections.remarks(overview):
        page.remark("warning", line)
    if request.by is None and request.rank is None and request.step is None:
        page.heading("what costs the run time")
        for line in sections.verdict(overview):
            page.plain(line)
    for section in sections.tables(overview, request):
        page.heading(section.heading)
        page.table(section.columns)
        if section.left_out:
            page.note(f"and {words.number(section.left_out)} more (--top)")
    return page.text()
