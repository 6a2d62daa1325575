"""The one registry of what `uprof build` and `uprof import` take.

To add a source: a module here with a `Source`, and its instance in `SOURCES`. Nothing else knows
sources by name: discovery, naming, the command line's help, `uprof run` and the hints of other
commands ask the registry. What is known but cannot be taken stands in `recognised`.
CONTRIBUTING.md, "A source of your own", has a worked example.

If you change this, also change: the rows of `uprof build` and `uprof import` in the first table of
README.md, and `MAKERS` of `tests/pipeline/test_sources.py`, a tiny recording of each kind for the
tests that go through every source.
"""

from __future__ import annotations

from pathlib import Path

from unified_prof.pipeline.sources.ascend import AscendPt, AscendText, Prof
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.pipeline.sources.gpu import (
    Kineto,
    MemorySnapshot,
    Nsys,
    Recognised,
    Rocm,
    recognised,
)

__all__ = [
    "SOURCES",
    "Decoded",
    "Ground",
    "Recognised",
    "Sign",
    "Source",
    "by_kind",
    "recognised",
    "source_of",
    "surely",
]

SOURCES: tuple[Source, ...] = (
    Prof(),
    AscendPt(),
    AscendText(),
    Nsys(),
    MemorySnapshot(),
    Rocm(),
    Kineto(),
)
"""In the order in which they are asked; one that is sure of a file goes before one that may be."""


def by_kind(kind: str) -> Source:
    """Return the source that `backends.base.Recording.kind` names."""
    return next(source for source in SOURCES if source.kind == kind)


def source_of(path: Path) -> Source | None:
    """Return the source that takes `path` itself, None if none does; reads a few KB at most."""
    signs = [(source.sniff(path), source) for source in SOURCES]
    for wanted in (Sign.SURE, Sign.MAYBE):
        for sign, source in signs:
            if sign is wanted:
                return source
    return None


def surely(path: Path) -> Source | None:
    """Return the source that is sure of `path`: what is taken from a folder nobody looked into."""
    return next((source for source in SOURCES if source.sniff(path) is Sign.SURE), None)
