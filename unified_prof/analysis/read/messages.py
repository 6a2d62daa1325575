"""The collectives of a recording as messages: what kind, in which group, of how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis import collective_kinds
from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.arrays.codes import codes
from unified_prof.store.integers import MISSING

Ints = NDArray[np.int64]

ELEMENT_BYTES: Final = {
    **dict.fromkeys((0, 7, 14, 15, 16, 17), 1),  # ENUM_HCCL_DATA_TYPE: 8 bits
    **dict.fromkeys((1, 3, 8, 11), 2),
    **dict.fromkeys((2, 4, 9), 4),
    **dict.fromkeys((5, 6, 10), 8),
    12: 16,
}
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The rows of COMMUNICATION_OP in order of time; -1 is what is not known."""

    start_ns: Ints
    end_ns: Ints
    device: Ints
    group: Ints
    members: Ints
    """Ranks in the group."""
    size_bytes: Ints
    kind: NDArray[np.integer]
    kinds: list[str]
    """Canonical names, by the numbers in `kind`."""


def load(source: Source, strings: Strings) -> Messages:
    """Read the collectives."""
    columns = source.integers(
        "COMMUNICATION_OP",
        {
            "start": "startNs",
            "duration": "endNs - startNs",
            "device": "coalesce(deviceId, -1)",
            "group": "coalesce(groupName, -1)",
            "members": "coalesce(rankSize, -1)",
            "count": "coalesce(count, -1)",
            "data": "coalesce(dataType, -1)",
            "name": f"coalesce(opType, opName, {MISSING + 1} - 1)",
        },
    )
    valid = possible(columns["start"], columns["duration"])
    order = np.flatnonzero(valid)
    order = order[np.argsort(columns["start"][order], kind="stable")]
    columns = {name: values[order] for name, values in columns.items()}
    types, type_number = codes(columns["data"])
    width = np.array([ELEMENT_BYTES.get(one, 0) for one in types] or [0], np.int64)
    of_row = width[type_number]
    known = (of_row > 0) & (columns["count"] >= 0)
    names, number = codes(columns["name"])
    told = [collective_kinds.canonical(text or "") for text in strings.texts(names)]
    kinds = sorted(set(told))
    place = np.array([kinds.index(text) for text in told] or [0], np.int64)
    return Messages(
        start_ns=columns["start"],
        end_ns=columns["start"] + columns["duration"],
        device=columns["device"],
        group=columns["group"],
        members=columns["members"],
        size_bytes=np.where(known, columns["count"] * of_row, _UNKNOWN),
        kind=place[number],
        kinds=kinds,
    )
