"""`unified_prof.what_if`: what a step would gain if something were faster, for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from unified_prof.analysis.explain.supposed import Change, Supposed
from unified_prof.analysis.explain.what_if import WITHOUT
from unified_prof.analysis.load import open_analyses


def what_if(
    path: str | os.PathLike[str],
    *,
    faster: Mapping[str, float] | None = None,
    without: str | Iterable[str] = (),
    top: int = 10,
) -> list[Supposed]:
    """Return what the steps of a timeline, or of each in a folder, would gain by some changes.

    Args:
        path: the report.
        faster: what is to be faster, by how much: `{"aten::mm": 2}`.
        without: what is to be gone: names, or one.
        top: without any change, how many things to try.

    Raises:
        StoreError: the file is no report or cannot be read.
        UsageError: nothing of a name was recorded, or the report is no timeline.
    """
    changes = [Change(name, factor) for name, factor in (faster or {}).items()]
    gone = [without] if isinstance(without, str) else without
    changes += [Change(name, WITHOUT) for name in gone]
    with open_analyses(path) as analyses:
        return [one.what_if(changes, top=top) for one in analyses]
