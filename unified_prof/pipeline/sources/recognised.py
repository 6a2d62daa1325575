"""Recordings that uprof knows but cannot convert, and how to have one that it can.

To add one: its `Recognised` in `KNOWN`. Nothing else knows them by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Recognised:
    """A kind of recording, told by the ends of its files' names."""

    what: str
    """What it is in a message, with its article."""
    endings: tuple[str, ...]
    hint: Callable[[Path], str]
    """What to do with such a file."""


def _export_first(path: Path) -> str:
    exported = path.with_suffix(".sqlite")
    if exported.is_file():
        return f"its export lies beside it: uprof import {shlex.quote(str(exported))}"
    given, made = shlex.quote(str(path)), shlex.quote(str(exported))
    return f"export it first: nsys export --type sqlite -o {made} {given}; uprof import {made}"


def _pipe(path: Path) -> str:
    tool = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}[path.suffix.lower()]
    report = shlex.quote(f"{path.name.partition('.')[0] or 'run'}.db")
    unpacked = f"{tool} -dc {shlex.quote(str(path))}"
    return f"if there is a recording in it: {unpacked} | uprof import - -o {report}"


def _unpack(_: Path) -> str:
    return "unpack it; folders of recordings can be named as a whole"


def _of_jax(_: Path) -> str:
    return (
        "no version of uprof reads profiles of JAX; TensorBoard's profile plugin (xprof) shows them"
    )


_ENDS = ("gz", "xz", "bz2", "zst")
KNOWN: tuple[Recognised, ...] = (
    Recognised("a recording of Nsight Systems", (".nsys-rep", ".qdrep"), _export_first),
    Recognised("a profile of JAX or TensorFlow (XPlane)", (".xplane.pb",), _of_jax),
    Recognised("an archive", (".zip", ".tar", ".tgz", *(f".tar.{end}" for end in _ENDS)), _unpack),
    Recognised("a packed file", tuple(f".{end}" for end in _ENDS[:3]), _pipe),
)


def recognised(path: Path) -> Recognised | None:
    """Return what `path` is, by its name, if uprof knows it but cannot convert it."""
    return next((one for one in KNOWN if path.name.lower().endswith(one.endings)), None)
