"""Two runs of devices compared as Markdown."""

from __future__ import annotations

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report import devices
from unified_prof.report.device_formats import Shown


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison as GitHub-flavoured Markdown."""
    return devices.as_markdown(
        found,
        by=shown.by,
        top=shown.top,
        everything=shown.everything,
        full_names=shown.full_names,
    )
