"""Writer of msprof's tables and timelines, and msprof's number formats.

Files are named `<kind>_<time>.csv|json`. Times are whole nanoseconds, written exactly as
microseconds with three decimals. Ratios and averages are rounded; msprof uses three rounding rules,
each implemented by one function here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING
from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.base.text import guard_formula, printable
from unified_prof.export.files import OutputFiles

# Larger tables are split into `<kind>_slice_<n>_<time>.csv`.
ROWS_A_FILE = 1_000_000

_NEEDS_QUOTES = re.compile(r'[",]')


def cell(text: str, *, raw: bool = False) -> str:
    """Return a text as a cell, quoted if needed and safe from execution as a formula.

    Differs from msprof's files only for names that start with =, +, - or @ and for control
    characters other than tabs; with `raw`, it does not differ.
    """
    if not raw:
        text = guard_formula("\t".join(map(printable, text.split("\t"))))
    if _NEEDS_QUOTES.search(text):
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    return text


def lines(*columns: Sequence[str]) -> list[str]:
    """Return the lines of a block from the cells of its columns."""
    return list(map(",".join, zip(*columns, strict=True)))


class Delivery:
    """Writes the files of a text export.

    Args:
        files: Output files.
        moment: Local time of the export, part of every file name.
    """

    def __init__(self, files: OutputFiles, moment: datetime) -> None:
        self._files = files
        self._time = f"{moment:%Y%m%d%H%M%S}"

    def table(
        self, kind: str, header: Sequence[str], rows: int, blocks: Iterable[Sequence[str]]
    ) -> None:
        """Write a table; no file if it has no rows.

        Args:
            kind: Name of the table.
            header: Names of the columns.
            rows: Number of lines in `blocks`.
            blocks: Lines without line ends, in blocks of any size.
        """
        if rows <= ROWS_A_FILE:
            names = [f"{kind}_{self._time}.csv"] if rows else []
        else:
            count = -(-rows // ROWS_A_FILE)
            names = [f"{kind}_slice_{number}_{self._time}.csv" for number in range(count)]
        self._files.tables(names, ",".join(header), blocks, rows_each=ROWS_A_FILE)

    def timeline(self, kind: str, blocks: Iterable[Sequence[str]]) -> None:
        """Write a list of trace events; no file if there are no events.

        Args:
            kind: Name of the timeline.
            blocks: Events as JSON texts, in blocks of any size.
        """
        filled = (events for events in blocks if events)
        first = next(filled, None)
        if first is None:
            return
        with self._files.text(f"{kind}_{self._time}.json") as text:
            separator = "["
            for events in chain([first], filled):
                text.write(separator + ",".join(events))
                text.entries += len(events)
                separator = ","
            text.write("]")


def as_json(value: object) -> str:
    """Return a value as JSON in msprof's style: no spaces, no escapes of non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_MILLI = 1000
# Beyond this value a float64 has no exact thousandths.
_EXACT_THOUSANDTHS = float(1 << 52)
_EXACT_INTEGERS = 1 << 53
_SQLITE_EXPONENT_FROM = 1e15


def microseconds(ns: NDArray[np.int64]) -> list[str]:
    """Return times or durations as microseconds with exactly three decimals.

    Missing and negative values become N/A.
    """
    whole, rest = np.divmod(ns, _MILLI)
    return [
        f"{us}.{thousandth:03d}" if us >= 0 else NOT_AVAILABLE
        for us, thousandth in zip(whole.tolist(), rest.tolist(), strict=True)
    ]


def tabbed(cells: Sequence[str]) -> list[str]:
    """Return times with a trailing tab, which keeps spreadsheets from rounding them."""
    return [f"{cell}\t" for cell in cells]


