"""The files of one export: written beside their names, and given them all at once.

Nothing appears before everything is written, and nothing of the user's is replaced unasked.

The layouts of `uprof export`: whose files are written, and where that is done.

A layout of stacks is a module of `export.stacks` with `write(path, parts)` and its line here;
nothing heavy is imported before one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from unified_prof.base import signals
from unified_prof.errors import UsageError
from unified_prof.sqlite.atomic import AtomicFile, output_error
from unified_prof.sqlite.statements import Block

if TYPE_CHECKING:
    from unified_prof.recording.stacks import Stacks


_ENCODING = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}


@dataclass(frozen=True, slots=True)
class Written:
    """A file of an export."""

    name: str
    # Rows of a table without its header, events of a timeline.
    entries: int


class OutputFiles(Block):
    """Files in one folder that get their names together; use it in a `with` block.

    Args:
        directory: An existing folder.
        force: Whether files of the same names may be replaced.
    """

    def __init__(self, directory: Path, *, force: bool) -> None:
        self.directory = directory
        self._force = force
        self._files: list[AtomicFile] = []
        self.written: list[Written] = []

    def __enter__(self) -> OutputFiles:
        return self

    def _finish(self) -> None:
        """Give all files their names; those that got theirs before one fails are taken back."""
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
        """Yield a new file that somebody else writes, by its path.

        Raises:
            OutputError: it exists and may not be replaced, or it cannot be written.
        """
        file = AtomicFile(self.directory / name, overwrite=self._force)
        self._files.append(file)
        binary = Binary(file.partial)
        try:
            yield binary
        except OSError as err:
            raise output_error(file.target, err) from err
        self.written.append(Written(name, binary.entries))

    @contextmanager
    def text(self, name: str) -> Iterator[Text]:
        """Yield a new text file.

        Raises:
            OutputError: it exists and may not be replaced, or it cannot be written.
        """
        file = AtomicFile(self.directory / name, overwrite=self._force)
        self._files.append(file)
        text: Text | None = None
        try:
            with file.partial.open("w", **_ENCODING) as stream:  # type: ignore[call-overload]
                text = Text(stream)
                yield text
        except OSError as err:
            raise output_error(file.target, err) from err
        self.written.append(Written(name, text.entries))

    def tables(
        self, names: Sequence[str], header: str, blocks: Iterable[Sequence[str]], *, rows_each: int
    ) -> None:
        """Write the lines of a table, ready-made but for their ends, into files one after another.

        Args:
            names: Names of the files; the last one takes what is left.
            header: First line of each.
            blocks: The lines, some thousand at a time.
            rows_each: How many rows the others take.
        """
        rest = _Lines(blocks)
        for name in names:
            with self.text(name) as text:
                text.write(f"{header}\n")
                for lines in rest.take(None if name == names[-1] else rows_each):
                    text.write("\n".join(lines) + "\n")
                    text.entries += len(lines)


@dataclass(slots=True)
class Binary:
    """A file under way that somebody else writes."""

    partial: Path
    entries: int = 0


class Text:
    """A file under way."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.entries = 0

    def write(self, text: str) -> None:
        """Append a text."""
        self._stream.write(text)


class _Lines:
    """Lines that come in blocks of any length, to be taken in portions of another."""

    def __init__(self, blocks: Iterable[Sequence[str]]) -> None:
        self._blocks = iter(blocks)
        self._left: Sequence[str] = ()

    def take(self, count: int | None) -> Iterator[Sequence[str]]:
        """Yield the next `count` lines, None: all that are left."""
        while count is None or count > 0:
            block = self._left or next((one for one in self._blocks if len(one)), ())
            if not block:
                return
            now = block if count is None else block[:count]
            self._left = block[len(now) :]
            yield now
            if count is not None:
                count -= len(now)


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to write a report for other tools."""

    name: str
    makes: Literal["deliverables", "timeline", "stacks", "tables"]
    # For the command's help.
    what: str
    # Endings of files that select it, the usual one first; none: it fills a folder.
    suffixes: tuple[str, ...] = ()
    # Of stacks: whether a file holds several measures.
    several: bool = True

    def write_stacks(self, path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
        """Write stacks, each with its title, as one file.

        Raises:
            UsageError: what it takes is not installed.
        """
        from unified_prof.export import stacks  # Needs NumPy; the layouts are part of `--help`.

        writers = {
            "collapsed": stacks.write_collapsed,
            "speedscope": stacks.write_speedscope,
            "pprof": stacks.write_pprof,
        }
        writers[self.name](path, parts)


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
NAMES = tuple(one.name for one in LAYOUTS)


def named(name: str) -> Layout:
    """Return the layout called `name`."""
    return next(one for one in LAYOUTS if one.name == name)


def chosen(output: Path, asked: str | None) -> Layout:
    """Return the layout meant: the one asked for, else by the ending of the output.

    Raises:
        UsageError: the ending is another layout's.
    """
    name = output.name.lower()
    matches = [(len(end), one) for one in LAYOUTS for end in one.suffixes if name.endswith(end)]
    of_ending = max(matches, key=lambda match: match[0])[1] if matches else None
    if asked is None:
        return of_ending or DEFAULT
    layout = named(asked)
    if of_ending not in (None, layout) and layout not in [one for _, one in matches]:
        assert of_ending is not None
        raise UsageError(
            f"{output}: the extension selects {of_ending.name}, but {asked} is asked for",
            hint="leave the layout out, or change the extension",
            slug="contradicting-options",
        )
    return layout
