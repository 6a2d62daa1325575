"""A run of many ranks as GitHub-flavoured Markdown."""

from __future__ import annotations

from unified_prof.cluster.overview import Overview
from unified_prof.report import markdown, words
from unified_prof.report.cluster import sections
from unified_prof.report.cluster.formats import Request


def produce(overview: Overview, request: Request) -> str:
    """Return the run as Markdown."""
    lines = [f"## {markdown.escape(sections.title(overview))}", ""]
    lines += [
        f"- **{what}**: {markdown.escape(text)}" for what, text in sections.headline(overview)
    ]
    lines += [f"- **warning**: {markdown.escape(line)}" for line in sections.remarks(overview)]
    if request.by is None and request.rank is None and request.step is None:
        lines += ["", "### What costs the run time", ""]
        lines += [f"- {markdown.escape(line)}" for line in sections.verdict(overview)]
    for section in sections.tables(overview, request):
        lines += ["", f"### {section.heading.capitalize()}", ""]
        lines += markdown.table(section.columns, full_names=request.full_names)
        if section.left_out:
            lines += ["", f"and {words.number(section.left_out)} more"]
    return "\n".join(lines) + "\n"