def as_doubles(ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return times in microseconds as the nearest float64, as if parsed from their text."""
    whole, rest = np.divmod(ns, _MILLI)
    # Numbers beyond 2**53 would be rounded before the division. Their whole microseconds are exact,
    # and adding the thousandths rounds once.
    large = whole.astype(np.float64) + rest.astype(np.float64) / _MILLI
    return np.where(ns < _EXACT_INTEGERS, ns.astype(np.float64) / _MILLI, large)


def integers(values: NDArray[np.int64]) -> list[str]:
    """Return integers as texts; missing values become N/A."""
    return [NOT_AVAILABLE if value == MISSING else str(value) for value in values.tolist()]


def trimmed(value: float) -> str:
    """Return a number with at most three decimals and no trailing zeros: `6`, `11.33`."""
    text = f"{value:.3f}"
    return text.rstrip("0").rstrip(".")


def half_away(value: float, places: int = 3) -> float:
    """Round like C after scaling: multiply, round halves away from zero, divide."""
    scale = float(10**places)
    scaled = abs(value) * scale
    below = math.floor(scaled)
    rounded = below + (scaled - below >= 0.5)
    return math.copysign(rounded / scale, value)


def thousandths(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round to whole thousandths as SQLite's `round(x, 3)`: exact halves go away from zero.

    Values must be below 2**52 thousandths. Scaling a float64 has an error below one unit in the
    last place, so only values that close to a half are checked individually.
    """
    scaled = np.abs(values) * _MILLI
    below = np.floor(scaled)
    above_half = scaled - below - 0.5
    result = below + (above_half >= 0)
    close = np.abs(above_half) <= np.maximum(np.spacing(scaled), 1e-12)
    for place in np.flatnonzero(close).tolist():
        numerator, denominator = abs(float(values[place])).as_integer_ratio()
        quotient, rest = divmod(numerator * _MILLI, denominator)
        result[place] = quotient + (2 * rest >= denominator)
    return np.asarray(np.copysign(result, values).astype(np.int64))


def rounded(values: NDArray[np.float64]) -> list[str]:
    """Return numbers as SQLite prints `round(x, 3)`: `0.0`, `1.412`; NaN as N/A."""
    known = np.isfinite(values)
    large = known & (np.abs(values) >= _EXACT_THOUSANDTHS / _MILLI)
    plain = known & ~large
    whole_thousandths = thousandths(np.where(plain, values, 0.0))
    distinct, places = np.unique(whole_thousandths, return_inverse=True)
    texts = [_of_thousandths(one) for one in distinct.tolist()]
    cells = [texts[place] for place in places.reshape(-1).tolist()]
    for place in np.flatnonzero(~plain).tolist():
        cells[place] = as_sqlite(float(values[place])) if known[place] else NOT_AVAILABLE
    return cells


def as_sqlite(value: float) -> str:
    """Return a float64 as SQLite's text: 15 digits, always with a decimal point."""
    if abs(value) < _SQLITE_EXPONENT_FROM:
        text = f"{value:.15g}"
        if "e" not in text:
            return text if "." in text else f"{text}.0"
    mantissa, _, exponent = f"{value:.14e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent):+03d}"


def cycles(values: NDArray[np.float64]) -> list[str]:
    """Return counts, without decimals if they are whole; NaN as N/A."""
    return [
        NOT_AVAILABLE
        if math.isnan(value)
        else str(int(value))
        if value.is_integer()
        else f"{value}"
        for value in values.tolist()
    ]


def kilobytes(size_bytes: NDArray[np.int64]) -> list[str]:
    """Return bytes as KB, rounded to three decimals; exact halves to even, as in Python."""
    distinct, places = np.unique(size_bytes, return_inverse=True)
    texts = [
        NOT_AVAILABLE if one == MISSING else str(round(one / 1024, 3)) for one in distinct.tolist()
    ]
    return [texts[place] for place in places.reshape(-1).tolist()]


def _of_thousandths(value: int) -> str:
    sign, value = ("-", -value) if value < 0 else ("", value)
    decimals = f"{value % _MILLI:03d}".rstrip("0") or "0"
    return f"{sign}{value // _MILLI}.{decimals}"
