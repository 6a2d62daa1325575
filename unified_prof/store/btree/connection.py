"""A connection that keeps the file under it open, for pages to be read beside SQLite."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO


class FileConnection(sqlite3.Connection):
    """A connection with the file under it, open for as long as the connection is.

    Not shorter: where a process closes a file, POSIX takes all locks on it from the process, those
    of SQLite too.
    """

    file: FileIO | None = None
    """None where SQLite knows more than the file says, such as a log beside it."""

    def hold(self, path: Path, before: os.stat_result) -> None:
        """Open the file of a connection that has just been made.

        Args:
            path: Its name.
            before: What the name stood for before the connection was made. Where it stands for
                another file by now, or none, nothing is held.
        """
        with suppress(OSError):
            file = path.open("rb", buffering=0)
            if os.path.samestat(before, os.fstat(file.fileno())):
                self.file = file
            else:
                file.close()

    def close(self) -> None:
        """Close the connection, then the file."""
        super().close()
        if self.file is not None:
            self.file.close()
