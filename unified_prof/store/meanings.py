"""Values that older revisions of the msprof schema store otherwise than the newest one.

Two things changed their meaning under an unchanged column name and can be converted exactly:
until 1.0.0_20240521 the HCCL type columns held ids of STRING_IDS, since then ids of the
ENUM_HCCL_* tables; until 1.0.0_20241008 HOST_INFO.hostUid was a number, since then a text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from unified_prof.columns import Strings
from unified_prof.models import catalogue
from unified_prof.models.catalogue import MSPROF
from unified_prof.store.batches import Constant, Numbers, Plain, Source, from_sequence

_ENUM_IDS_SINCE = "1.0.0_20240521"
_TEXT_UID_SINCE = "1.0.0_20241008"

HCCL_TYPES = {
    ("COMMUNICATION_TASK_INFO", "rdmaType"): "ENUM_HCCL_RDMA_TYPE",
    ("COMMUNICATION_TASK_INFO", "transportType"): "ENUM_HCCL_TRANSPORT_TYPE",
    ("COMMUNICATION_TASK_INFO", "dataType"): "ENUM_HCCL_DATA_TYPE",
    ("COMMUNICATION_TASK_INFO", "linkType"): "ENUM_HCCL_LINK_TYPE",
    ("COMMUNICATION_OP", "dataType"): "ENUM_HCCL_DATA_TYPE",
}
"""(table, column) -> the enum whose ids the column holds."""


@cache
def enum_names(enum: str) -> dict[int, str]:
    """Return the newest contents of an enum table."""
    rows: Any = catalogue.load(MSPROF, "latest").rows[enum]
    return dict(rows)


def to_old(revision: str, table: str, column: str, source: Source, strings: Strings) -> Source:
    """Return a column of newest values as a file of `revision` stores them."""
    if (enum := HCCL_TYPES.get((table, column))) and _is_before(revision, _ENUM_IDS_SINCE):
        names = enum_names(enum)
        return _mapped(source, lambda value: strings.intern(names.get(value, str(value))))
    if (table, column) == ("HOST_INFO", "hostUid") and _is_before(revision, _TEXT_UID_SINCE):
        return _mapped(source, _number)
    return source


def _is_before(revision: str, other: str) -> bool:
    order = catalogue.REVISIONS[MSPROF]
    return order.index(revision) < order.index(other)


def _number(value: Any) -> Plain:
    """Return a host's id as the number it is; what is none cannot be stored and is NULL."""
    try:
        number = int(value)
    except ValueError:
        return None
    return int(np.uint64(number % 2**64).astype(np.int64))


def _mapped(source: Source, convert: Callable[[Any], Plain]) -> Source:
    """Apply `convert` to every distinct value but NULL."""
    if isinstance(source, Constant):
        return Constant(None if source.value is None else convert(source.value))
    values = source.array.tolist() if isinstance(source, Numbers) else source.part(0, len(source))
    known: dict[Any, Plain] = {
        value: convert(value) for value in dict.fromkeys(values) if value is not None
    }
    return from_sequence([known.get(value) for value in values])
