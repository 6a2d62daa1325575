"""The layouts of `uprof export`: whose files are written, and where that is done.

A layout of stacks is a module of `export.stacks` with `write(path, parts)` and its line here;
nothing heavy is imported before one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_prof.analysis.views.stacks import Stacks


class _Stacks(Protocol):
    def write(self, path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
        """Write stacks, each with its title, as one file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to write a report for other tools."""

    name: str
    makes: Literal["deliverables", "stacks", "tables"]
    what: str
    """For the command's help."""
    suffixes: tuple[str, ...] = ()
    """Endings of files that select it, the usual one first; none: it fills a folder."""
    several: bool = True
    """Of stacks: whether a file holds several measures."""

    def write_stacks(self, path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
        """Write stacks, each with its title, as one file.

        Raises:
            UsageError: what it takes is not installed.
        """
        module = cast(_Stacks, import_module(f"unified_prof.export.stacks.{self.name}"))
        module.write(path, parts)


LAYOUTS: tuple[Layout, ...] = (
    Layout("mindstudio", "deliverables", "the CSV and JSON files of `msprof --type=text`"),
    Layout(
        "collapsed",
        "stacks",
        "a line for each stack, for flamegraph.pl, inferno and most viewers of flame graphs",
        (".collapsed", ".folded"),
        several=False,
    ),
    Layout("speedscope", "stacks", "for speedscope.app", (".speedscope.json",)),
    Layout("pprof", "stacks", "for `go tool pprof`, Pyroscope and others", (".pb.gz", ".pprof")),
    Layout("parquet", "tables", "a Parquet file for each table"),
    Layout("arrow", "tables", "an Arrow (Feather) file for each table"),
)
DEFAULT = LAYOUTS[0]
NAMES = tuple(one.name for one in LAYOUTS)


def named(name: str) -> Layout:
    """Return the layout called `name`."""
    return next(one for one in LAYOUTS if one.name == name)


def chosen(output: Path, asked: str | None) -> Layout:
    """Return the layout meant: the one asked for, else by the ending of the output.

    Raises:
        UsageError: the ending is another layout's.
    """
    of_ending = next((one for one in LAYOUTS if output.name.lower().endswith(one.suffixes)), None)
    if asked is None:
        return of_ending or DEFAULT
    layout = named(asked)
    if of_ending not in (None, layout):
        assert of_ending is not None
        raise UsageError(
            f"{output}: the extension selects {of_ending.name}, but {asked} is asked for",
            hint="leave the layout out, or change the extension",
            slug="contradicting-options",
        )
    return layout
