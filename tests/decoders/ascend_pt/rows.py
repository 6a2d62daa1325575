"""Decoded rows as tests compare them: texts for ids, None for NULL, times since the start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.decoders.ascend_pt.builders import EPOCH
from tests.decoders.prof.memory_sink import StringIds
from unified_prof.base.columns import Column, Ledger
from unified_prof.decoders.ascend_pt import recording
from unified_prof.sqlite import batches

NO_NAME = 4_294_967_295
_TEXTS = {
    "PYTORCH_API": ("name", "inputDtypes", "inputShapes"),
    "PYTORCH_CALLCHAINS": ("stack",),
    "MEMORY_RECORD": ("component",),
    "OP_MEMORY": ("name",),
}
_TIMES = (
    *("startNs", "endNs", "timestamp"),
    *("allocationTime", "releaseTime", "activeReleaseTime"),
)

Row = dict[str, Any]


class RowSink:
    """Collects rows as a database would return them."""

    def __init__(self) -> None:
        self.strings = StringIds()
        self.anomalies = Ledger()
        self.rows: dict[str, list[Row]] = {}

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        sources, count = batches.read(columns, table=table)
        parts = {name: source.part(0, count) for name, source in sources.items()}
        self.rows.setdefault(table, []).extend(
            {name: values[row] for name, values in parts.items()} for row in range(count)
        )
        return count

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        self.anomalies.add(name, detail, count)

    def cases(self, anomaly: str) -> int:
        """Return how often something was counted."""
        return self.anomalies[anomaly].cases if anomaly in self.anomalies else 0

    def table(self, name: str, *columns: str) -> list[Any]:
        """Return the sorted rows; values if one column is named, otherwise tuples."""
        texts = {number: text for text, number in self.strings.ids.items()}

        def value(row: Row, column: str) -> Any:
            found = row.get(column)
            if found is not None and column in _TEXTS.get(name, ()):
                return None if found == NO_NAME else texts[found]
            if found is not None and column in _TIMES:
                return int(found) - EPOCH
            return found

        rows = [tuple(value(row, column) for column in columns) for row in self.rows.get(name, [])]
        rows.sort(key=lambda row: tuple((cell is not None, str(type(cell)), cell) for cell in row))
        return [row[0] for row in rows] if len(columns) == 1 else rows

    def links(self) -> dict[str, list[int]]:
        """Return the connection numbers of each named range that has any."""
        by_id: dict[int, list[int]] = {}
        for row in self.rows.get("CONNECTION_IDS", []):
            by_id.setdefault(row["id"], []).append(row["connectionId"])
        result: dict[str, list[int]] = {}
        for name, connection in self.table("PYTORCH_API", "name", "connectionId"):
            if connection is not None:
                result.setdefault(name, []).extend(sorted(by_id[connection]))
        return result


def decode(folder: Path) -> RowSink:
    sink = RowSink()
    recording.decode(folder, sink)
    return sink
