"""Temporary files for what a recording has more of than memory holds."""

from __future__ import annotations

import tempfile
from io import BufferedRandom
from typing import Any

from unified_prof.errors import OutputError


class Scratch:
    """Bytes outside memory, each piece under the place it was put; made when something comes."""

    def __init__(self) -> None:
        self.size = 0
        self._file: BufferedRandom | None = None

    def append(self, data: Any) -> int:
        """Put bytes, or a buffer of them, behind what is there and return their place.

        Raises:
            OutputError: there is no room for them.
        """
        place = self.size
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="uprof-")  # noqa: SIM115
            self.size += self._file.write(data)
        except OSError as err:
            raise OutputError(
                f"cannot put rows away in {tempfile.gettempdir()}: {err.strerror or err}",
                hint="make room there, or name another folder in TMPDIR",
                slug="no-temporary-space",
            ) from err
        return place

    def read(self, place: int, size: int) -> bytes:
        """Return so many bytes from a place on."""
        if not size or self._file is None:
            return b""
        self._file.seek(place)
        return self._file.read(size)

    def fill(self, place: int, room: memoryview) -> None:
        """Read from a place on what fills a buffer, which saves copying it."""
        if self._file is not None:
            self._file.seek(place)
            self._file.readinto(room)

    def text(self, place: int, size: int) -> str | None:
        """Return the text of so many bytes at a place, None for none."""
        return self.read(place, size).decode("utf-8", "replace") if size else None

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
