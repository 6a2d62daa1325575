"""`unified_prof.advise`: what could be better in reports, for programs."""

from __future__ import annotations

import os

from unified_prof.analysis.finding import Advice
from unified_prof.analysis.load import open_analyses
from unified_prof.displayed import Together


def advise(path: str | os.PathLike[str]) -> list[Advice]:
    """Return what could be better in a report, or in each report of a folder.

    Each has its findings, the costliest first, and the rules that could not be asked.

    Raises:
        StoreError: the file is no report or cannot be read.
    """
    with open_analyses(path) as analyses:
        return Together(one.advice() for one in analyses)
