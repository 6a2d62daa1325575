"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(size_bytes: float | None) -> str:
    """Return a size in the largest unit that leaves at least 1, or a dash for the unknown."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    for unit in _BYTE_UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_BYTE_UNITS[-1]}"


def human_ms(duration_ms: float | None) -> str:
    """Return a duration to three significant digits or the microsecond, or a dash."""
    if duration_ms is None:
        return "-"
    if abs(duration_ms) >= 100:
        return f"{duration_ms:.0f} ms"
    if abs(duration_ms) >= 1:
        return f"{duration_ms:.2f} ms"
    return f"{duration_ms:.3f} ms"


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return `rows`, the first of them the heading, as lines of aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
