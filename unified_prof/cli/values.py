"""What stands on the command line as Python's values, without what Typer needs for odd ones.

Typer (0.29) has pydantic make a validator for each parameter, also for those that nobody gives: a
tenth of a second for every command, most of what a small one takes. Words whose meaning is plain
(a name, a path, one of some choices, a number within its bounds) are taken as they are here; all
others, and all errors, are Typer's as before. A Typer that works otherwise is left alone.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

_Number = TypeVar("_Number", int, float)
_DIGITS = 10
"""Of a number of plain words; what has more is looked at twice."""

_UNCHECKED = {
    "parser": None,
    "exists": False,
    "file_okay": True,
    "dir_okay": True,
    "writable": False,
    "resolve_path": False,
    "allow_dash": False,
    "path_type": None,
    "clamp": False,
}
"""Settings of a parameter that say nothing more is to be looked at."""


class _Odd(Exception):  # noqa: N818 (none that anybody sees)
    """A value whose meaning is Typer's to say."""


def make_plain(param: Any) -> None:
    """Let a parameter of Typer's take plain values without a validator."""
    made = getattr(param, "_runtime_param", "")
    if made is None and callable(getattr(param, "get_runtime_param", None)):
        param._runtime_param = _Plain(param)


class _Plain:
    """Takes the place of a parameter's validator, which is made where a value is not plain."""

    def __init__(self, param: Any) -> None:
        self._param = param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what a value means."""
        try:
            return _plain(value, param)
        except _Odd:
            pass
        self._param._runtime_param = None  # it makes its own
        return self._param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, param: Any) -> Any:
    """Return what a value means.

    Raises:
        _Odd: it is none of the plain ones.
    """
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    about, kind = param.type_descriptor.parameter_info, param.type_descriptor.annotation
    if any(getattr(about, name, usual) not in (usual, None) for name, usual in _UNCHECKED.items()):
        raise _Odd
    if several and get_origin(kind) is list and isinstance(value, tuple | list):
        (kind,) = get_args(kind)
        return [_one(each, kind, about) for each in value]
    return _one(value, kind, about)


def _one(value: Any, kind: Any, about: Any) -> Any:
    if not isinstance(kind, type):
        raise _Odd
    if issubclass(kind, Enum):
        return _choice(value, kind)
    if kind is int:
        return _within(_integer(value), about)
    if kind is float and type(value) is float:
        return _within(value, about)
    if kind is Path and isinstance(value, str | Path):
        # What is there and may not be read is an error of Typer's.
        if not os.fspath(value) or (os.path.exists(value) and not os.access(value, os.R_OK)):  # noqa: PTH110
            raise _Odd
        return Path(_text(value)) if isinstance(value, str) else value
    if kind is str:
        return _text(value)
    raise _Odd


def _choice(value: Any, kind: type[Enum]) -> Enum:
    for one in kind:
        if value is one or (type(value) is str and value == one.value):
            return one
    raise _Odd


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _DIGITS:
        return int(value)
    raise _Odd


def _within(number: _Number, about: Any) -> _Number:
    if (about.min is not None and number < about.min) or (
        about.max is not None and number > about.max
    ):
        raise _Odd
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Odd
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no text
        raise _Odd from None
    return value
