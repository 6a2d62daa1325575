"""`uprof report` of multi-rank runs: summary of the run, then single ranks on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import output
from unified_prof.pipeline import rank_runs

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.explain.api import Opened
    from unified_prof.report.formats import Format, ReportRequest

# Maximum number of ranks whose own reports follow the summary of the run.
MAX_RANK_REPORTS = 4


@contextmanager
def open_ranks(path: Path, *, quiet: bool, needed: bool = False) -> Iterator[Overview | None]:
    """Yield the ranks of a directory as one run, see `rank_runs.open_ranks`.

    Args:
        path: Directory or file.
        quiet: Show neither progress nor hints.
        needed: If True, two recordings of one rank are an error.
    """

    def note(text: str) -> None:
        if not quiet:
            output.print_message(f"uprof: hint: {text}")

    with ExitStack() as stack:
        with output.progress(quiet) as progress:
            overview = stack.enter_context(
                rank_runs.open_ranks(path, progress=progress, note=note, needed=needed)
            )
        yield overview


def produce(
    overview: Overview, shape: Format, request: ReportRequest, reports: Opened | None
) -> str:
    """Render a run, followed by the reports of its ranks if there are few."""
    from unified_prof.report import cluster_document, formats
    from unified_prof.report.figures import figures_document

    own = formats.ClusterRequest(
        top=request.top, full_names=request.full_names, width=request.width, color=request.color
    )
    if shape.name == "json":
        told = figures_document(()) | {"coverage": None}
        if reports is not None:
            told = json.loads(shape.text(reports, request))
        return output.json_text(told | {"cluster": cluster_document.run_fields(overview)})
    text = formats.produce_cluster(shape, overview, own)
    if reports is None or shape.name == "html":
        return text
    if shape.name == "csv":
        return shape.text(reports, request)
    return f"{text}\n{shape.text(reports, request)}"
