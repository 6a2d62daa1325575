"""The marks that a program set, for the table and the timeline of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.analysis.read import whole_tables
from unified_prof.export.mindstudio.recording import (
    Ints,
    Recording,
    in_order_of_text,
)
from unified_prof.vocabulary import HOST_ONLY_CONNECTION, OLD_NO_CONNECTION

TABLE = "MSTX_EVENTS"
_UNNUMBERED = (HOST_ONLY_CONNECTION, OLD_NO_CONNECTION)
"""Connections of marks that were set through the older interface, which has no numbers."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows of MSTX_EVENTS as columns, in order of time."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    category: Ints
    message: Ints
    global_tid: Ints
    domain: Ints
    connection: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def is_numbered(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether each was set through the interface whose marks have numbers."""
        return ~np.isin(self.connection, _UNNUMBERED)


def marks(recording: Recording) -> Marks:
    """Return the marks of a recording; those at impossible times are counted."""
    found = whole_tables.integers(
        recording.source,
        TABLE,
        (
            *("startNs", "endNs", "eventType", "category"),
            *("message", "globalTid", "domainId", "connectionId"),
        ),
    )
    order = np.argsort(in_order_of_text(found["startNs"]), kind="stable")
    order = order[recording.times(TABLE, found["startNs"][order], found["endNs"][order])]
    return Marks(*(values[order] for values in found.values()))


def event_names(recording: Recording, events: Ints) -> list[str]:
    """Return what kinds of marks are called."""
    names = whole_tables.names(recording.source, "ENUM_MSTX_EVENT_TYPE")
    return [names.get(event, "") for event in events.tolist()]
