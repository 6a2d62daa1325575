"""The standard streams as they may be found: closed, full, or closed by the user's program.

Text for people goes to stderr and never decides anything: where it cannot be written it is lost,
and the exit code stays what it is. Data goes to stdout, where a failure is an error, and a reader
that has left (`uprof report RUN | head`) ends the command without a word. The workload of `uprof
run` gets the streams as uprof found them, so that it behaves as it would alone.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from unified_prof.errors import OutputError

_LOST = (OSError, ValueError, AttributeError)
"""What writing to a stream raises that is full, closed or None."""


class _Nowhere(io.TextIOBase):
    """Takes everything and keeps nothing."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Forget `text`."""
        return len(text)


class ReaderLeft(Exception):  # noqa: N818 (no error: nobody wants the rest)
    """What reads stdout has closed its end."""


@contextmanager
def guarded() -> Iterator[None]:
    """Guard the standard streams while the block runs.

    Streams of a test or a notebook that stand in for the real ones are left alone.
    """
    fill_closed_descriptors()
    found = sys.stdout, sys.stderr
    mine: list[io.TextIOWrapper] = []
    try:
        for name, kind in (("stdout", _Result), ("stderr", _Words)):
            stream = getattr(sys, name)
            if stream is getattr(sys, f"__{name}__"):
                mine.append(_wrapped(stream, name, kind))
                setattr(sys, name, mine[-1])
        _Found.streams = found
        yield
    finally:
        _Found.streams = None
        sys.stdout, sys.stderr = found
        for wrapper in mine:
            with suppress(OutputError, ReaderLeft, *_LOST):
                wrapper.detach()


@contextmanager
def as_found() -> Iterator[None]:
    """Give a workload the streams that uprof got, and take back ours whatever it did to them."""
    if _Found.streams is None:
        yield
        return
    ours = sys.stdout, sys.stderr
    for stream in ours:
        with suppress(OutputError, ReaderLeft):
            stream.flush()
    sys.stdout, sys.stderr = _Found.streams
    _Found.words = ours[1]
    try:
        yield
    finally:
        _Found.words = None
        for theirs in (sys.stdout, sys.stderr, *_Found.streams):
            with suppress(*_LOST):
                theirs.flush()
        sys.stdout, sys.stderr = ours


def tell(text: str, end: str = "\n") -> None:
    """Write a line for people to stderr; do nothing where that is not possible."""
    stream = _Found.words or sys.stderr
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
        raise OutputError(f"cannot write to stdout: {why or err}", slug="stdout") from None


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


@contextmanager
def writing_the_result() -> Iterator[None]:
    """Tell what became of stdout by the errors that commands know.

    Raises:
        OutputError: stdout cannot be written.
        ReaderLeft: nobody reads it any more.
    """
    try:
        yield
    except OSError as err:
        _discard(sys.stdout)
        if err.errno == errno.EPIPE:
            raise ReaderLeft from None
        raise OutputError(f"stdout cannot be written: {err.strerror}", slug="stdout") from None


class _Found:
    """The streams as they were before `guarded`, while it is in force."""

    streams: tuple[TextIO, TextIO] | None = None
    words: TextIO | None = None


class _Result(io.TextIOWrapper):
    """Stdout: what cannot be written ends the command; bytes of odd names appear as escapes."""

    def write(self, text: str) -> int:
        with writing_the_result():
            return super().write(text)

    def flush(self) -> None:
        if not self.closed:
            with writing_the_result():
                super().flush()


class _Words(io.TextIOWrapper):
    """Stderr: what cannot be written is lost."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except _LOST:
            _discard(self)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except _LOST:
            _discard(self)


def _wrapped(stream: TextIO | None, name: str, kind: type[io.TextIOWrapper]) -> io.TextIOWrapper:
    number = 1 if name == "stdout" else 2
    if stream is None:  # it was closed when Python started
        buffer: Any = open(number, "wb", closefd=False)  # noqa: SIM115
        return kind(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    stream.flush()
    return kind(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False),
    )


def _discard(stream: TextIO | None) -> None:
    """Let what still waits for a stream go nowhere: Python would try again at its end."""
    with suppress(*_LOST):
        assert stream is not None
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
