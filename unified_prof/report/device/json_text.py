"""Two runs of devices compared as JSON."""

from __future__ import annotations

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report.device.document import document
from unified_prof.report.device.formats import Shown
from unified_prof.report.documents import dumped


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return every row of the comparison, whatever of it is asked for."""
    return dumped(document(found))
