"""Layouts of `uprof export`, and atomic writing of the exported files.

Files are written under temporary names and renamed together at the end; existing files are replaced
only with `force`. A layout of stacks has a row in LAYOUTS and in `export.stacks.WRITERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Literal

from unified_prof.base import signals
from unified_prof.errors import UsageError
from unified_prof.sqlite.atomic import AtomicFile, output_errors
from unified_prof.sqlite.statements import Block

_ROWS_AT_ONCE = 32_768  # Rows of a table that are joined for one write.
_ENCODING = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}


@dataclass(frozen=True, slots=True)
class Written:
    """A file of an export."""

    name: str
    entries: int  # Number of rows of a table without its header, or of events of a timeline.


class OutputFiles(Block):
    """Files of one directory that are renamed together; use in a `with` block."""

    def __init__(self, directory: Path, *, force: bool) -> None:
        self.directory, self._force = directory, force
        self._files: list[AtomicFile] = []
        self.written: list[Written] = []

    def __enter__(self) -> OutputFiles:
        return self

    def _finish(self) -> None:
        """Rename all files; if one fails, those renamed before are removed."""
        done: list[AtomicFile] = []
        with signals.held_back():
            try:
                for file in self._files:
                    file.commit()
                    done.append(file)
            except BaseException:
                if not self._force:
                    for file in done:
                        file.target.unlink(missing_ok=True)
                raise

    def _close(self) -> None:
        for file in self._files:
            file.discard()

    @contextmanager
    def file(self, name: str) -> Iterator[Binary]:
        """Yield the temporary path of a new file, to be written by the caller.

        Raises OutputError if the file exists and `force` is not set, or it cannot be written.
        """
        file = AtomicFile(self.directory / name, overwrite=self._force)
        self._files.append(file)
        binary = Binary(file.partial)
        with output_errors(file.target):
            yield binary
        self.written.append(Written(name, binary.entries))

    @contextmanager
    def text(self, name: str) -> Iterator[Text]:
        """Yield a new text file; raises the errors of `file`."""
        with self.file(name) as file:
            with file.partial.open("w", **_ENCODING) as stream:  # type: ignore[call-overload]
                text = Text(stream)
                yield text
            file.entries = text.entries

    def tables(
        self, names: Sequence[str], header: str, blocks: Iterable[Sequence[str]], *, rows_each: int
    ) -> None:
        """Write the rows of a table to one or more files.

        Blocks of any size have rows without line ends. Each file has `rows_each` rows, the last of
        `names` the remaining ones.
        """
        rest = chain.from_iterable(blocks)
        for name in names:
            with self.text(name) as text:
                text.stream.write(f"{header}\n")
                rows = rest if name == names[-1] else islice(rest, rows_each)
                while lines := list(islice(rows, _ROWS_AT_ONCE)):
                    text.stream.write("\n".join(lines) + "\n")
                    text.entries += len(lines)


@dataclass(slots=True)
class Binary:
    """File that the caller writes by its path."""

    partial: Path
    entries: int = 0


@dataclass(slots=True)
class Text:
    """Open text file with its number of entries."""

    stream: IO[str]
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Format of an export."""

    name: str
    makes: Literal["deliverables", "timeline", "stacks", "tables"]
    what: str  # Description for the help.
    # File extensions that select it, the preferred one first; empty: it writes a directory.
    suffixes: tuple[str, ...] = ()
    several: bool = True  # For stacks: True if a file can have several measures.


LAYOUTS: tuple[Layout, ...] = (
    Layout("mindstudio", "deliverables", "the CSV and JSON files of `msprof --type=text`"),
    Layout(
        "perfetto", "timeline", "a timeline for ui.perfetto.dev", (".perfetto-trace", ".pftrace")
    ),
    Layout("chrome", "timeline", "a timeline for chrome://tracing", (".json",)),
    Layout(
        "collapsed",
        "stacks",
        "a line for each stack, for flamegraph.pl, inferno and most viewers of flame graphs",
        (".collapsed", ".folded"),
        several=False,
    ),
    Layout("speedscope", "stacks", "for speedscope.app", (".speedscope.json", ".json")),
    Layout("pprof", "stacks", "for `go tool pprof`, Pyroscope and others", (".pb.gz", ".pprof")),
    Layout("parquet", "tables", "a Parquet file for each table"),
    Layout("arrow", "tables", "an Arrow (Feather) file for each table"),
)
DEFAULT = LAYOUTS[0]
_EXTENSION = re.compile(r"\.[A-Za-z]\w*")  # Directories may end in numbers: `run.2`.
NAMES = tuple(one.name for one in LAYOUTS)


def select_layout(output: Path, asked: str | None) -> Layout:
    """Return the requested layout, or the one that the extension of the output selects.

    Raises UsageError if the extension is unknown, or belongs to another layout.
    """
    name = output.name.lower()
    matches = [(len(end), one) for one in LAYOUTS for end in one.suffixes if name.endswith(end)]
    of_ending = max(matches, key=lambda match: match[0])[1] if matches else None
    if asked is None:
        if of_ending is None and _EXTENSION.fullmatch(output.suffix) and not output.exists():
            raise UsageError(
                f"{output}: unknown extension {output.suffix}",
                hint=f"see `uprof export --help`, or use --layout {DEFAULT.name} for a directory",
                slug="unknown-format",
            )
        return of_ending or DEFAULT
    layout = next(one for one in LAYOUTS if one.name == asked)
    if of_ending not in (None, layout) and layout not in [one for _, one in matches]:
        assert of_ending is not None
        raise UsageError(
            f"{output}: the extension selects {of_ending.name}, but --layout is {asked}",
            hint="omit --layout, or change the extension",
            slug="contradicting-options",
        )
    return layout
