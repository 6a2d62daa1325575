"""One rank's database, open: what every part of its partial is read from."""

from __future__ import annotations

from unified_prof.analysis.read import groups as read_groups
from unified_prof.analysis.read.source import Findings
from unified_prof.analysis.read.strings import Strings
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.store.reader import Report


class Database:
    """An msprof database of any revision, and what of it several parts look at."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.strings = Strings(report)
        self.findings = Findings()
        self.run = self.texts("UPROF_RUN")
        self.is_gpu = self.run.get("device_kind") == "gpu" or "UPROF_GPU_TASKS" in report.tables
        self.groups = read_groups.load(report)
        self.tasks = Tasks(report, self.strings, self.findings)

    def texts(self, table: str) -> dict[str, str]:
        """Return a table of names and values."""
        if table not in self.report.tables:
            return {}
        rows = self.report.rows(f"SELECT name, value FROM {table}")
        return {str(name): str(value) for name, value in rows if value is not None}
