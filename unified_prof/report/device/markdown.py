"""Two runs of devices compared as GitHub-flavoured Markdown."""

from __future__ import annotations

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report import markdown, words
from unified_prof.report.device.formats import Shown
from unified_prof.report.device.headline import headline, remarks, title
from unified_prof.report.device.tables import tables


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison as Markdown."""
    lines = [f"## {markdown.escape(title(found))}", ""]
    lines += [f"- **warning**: {markdown.escape(warning)}" for warning in found.warnings]
    lines += [f"- **{what}**: {markdown.escape(line)}" for what, line in headline(found)]
    for heading, columns, left_out in tables(found, shown):
        lines += ["", f"### {markdown.escape(heading)}", ""]
        lines += markdown.table(columns, full_names=shown.full_names)
        if left_out:
            lines += ["", f"and {words.number(left_out)} more"]
    lines += ["", *map(markdown.escape, remarks(found))]
    return "\n".join(lines) + "\n"
