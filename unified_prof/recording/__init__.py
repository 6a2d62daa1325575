"""Report files to numbers: totals, breakdowns, comparison, gate."""
