"""Breakdowns as an Arrow file."""

from __future__ import annotations

from unified_prof.analysis.load import Opened
from unified_prof.report.formats import Request
from unified_prof.report.table_file import packed


def produce(opened: Opened, request: Request) -> bytes:
    """Return the reports' breakdowns as one table; a missing report is a row of its own."""
    return packed(opened, request, "arrow")
