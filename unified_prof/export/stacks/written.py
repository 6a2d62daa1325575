"""What files keep of a frame: what tells it apart there."""

from __future__ import annotations

from unified_prof.analysis.views.stacks import Frame

Written = tuple[str, str | None, int | None]
"""Name, file and line."""


def as_written(frame: Frame) -> Written:
    """Return what a file keeps of a frame."""
    return frame.name, frame.file, frame.line
