"""Files of the vendor's names: `<kind>_<time>.csv|json`, tables of at most a million rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from unified_prof.export.files import OutputFiles, Text

ROWS_A_FILE = 1_000_000
"""A table of more rows is cut into `<kind>_slice_<n>_<time>.csv`."""

_NEEDS_QUOTES = re.compile(r'[",\r\n]')


def cell(text: str) -> str:
    """Return a text as a cell: in quotes where it would end the cell, its own quotes doubled."""
    if _NEEDS_QUOTES.search(text):
        doubled = text.replace('"', '""')
        return f'"{doubled}"'
    return text


def lines(*columns: Sequence[str]) -> list[str]:
    """Return the lines of a block from the cells of its columns."""
    return list(map(",".join, zip(*columns, strict=True)))


class Delivery:
    """Where deliverables put their files.

    Args:
        files: Takes them.
        moment: Local time of the export, in every name.
    """

    def __init__(self, files: OutputFiles, moment: datetime) -> None:
        self._files = files
        self._time = f"{moment:%Y%m%d%H%M%S}"

    def table(
        self, kind: str, header: Sequence[str], rows: int, blocks: Iterable[Sequence[str]]
    ) -> None:
        """Write a table; none where it has no rows.

        Args:
            kind: Its name.
            header: Names of the columns.
            rows: How many lines `blocks` has.
            blocks: The lines without their ends, some thousand at a time.
        """
        if rows <= ROWS_A_FILE:
            names = [f"{kind}_{self._time}.csv"] if rows else []
        else:
            count = -(-rows // ROWS_A_FILE)
            names = [f"{kind}_slice_{number}_{self._time}.csv" for number in range(count)]
        self._files.tables(names, ",".join(header), blocks, rows_each=ROWS_A_FILE)

    @contextmanager
    def timeline(self, kind: str) -> Iterator[Timeline]:
        """Yield a list of trace events to fill."""
        with self._files.text(f"{kind}_{self._time}.json") as text:
            timeline = Timeline(text)
            text.write("[")
            yield timeline
            text.write("]")


class Timeline:
    """A JSON list of trace events under way; nothing stands around the list."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._separator = ""

    def add(self, events: Sequence[str]) -> None:
        """Append events that are JSON already."""
        if events:
            self._text.write(self._separator + ",".join(events))
            self._text.entries += len(events)
            self._separator = ","


def as_json(value: object) -> str:
    """Return a value as the vendor writes JSON: without spaces, its texts as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
