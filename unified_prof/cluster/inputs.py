"""What the ranks of a run were read from, and what could not be."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Where:
    """Where a rank's columns come from."""

    file: str | None = None
    partial: str | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A recording that could not be read."""

    file: str
    why: str
    rank: int | None = None
    """None: it does not say whose it is."""
    hint: str | None = field(default=None, compare=False)
    """What to do about that; a summary does not keep it."""
