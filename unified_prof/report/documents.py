"""Plain data as JSON text: one spelling for every command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache

_STEP = "  "


def dumped(document: object) -> str:
    """Return a document as JSON; a number that is not finite is a bug, not a NaN.

    It is what `json.dumps` makes of it with an indent of two, which Python does value by value;
    what holds nothing that is nested, as rows do, is left to C here, in a fifth of the time.
    """
    return "".join(_written(document, "\n")) + "\n"


def _written(value: object, line: str) -> Iterator[str]:
    """Yield the text of a value whose closing bracket stands at `line`, the break before it."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        if not _nests(value.values()):
            yield _flat(value, line)
            return
        between = "{" + line + _STEP
        for key, one in value.items():
            yield f"{between}{json.dumps(key)}: "
            yield from _written(one, line + _STEP)
            between = "," + line + _STEP
        yield line + "}"
    elif isinstance(value, list | tuple):
        if not _nests(value):
            yield _flat(value, line)
            return
        between = "[" + line + _STEP
        for one in value:
            yield between
            yield from _written(one, line + _STEP)
            between = "," + line + _STEP
        yield line + "]"
    else:
        # Breaks of lines stand between values alone: within a text they are escaped.
        yield json.dumps(value, indent=2, allow_nan=False).replace("\n", line)


def _nests(values: Iterable[object]) -> bool:
    return any(isinstance(one, dict | list | tuple) for one in values)


def _flat(value: dict[str, object] | list[object] | tuple[object, ...], line: str) -> str:
    text = _encoder(line + _STEP).encode(value)
    return f"{text[0]}{line}{_STEP}{text[1:-1]}{line}{text[-1]}" if value else text


@cache
def _encoder(line: str) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, separators=("," + line, ": "))
