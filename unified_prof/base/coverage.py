"""Counts how much of a recording was decoded: the rows of UPROF_COVERAGE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unified_prof.base.columns import Cells, CoveredPart, Sink, Tables
from unified_prof.base.text import EXPECTED_ANOMALIES
from unified_prof.errors import UprofError

TABLE = "UPROF_COVERAGE"
_MAX_NAMED = 3  # Kinds that a sentence names, the largest first.


class Coverage:
    """Collects the kinds of data in a recording."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], tuple[int, int, int]] = {}

    def add(
        self, kind: str, unit: str, total: int, *, skipped: int = 0, without_table: int = 0
    ) -> None:
        """Add data of a kind; all of it is decoded except `skipped` and `without_table`."""
        before = self._parts.get((kind, unit), (0, 0, 0))
        skipped = min(skipped, total - without_table)
        self._parts[kind, unit] = (
            before[0] + total,
            before[1] + skipped,
            before[2] + without_table,
        )

    def add_events(self, counts: Mapping[str, int], skipped: Mapping[str, int]) -> None:
        """Add events by kind."""
        for kind, count in counts.items():
            self.add(kind, "events", count, skipped=skipped.get(kind, 0))

    def write(self, sink: Sink) -> None:
        """Write all kinds of which the recording has data."""
        parts = [
            CoveredPart(*key, total, total - skipped - without, skipped, without)
            for key, (total, skipped, without) in sorted(self._parts.items())
            if total
        ]
        if parts:
            columns = zip(*parts, strict=True)
            sink.write(TABLE, dict(zip(CoveredPart._fields, map(list, columns), strict=True)))


def coverage_text(parts: Sequence[CoveredPart]) -> str:
    """Return the share that was decoded, and the largest kinds that were not."""
    shares = []
    for unit in sorted({part.unit for part in parts}):
        of_unit = [part for part in parts if part.unit == unit]
        total, decoded = sum(p.total for p in of_unit), sum(p.decoded for p in of_unit)
        share = decoded * 1000 // total / 10 if total else 100.0
        shares.append(f"{share:g} % of {total:,} {unit}")
    text = ", ".join(shares)
    for label, lost in (
        ("skipped", [(part.skipped, part) for part in parts]),
        ("without a table", [(part.without_table, part) for part in parts]),
    ):
        found = sorted((pair for pair in lost if pair[0]), key=lambda pair: -pair[0])
        named = ", ".join(f"{p.kind} ({size:,} {p.unit})" for size, p in found[:_MAX_NAMED])
        more = f" and {len(found) - _MAX_NAMED} more kinds" if found[_MAX_NAMED:] else ""
        text += f"; {label}: {named}{more}" if found else ""
    return text


class CountedTables(Tables):
    """Tables of another tool, with the number of rows that were read from each."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._read: dict[str, dict[Any, int]] = {}

    @property
    def names(self) -> Sequence[str]:
        """Names of the tables."""
        return self._tables.names

    @property
    def unreadable(self) -> Mapping[str, int]:
        """Number of values with the wrong type so far, by `TABLE.column`."""
        return self._tables.unreadable

    def columns(self, table: str) -> Any:
        """Return the column names of `table`; empty if it does not exist."""
        return self._tables.columns(table)

    def count(self, table: str) -> int:
        """Return the number of rows of `table`."""
        return self._tables.count(table)

    def slices(
        self, table: str, numbers: Mapping[str, int], *, only: Any = None, **columns: Any
    ) -> Iterator[Cells]:
        """Yield the rows of `table`; see `columns.Tables.slices`."""
        chosen = None if only is None else (only[0], only[1] and frozenset(only[1]))
        names = (*numbers, *columns.get("reals", ()), *columns.get("texts", ()))
        read, rows = self._read.setdefault(table, {}), 0
        read.setdefault(chosen, 0)
        for cells in self._tables.slices(table, numbers, only=only, **columns):
            rows += len(cells[names[0]]) if names else 0
            read[chosen] = max(read[chosen], rows)
            yield cells

    def write_coverage(
        self, coverage: Coverage, sink: Sink, is_descriptive: Iterable[str] = ()
    ) -> None:
        """Add the rows of all tables, and count tables with rows that were not read."""
        unread = []
        for table in self.names:
            try:
                total = self.count(table)
            except UprofError as err:
                sink.anomaly("table_not_counted", 1, str(err))
                continue
            read = self._read.get(table, {})
            if table.startswith(tuple(is_descriptive)):
                coverage.add(table, "rows", total)
            elif not read:
                coverage.add(table, "rows", total, without_table=total)
                unread += [table] if total else []
            else:
                found = read[None] if None in read else sum(read.values())
                coverage.add(table, "rows", total, skipped=max(0, total - found))
        if unread:
            sink.anomaly("table_not_read", len(unread), ", ".join(sorted(unread))[:2000])
        for place, count in self.unreadable.items():
            sink.anomaly("unreadable_number", count, place)


def anomaly_lines(anomalies: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Yield a line for each kind of anomaly of a conversion that needs attention."""
    for name, (count, detail) in sorted(anomalies.items()):
        if name not in EXPECTED_ANOMALIES:
            yield f"  anomaly {name}: {count:,}" + (f" ({detail})" if detail else "")


def anomaly_fields(anomalies: Mapping[str, tuple[int, str]]) -> dict[str, dict[str, Any]]:
    """Return the anomalies of a conversion as plain data, sorted by name."""
    return {name: {"count": n, "detail": detail} for name, (n, detail) in sorted(anomalies.items())}
