"""What stands in a snapshot, which may be anything: read so that nothing odd gets further."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NONE = -1
"""A number that is not known; all those of a snapshot are 0 or more."""
ALIVE = "active_allocated"
"""State of a block that is in use."""
_INT64 = range(-(2**63), 2**63)


def whole(value: Any, missing: int) -> int:
    """Return a whole number of 64 bits, `missing` where it is none."""
    return value if type(value) is int and value in _INT64 else missing


def mappings(values: Any) -> Iterable[dict[Any, Any]]:
    """Return the mappings of a list."""
    return (one for one in values if isinstance(one, dict)) if isinstance(values, list) else ()


def stream_of(entry: dict[Any, Any]) -> int | None:
    """Return the stream of an action or a segment, None where it is not known."""
    stream = whole(entry.get("stream"), NONE)
    return stream if stream >= 0 else None


def blocks_of(segment: dict[Any, Any]) -> Iterable[tuple[dict[Any, Any], int]]:
    """Yield the blocks of a segment, each with its address, which old versions leave out."""
    at = whole(segment.get("address"), NONE)
    for block in mappings(segment.get("blocks")):
        address = whole(block.get("address"), at)
        yield block, address
        at = address + max(0, whole(block.get("size"), 0))
