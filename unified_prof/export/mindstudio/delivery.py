"""Files of the vendor's names: `<kind>_<time>.csv|json`, tables of at most a million rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain

from unified_prof.export.files import OutputFiles

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

    def timeline(self, kind: str, blocks: Iterable[Sequence[str]]) -> None:
        """Write a list of trace events; none where there is no event.

        Args:
            kind: Its name.
            blocks: The events as JSON, some thousand at a time.
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
    """Return a value as the vendor writes JSON: without spaces, its texts as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
