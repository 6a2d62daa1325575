"""The expected tables of a generated recording."""

from typing import Any

import numpy as np

Column = np.ndarray[Any, np.dtype[Any]]


class Tables:
    """Collects rows as columns, with texts instead of text ids."""

    def __init__(self) -> None:
        self._parts: dict[str, list[dict[str, Column]]] = {}

    def add(self, table: str, count: int, /, **columns: Any) -> None:
        """Add rows; a single value applies to every row."""
        self._parts.setdefault(table, []).append(
            {name: _column(values, count) for name, values in columns.items()}
        )

    def with_rows(self) -> dict[str, dict[str, Column]]:
        """Return every table that has rows."""
        tables = {
            table: {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            for table, parts in self._parts.items()
        }
        return {table: c for table, c in tables.items() if len(next(iter(c.values())))}


def _column(values: Any, count: int) -> Column:
    array = np.asarray(values, object if isinstance(values, str) else None)
    return np.repeat(array[None], count) if array.ndim == 0 else array
