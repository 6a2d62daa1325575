"""Two runs of devices compared as text."""

from __future__ import annotations

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report import devices
from unified_prof.report.device_formats import Shown


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison for a terminal, or for a pipe."""
    return devices.text(
        found,
        by=shown.by,
        top=shown.top,
        everything=shown.everything,
        width=shown.width,
        color=shown.color,
        full_names=shown.full_names,
    )
