"""Counts what goes into a report on its way to the writer."""

from __future__ import annotations

from collections.abc import Mapping

from unified_prof.columns import Column, Sink, Strings
from unified_prof.ledger import Ledger


class Tally(Sink):
    """Passes everything on to another sink and counts rows and anomalies."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.rows: dict[str, int] = {}
        """Rows by table, only tables that have some."""
        self.anomalies = Ledger()

    @property
    def strings(self) -> Strings:
        """The string pool of the sink behind."""
        return self._sink.strings

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Pass on and count; see `columns.Sink.write`."""
        count = self._sink.write(table, columns)
        if count:
            self.rows[table] = self.rows.get(table, 0) + count
        return count

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Pass on and count; see `columns.Sink.anomaly`."""
        self.anomalies.add(name, detail, count)
        self._sink.anomaly(name, count, detail)
