"""The tables of one session of a recording, by their plain names.

A table's name ends in the session's uuid (`rocpd_region_00006e7b_...`), and views of the plain
names join the sessions of a file. Views are not read: ids are a session's own, and so each session
is read from its tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from unified_prof.columns import Cells, Sink, Tables
from unified_prof.decoders.gpu.numbers import MISSING

PREFIX = "rocpd_"
_SESSION = re.compile(r"rocpd_metadata(.*)", re.DOTALL)
_READ = frozenset(
    "metadata string info_node info_process info_thread info_agent info_queue info_stream "
    "info_kernel_symbol info_code_object info_pmc event region kernel_dispatch memory_copy "
    "memory_allocate arg track pmc_event sample".split()
)


def sessions_of(tables: Tables) -> list[str]:
    """Return what the names of each session's tables end in."""
    return [match[1] for name in tables.names if (match := _SESSION.fullmatch(name))]


def tell_unread(tables: Tables, sessions: list[str], sink: Sink) -> None:
    """Tell of tables and values that nothing was made of."""
    unread = set()
    for name in tables.names:
        for session in sorted(sessions, key=len, reverse=True):
            if name.startswith(PREFIX) and name.endswith(session):
                plain = name.removesuffix(session).removeprefix(PREFIX)
                if plain not in _READ and next(iter(tables.slices(name, {})), None) is not None:
                    unread.add(PREFIX + plain)
                break
    if unread:
        sink.anomaly("table_not_read", len(unread), ", ".join(sorted(unread))[:2000])
    for place, count in tables.unreadable.items():
        sink.anomaly("unreadable_number", count, place)


class SessionTables:
    """Tables of the session whose names end in `session`."""

    def __init__(self, tables: Tables, session: str) -> None:
        self._tables = tables
        self._session = session

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        texts: Sequence[str] = (),
        *,
        reals: Sequence[str] = (),
        only: tuple[str, Collection[int]] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of a table by its plain name, as `columns.Tables.slices` does."""
        return self._tables.slices(
            f"{PREFIX}{table}{self._session}", numbers, reals=reals, texts=texts, only=only
        )

    def numbers(self, table: str, column: str) -> dict[int, int]:
        """Return a column of numbers, by the number of the row."""
        found: dict[int, int] = {}
        for cells in self.slices(table, {"id": MISSING, column: MISSING}):
            found.update(zip(cells["id"].tolist(), cells[column].tolist(), strict=True))
        return found

    def texts(self, table: str, column: str) -> dict[int, str]:
        """Return a column of texts, by the number of the row."""
        found: dict[int, str] = {}
        for cells in self.slices(table, {"id": MISSING}, [column]):
            found.update(
                (number, text)
                for number, text in zip(cells["id"].tolist(), cells[column], strict=True)
                if text is not None
            )
        return found
