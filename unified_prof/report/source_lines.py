"""The source lines that a page may show, read only from the project's own folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = {".py", ".pyi"}
_LONGEST = 200


class SourceLines:
    """Looks up `file:line`.

    A report names files, and reports come from elsewhere: only Python files inside the folder are
    read, whatever the report says.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._files: dict[str, list[str]] = {}

    def of(self, frames: Iterable[str]) -> dict[str, str]:
        """Return frame -> text of its line, for those that can be found."""
        found = {}
        for frame in frames:
            file, _, number = frame.rpartition(":")
            if not (file and number.isascii() and number.isdecimal()):
                continue
            lines = self._lines(file)
            if 0 < int(number) <= len(lines):
                found[frame] = lines[int(number) - 1].strip()[:_LONGEST]
        return found

    def _lines(self, file: str) -> list[str]:
        if file not in self._files:
            path = (self._root / file).resolve()
            allowed = path.is_relative_to(self._root) and path.suffix in _SUFFIXES
            try:
                text = path.read_text(encoding="utf-8", errors="replace") if allowed else ""
            except OSError:
                text = ""
            self._files[file] = text.splitlines()
        return self._files[file]
