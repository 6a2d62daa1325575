"""What one host thread hands to another through a queue (torch_npu's task queue)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.arrays.codes import codes
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import API_QUEUE

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """What went through a queue, both ends known."""

    put_thread: Ints
    put_ns: Ints
    """When the one thread began to put it in."""
    taken_thread: Ints
    begin_ns: Ints
    """When the other one began to do it."""
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.put_ns)


def load(source: Source, strings: Strings) -> Queued:
    """Read the entries of queues: those put in and taken out have one connection."""
    nothing = np.zeros(0, np.int64)
    if "PYTORCH_API" not in source.tables:
        return Queued(nothing, nothing, nothing, nothing, nothing)
    mine = source.integers("PYTORCH_API", {"type": "coalesce(type, -1)"})["type"] == API_QUEUE
    if not mine.any():
        return Queued(nothing, nothing, nothing, nothing, nothing)
    found = source.integers(
        "PYTORCH_API",
        {
            "start": "CAST(startNs AS INTEGER)",
            "end": "CAST(endNs AS INTEGER)",
            "thread": "coalesce(globalTid, -1)",
            "id": f"coalesce(connectionId, {MISSING + 1} - 1)",
            "name": "coalesce(name, -1)",
        },
    )
    with np.errstate(over="ignore"):
        mine &= possible(found["start"], found["end"] - found["start"])
    found = {name: values[mine] for name, values in found.items()}
    ids, number = codes(found["name"])
    is_put = np.array([(text or "").startswith("Enqueue") for text in strings.texts(ids)])[number]
    pairs = source.integers("CONNECTION_IDS", {"id": "id", "connection": "connectionId"})
    # An entry stands for several connections where it launched several things; the first is its.
    row = Lookup(pairs["id"]).rows(found["id"])
    known = row >= 0
    put, taken = np.flatnonzero(is_put & known), np.flatnonzero(~is_put & known)
    its = Lookup(pairs["connection"][row[put]]).rows(pairs["connection"][row[taken]])
    taken, put = taken[its >= 0], put[its[its >= 0]]
    in_order = found["start"][put] <= found["start"][taken]
    taken, put = taken[in_order], put[in_order]
    return Queued(
        put_thread=found["thread"][put],
        put_ns=found["start"][put],
        taken_thread=found["thread"][taken],
        begin_ns=found["start"][taken],
        end_ns=found["end"][taken],
    )
