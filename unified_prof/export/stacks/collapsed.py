"""Collapsed stacks, a line each: `frame;frame;frame weight`, as Brendan Gregg's scripts read."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from unified_prof.analysis.views.stacks import Frame, Stacks
from unified_prof.plain import printable


def write(path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
    """Write the only part; the format has no place for a title."""
    ((_, stacks),) = parts
    names: dict[Frame, str] = {}
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sample in stacks.samples:
            for frame in sample.frames:
                if frame not in names:
                    names[frame] = _name(frame)
            stack = ";".join(names[frame] for frame in sample.frames)
            file.write(f"{stack} {sample.weight}\n")


def _name(frame: Frame) -> str:
    """Return a frame's name without what ends a frame or a line."""
    text = frame.name
    if frame.what == "function":
        text = f"{text} ({posixpath.basename(frame.file or '')}:{frame.line})"
    return printable(text.replace(";", ":"))
