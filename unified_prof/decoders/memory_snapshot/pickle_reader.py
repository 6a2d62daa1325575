"""Reads pickles that hold plain data, and nothing else.

A pickle is a program: it may import anything and call it. A snapshot needs none of that. So the
instructions that name a class, call something or ask for memory by a number alone are taken away
from the unpickler, and what is left can build containers, texts, numbers and None. It is the
one written in Python, as the other one's table of memorised objects is as long as the file says.

What stands in a snapshot, which may be anything: read so that nothing odd gets further.
"""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unified_prof.errors import RawFormatError

_PLAIN = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP"),
    *("NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
)
_CALLING = {
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.INST, pickle.OBJ),
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.PERSID, pickle.BINPERSID),
}
_CODES = frozenset(getattr(pickle, name)[0] for name in _PLAIN)
_Unpickler: Any = pickle._Unpickler


class _RefusedError(Exception):
    """The pickle asks for more than plain data."""


def _refuse(code: int) -> Any:
    def refuse(_: Any) -> None:
        raise _RefusedError("a class or a call" if bytes([code]) in _CALLING else hex(code))

    return refuse


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    dispatch = {  # noqa: RUF012
        code: load if code in _CODES else _refuse(code)
        for code, load in _Unpickler.dispatch.items()
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise _RefusedError(f"{module_name}.{global_name}")


def load(path: Path) -> Any:
    """Return the plain data in a pickle.

    Raises:
        RawFormatError: it cannot be read, is damaged, or asks for more than plain data.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return _PlainUnpickler(held, encoding="utf-8", errors="backslashreplace").load()
    except _RefusedError as err:
        raise RawFormatError(
            f"{path} is no snapshot of memory: as a pickle it asks for {err}, and a snapshot "
            "holds plain data",
            hint="nothing of it was run",
            slug="not-a-recording",
        ) from None
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    except MemoryError as err:
        raise RawFormatError(
            f"{path}: memory does not suffice to read it", slug="out-of-memory"
        ) from err
    # A damaged pickle raises what its instructions run into; none of them runs code of others.
    except Exception as err:
        said = f"{type(err).__name__}: {err}"[:200]
        raise RawFormatError(
            f"{path} is damaged or cut off as a pickle: {said}", slug="damaged-recording"
        ) from err


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
