"""Plain data of records: structures of msgspec and dataclasses."""

from __future__ import annotations

from typing import Any


def asdict(record: Any) -> dict[str, Any]:
    """Return the fields of a record, and of the records in them, as plain data.

    Unlike `dataclasses.asdict`, it accepts structures and does not copy other values.
    """
    names = getattr(record, "__struct_fields__", None) or record.__dataclass_fields__
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        items = map(_plain, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if hasattr(value, "__struct_fields__") or hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    return value
