"""Reads pickles of plain data only, in time and memory proportional to the file.

A pickle is a program that can import and call arbitrary code. Memory snapshots do not need this, so
opcodes that name a class, call a function or allocate memory for a given size are rejected; the
others build containers, strings, numbers and None. The Python implementation of the unpickler is
used, because in the C implementation an index in the file can make the memo arbitrarily large, and
long calls delay signals.

Also converts values of a snapshot, which may have any type, to the expected type.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unified_prof.decoders import compression
from unified_prof.errors import RawFormatError

_PLAIN_OPCODES = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1"
    " LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES"
    " BINBYTES8 BINSTRING SHORT_BINSTRING EMPTY_LIST APPEND APPENDS LIST EMPTY_DICT DICT SETITEM"
    " SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT"
    " MEMOIZE"
).split()
# Opcodes that create an object or a memo entry, each of which takes far more memory than bytes.
_ALLOCATING_OPCODES = (
    "MARK EMPTY_LIST LIST EMPTY_DICT DICT TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE"
).split()
_CALLING_OPCODES = {
    getattr(pickle, name)
    for name in (
        "GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID"
    ).split()
}
# Minimum bytes of a file for each allocating opcode: a dictionary of three short values has 4.
_BYTES_PER_ALLOCATION = 3
_FREE_ALLOCATIONS = 10_000  # Allocating opcodes that a file of any size may have.
# Maximum number of open marks, that is, of containers inside one another.
_MAX_DEPTH = 1_000
_PICKLE = b"\x80"
_Unpickler: Any = pickle._Unpickler
_Load = Callable[[Any], None]


class _RefusedError(Exception):
    """The pickle contains more than plain data; the message says what."""


class _PlainUnpickler(_Unpickler):  # type: ignore[misc]
    """Builds plain data; dictionary keys must be strings or integers, which are cheap to hash."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", errors="backslashreplace")
        self.allocations_left = _FREE_ALLOCATIONS + len(content) // _BYTES_PER_ALLOCATION

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise _RefusedError(f"{module_name}.{global_name}")

    def load_items(self) -> None:
        self.set_items(self.pop_mark())

    def load_item(self) -> None:
        value = self.stack.pop()
        self.set_items([self.stack.pop(), value])

    def load_mapping(self) -> None:
        items = self.pop_mark()
        self.append({})
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dictionary on top of the stack."""
        keys, target = items[::2], self.stack[-1]
        if type(target) is not dict or not all(type(key) in (str, int) for key in keys):
            raise _RefusedError("a dictionary key that is neither a string nor an integer")
        target.update(zip(keys, items[1::2], strict=True))


def _refusing(code: int) -> _Load:
    def refuse(_: Any) -> None:
        raise _RefusedError("a class or a call" if bytes([code]) in _CALLING_OPCODES else hex(code))

    return refuse


def _counting(load: _Load) -> _Load:
    def count(unpickler: Any) -> None:
        unpickler.allocations_left -= 1
        if unpickler.allocations_left < 0 or len(unpickler.metastack) > _MAX_DEPTH:
            raise _RefusedError("more objects than a file of this size can have")
        load(unpickler)

    return count


def _dispatch() -> dict[int, _Load]:
    loads: dict[int, _Load] = dict(_Unpickler.dispatch)
    loads[pickle.SETITEM[0]] = _PlainUnpickler.load_item
    loads[pickle.SETITEMS[0]] = _PlainUnpickler.load_items
    loads[pickle.DICT[0]] = _PlainUnpickler.load_mapping
    for name in _ALLOCATING_OPCODES:
        code = getattr(pickle, name)[0]
        loads[code] = _counting(loads[code])
    plain = {getattr(pickle, name)[0] for name in _PLAIN_OPCODES}
    return {code: load if code in plain else _refusing(code) for code, load in loads.items()}


_PlainUnpickler.dispatch = _dispatch()


def load(path: Path) -> Any:
    """Return the plain data of a pickle or a JSON file, compressed or not.

    Raises RawFormatError if the file cannot be read, is damaged, or contains more than plain data.
    """
    if not (compression.head_of(path) or b"").startswith(_PICKLE):
        return compression.read_json(path)
    content = compression.read_content(path)
    try:
        return _PlainUnpickler(content).load()
    except _RefusedError as err:
        raise RawFormatError(
            f"{path}: the pickle contains {err}, and a recording is plain data",
            hint="no code in it was run",
            slug="not-a-recording",
        ) from None
    except MemoryError as err:
        raise RawFormatError(f"{path}: not enough memory to read it", slug="out-of-memory") from err
    # A damaged pickle raises what its opcodes run into; none of them runs code of the file.
    except Exception as err:
        message = f"{path} is damaged or cut off: {f'{type(err).__name__}: {err}'[:200]}"
        raise RawFormatError(message, slug="damaged-recording") from err


NONE = -1  # Stands for an unknown number; all numbers of a snapshot are 0 or more.
# State of a block that is in use.
ALIVE = "active_allocated"
_INT64 = range(-(2**63), 2**63)


def integer_or(value: Any, default: int) -> int:
    """Return `value` if it is a 64-bit integer, else `default`."""
    return value if type(value) is int and value in _INT64 else default


def mappings(values: Any) -> Iterable[dict[Any, Any]]:
    """Return the dictionaries in a list; an empty list if `values` is not a list."""
    return (value for value in values if isinstance(value, dict)) if type(values) is list else ()


def stream_of(entry: dict[Any, Any]) -> int | None:
    """Return the stream of an action or a segment, None if it is unknown."""
    stream = integer_or(entry.get("stream"), NONE)
    return stream if stream >= 0 else None


def blocks_of(segment: dict[Any, Any]) -> Iterable[tuple[dict[Any, Any], int]]:
    """Yield the blocks of a segment with their addresses, which are computed if not recorded."""
    next_address = integer_or(segment.get("address"), NONE)
    for block in mappings(segment.get("blocks")):
        address = integer_or(block.get("address"), next_address)
        yield block, address
        next_address = address + max(0, integer_or(block.get("size"), 0))
