"""The calls of the runtime on the host, read once for all who ask what launched something."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.framework import UNCONNECTED
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.tasks import codes
from unified_prof.arrays.lookup import NOWHERE, Lookup

Ints = NDArray[np.int64]


class HostCalls:
    """The rows of CANN_API as columns, in the file's order; MISSING is what is no number."""

    def __init__(self, source: Source) -> None:
        columns = {
            "connection": "connectionId",
            "start": "startNs",
            "end": "endNs",
            "thread": "globalTid",
            "name": "name",
            "type": "type",
        }
        found = source.integers("CANN_API", columns, narrow=("name", "type"))
        self.connection, self.thread = found["connection"], found["thread"]
        self.start_ns, self.end_ns = found["start"], found["end"]
        self.name, self.type = found["name"], found["type"]

    def __len__(self) -> int:
        return len(self.connection)

    def launching(self, connection: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the call that launched each piece of work, NOWHERE where it is not known."""
        row = self._by_connection.rows(connection)
        # The numbers that connect nothing are few, and most recordings have none of them.
        for unconnected in UNCONNECTED:
            row[connection == unconnected] = NOWHERE
        return row

    @cached_property
    def names(self) -> tuple[list[int], NDArray[np.int32]]:
        """The distinct names, and which is whose."""
        return codes(self.name)

    @cached_property
    def _by_connection(self) -> Lookup:
        return Lookup(self.connection)
