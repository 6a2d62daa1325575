"""What SQLite likes best to have in a column (sqlite.org/datatype3.html)."""

from __future__ import annotations

from enum import Enum, auto


class Affinity(Enum):
    """To what SQLite converts a value before it stores it."""

    NUMERIC = auto()
    """Whole numbers are integers; INTEGER is the same."""
    REAL = auto()
    TEXT = auto()
    NONE = auto()


def affinity_of(declared: str) -> Affinity:
    """Return the affinity of a column from the type it is declared with."""
    declared = declared.upper()
    if "INT" in declared:
        return Affinity.NUMERIC
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if not declared or "BLOB" in declared:
        return Affinity.NONE
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC
