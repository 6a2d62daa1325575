"""Two runs of devices compared as CSV: every row of every breakdown, for spreadsheets."""

from __future__ import annotations

import csv
from io import StringIO

from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.report.csv_text import cell
from unified_prof.report.device.formats import Shown
from unified_prof.report.device.rows import FIELDS, rows


def produce(found: DeviceDifference, shown: Shown) -> str:
    """Return the comparison as one table; an empty cell is what a side has none of."""
    output = StringIO()
    writer = csv.DictWriter(output, FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in rows(found):
        writer.writerow({name: cell(value) for name, value in row.items()})
    return output.getvalue()
