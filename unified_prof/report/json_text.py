"""A report as JSON, for programs: every figure, nothing shortened."""

from __future__ import annotations

from unified_prof.analysis.load import Opened
from unified_prof.report.documents import dumped
from unified_prof.report.figures import as_document, coverage_fields, gather
from unified_prof.report.formats import Request


def produce(opened: Opened, request: Request) -> str:
    """Return the reports as one document with every breakdown; nothing is shortened."""
    document = as_document(gather(opened, request, everything=True))
    return dumped(document | {"coverage": coverage_fields(opened.coverage)})
