"""The files of one export: written beside their names, and given them all at once.

Nothing appears before everything is written, and nothing of the user's is replaced unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unified_prof import signals
from unified_prof.store.atomic import AtomicFile, output_error
from unified_prof.store.blocks import Block

_ENCODING = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}


@dataclass(frozen=True, slots=True)
class Written:
    """A file of an export."""

    name: str
    entries: int
    """Rows of a table without its header, events of a timeline."""


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
