"""Breakdowns, findings, roofline, critical path and what-if estimates of a report."""
