r"""Text of unknown origin, made safe to show: one line that does nothing but appear.

Names come from other people's programs and file systems. In a terminal, escape sequences could
move the cursor or forge output, a newline could forge a second line, and characters that change
the direction of writing could disguise what a name is.
"""

from __future__ import annotations

import unicodedata
from typing import Any

# Cc control, Cf format (direction marks, zero width), Cs surrogate, Co private, Zl/Zp breaks.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
# How Python holds the bytes 0x80 to 0xff of a file name that is not UTF-8 (PEP 383).
_FIRST_RAW_BYTE, _LAST_RAW_BYTE = 0xDC80, 0xDCFF


def printable(text: str) -> str:
    r"""Return `text` as one line in which control, format and surrogate characters are escapes.

    A terminal's escape becomes `\x1b`, a direction mark `\u202e`, and a byte of a file name that
    is not UTF-8 appears as the byte that it is: `caf\xe9.db`. All else, in any script, stays. The
    result can be encoded as UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(character) if unicodedata.category(character) in _ACTIVE else character
        for character in text
    )


def storable(text: str) -> str:
    r"""Return `text` with surrogates as escapes, so that it can be encoded as UTF-8.

    They stand for bytes of file names that are not UTF-8: `caf\xe9`. Nothing else changes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_escaped(one) if "\ud800" <= one <= "\udfff" else one for one in text)
    return text


def storable_in(value: Any) -> Any:
    """Return plain data with every text of it `storable`, keys included."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable_in(key): storable_in(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [storable_in(one) for one in value]
    return value


def _escaped(character: str) -> str:
    code = ord(character)
    if _FIRST_RAW_BYTE <= code <= _LAST_RAW_BYTE:
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
