"""`uprof export` of stacks: what weighs what in a report, for tools that draw flame graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.kinds import MEASURES, Place
from unified_prof.analysis.load import Opened
from unified_prof.analysis.views.stacks import Frame, Stacks, below, joined
from unified_prof.errors import UsageError
from unified_prof.export.layouts import Layout
from unified_prof.report.figures import answers
from unified_prof.store.atomic import refuse_existing, replacing


@dataclass(frozen=True, slots=True)
class Part:
    """One measure of a file that was written."""

    measure: str
    unit: str
    stacks: int
    total: int


def export_stacks(
    opened: Opened,
    output: Path,
    layout: Layout,
    *,
    measure: str | None = None,
    by: Place | None = None,
    force: bool = False,
) -> list[Part]:
    """Write the stacks of reports as one file; of several, each under a frame of its own.

    Args:
        opened: the reports.
        output: the file.
        layout: one of stacks.
        measure: the only one; None: all that there are, or the first where a file holds one.
        by: what stands above operations; None: modules, else lines, else nothing.
        force: whether the file may be replaced.

    Raises:
        UsageError: no report has the measure, or what is to stand above operations.
        StoreError: no report can be read to its end.
        OutputError: the file exists or cannot be written.
    """
    refuse_existing(output, overwrite=force)
    several = len(opened.analyses) > 1

    def ask(analysis: Analysis) -> dict[str, Stacks]:
        wanted = [one for one in analysis.measures if measure in (None, one)]
        if measure is None and not layout.several:
            wanted = wanted[:1]
        found = {one: analysis.stacks(one, by) for one in wanted}
        if several:
            label = analysis.path.replace(f"{opened.path}/", "")
            found = {one: below(Frame(label, "report"), own) for one, own in found.items()}
        return found

    found = answers(opened, ask)
    names = [one for one in MEASURES if any(one in own for own in found)]
    if not names:
        have = dict.fromkeys(one for analysis in opened.analyses for one in analysis.measures)
        raise UsageError(
            f"{opened.path} has no stacks of {measure or 'anything'}: that was not measured",
            hint=f"it has: {', '.join(have)}" if have else "see `uprof report`",
            slug="no-stacks",
        )
    if not layout.several:
        names = names[:1]
    parts = [
        (
            f"{opened.path.name}: {MEASURES[name].title}",
            joined(own[name] for own in found if name in own),
        )
        for name in names
    ]
    with replacing(output, overwrite=force) as partial:
        layout.write_stacks(partial, parts)
    return [
        Part(one.measure.name, one.measure.unit, len(one.samples), one.total) for _, one in parts
    ]
