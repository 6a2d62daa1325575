"""The calls of the runtime on the host, read once for all who ask what launched something."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Source
from unified_prof.arrays.codes import recoded
from unified_prof.arrays.lookup import NOWHERE
from unified_prof.arrays.packed import BLOCK, Packed, PackedLookup, Packing
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import HOST_ONLY_CONNECTION, NO_CONNECTION, OLD_NO_CONNECTION

Ints = NDArray[np.int64]

UNCONNECTED = (NO_CONNECTION, OLD_NO_CONNECTION, HOST_ONLY_CONNECTION)
"""connectionIds that connect nothing, in files of any age."""

_COLUMNS = {
    "connection": "connectionId",
    "start": "startNs",
    "end": "endNs",
    "thread": "globalTid",
    "name": "name",
    "type": "type",
}


class HostCalls:
    """The rows of CANN_API as packed columns, in the file's order; MISSING is what is no number."""

    def __init__(self, source: Source) -> None:
        found = {name: Packing(hole=MISSING) for name in _COLUMNS}
        for piece in source.pieces("CANN_API", _COLUMNS):
            for name, values in piece.items():
                found[name].add(values)
        columns = {name: packing.done() for name, packing in found.items()}
        self.connection, self.thread = columns["connection"], columns["thread"]
        self.start_ns, self.end_ns = columns["start"], columns["end"]
        self.name, self.type = columns["name"], columns["type"]

    def __len__(self) -> int:
        return len(self.connection)

    @cached_property
    def happened(self) -> NDArray[np.bool_]:
        """Which calls can have happened when they say they did."""
        result = np.zeros(len(self), bool)
        for low in range(0, len(self), BLOCK):
            rows = slice(low, low + BLOCK)
            start = self.start_ns[rows]
            with np.errstate(over="ignore"):
                result[rows] = possible(start, self.end_ns[rows] - start)
        return result

    def launching(self, connection: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the call that launched each piece of work, NOWHERE where it is not known."""
        row = self.of_connection(connection)
        # The numbers that connect nothing are few, and most recordings have none of them.
        for unconnected in UNCONNECTED:
            row[connection == unconnected] = NOWHERE
        return row

    def of_connection(self, connection: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the call of each connection, whatever number that is, NOWHERE without one."""
        return self._by_connection.rows(connection)

    @cached_property
    def names(self) -> tuple[list[int], Packed]:
        """The distinct names, and which is whose."""
        ids = self.name.distinct().tolist()
        return ids, recoded(self.name, ids)

    @cached_property
    def _by_connection(self) -> PackedLookup:
        return PackedLookup(self.connection)
