"""The standard streams as they may be found: closed, full, or closed by the user's program.

Text for people goes to stderr and never decides anything: where it cannot be written it is lost,
and the exit code stays what it is. Data goes to stdout, where a failure is an error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from unified_prof.errors import OutputError

_LOST = (OSError, ValueError, AttributeError)
"""What writing to a stream raises that is full, closed or None."""


class _Nowhere(io.TextIOBase):
    """Takes everything and keeps nothing."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Forget `text`."""
        return len(text)


def tell(text: str, end: str = "\n") -> None:
    """Write a line for people to stderr; do nothing where that is not possible."""
    stream = sys.stderr
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(f"{text}{end}".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except _LOST:
        _forget_unwritten(stream)


def hand_over(text: str) -> None:
    """Write a line of data to stdout.

    Raises:
        OutputError: stdout is closed, or what it leads to takes no more.
    """
    stream = sys.stdout
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except _LOST as err:
        if stream is not None:
            # Python would try again at its end, and exit with a code of its own.
            sys.stdout = _Nowhere()
        why = err.strerror if isinstance(err, OSError) else "it is closed"
        raise OutputError(f"cannot write to stdout: {why or err}") from None


def is_terminal() -> bool:
    """Return whether stderr is there and leads to a terminal."""
    try:
        return sys.stderr.isatty()
    except _LOST:
        return False


def fill_closed_descriptors() -> None:
    """Open /dev/null in place of standard streams that are closed.

    Otherwise the next file that is opened, such as a report, would become "stderr", and whoever
    writes there writes into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != descriptor:
                    os.dup2(opened, descriptor)
                    os.close(opened)
                os.set_inheritable(descriptor, True)


@contextmanager
def stdout_to_stderr(*, enabled: bool) -> Iterator[None]:
    """Send what the block prints to stderr, also from C and from its children."""
    if not enabled:
        yield
        return
    with suppress(*_LOST):
        sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(*_LOST):
            sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _forget_unwritten(stream: TextIO | None) -> None:
    """Keep Python from flushing `stream` once more at its end, where a failure is exit code 120."""
    if stream is not None and sys.stderr is stream:
        sys.stderr = _Nowhere()
