"""One thing noticed about a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a note about something unusual that is no fault of the file."""

    is_problem: bool
    kind: str
    """damage, schema, incomplete, dangling, enum, interval or duplicate."""

    message: str
    count: int
    """How many rows, or 1."""


def problem(kind: str, message: str, count: int = 1) -> Finding:
    """Return something that is wrong."""
    return Finding(True, kind, message, count)


def note(kind: str, message: str, count: int = 1) -> Finding:
    """Return something that is only unusual."""
    return Finding(False, kind, message, count)
