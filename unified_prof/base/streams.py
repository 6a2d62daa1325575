"""Handling of standard streams that may be closed or full.

Messages go to stderr; if they cannot be written, they are dropped and the exit code stays the same.
Data goes to stdout: a failure is an error, except that a closed pipe (`uprof report RUN | head`)
ends the command silently. The workload of `uprof run` gets the original streams.
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

# Errors of writing to a stream that is full, closed or None.
_WRITE_ERRORS = (OSError, ValueError, AttributeError)


class _NullStream(io.TextIOBase):
    """Text stream that discards everything."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Discard `text`."""
        return len(text)


class ReaderLeft(Exception):  # noqa: N818 (not an error)
    """Raised if the reader of stdout has closed its end of the pipe."""


@contextmanager
def guarded() -> Iterator[None]:
    """Replace the standard streams by guarded ones within the block.

    Streams that a test or a notebook has replaced are left unchanged.
    """
    fill_closed_descriptors()
    found = sys.stdout, sys.stderr
    wrappers: list[io.TextIOWrapper] = []
    try:
        for name, kind in (("stdout", _DataStream), ("stderr", _MessageStream)):
            stream = getattr(sys, name)
            if stream is getattr(sys, f"__{name}__"):
                wrappers.append(_wrapped(stream, name, kind))
                setattr(sys, name, wrappers[-1])
        _Originals.streams = found
        yield
    finally:
        _Originals.streams = None
        sys.stdout, sys.stderr = found
        for wrapper in wrappers:
            with suppress(OutputError, ReaderLeft, *_WRITE_ERRORS):
                wrapper.detach()


@contextmanager
def as_found() -> Iterator[None]:
    """Restore the original streams within the block, for a workload."""
    if _Originals.streams is None:
        yield
        return
    ours = sys.stdout, sys.stderr
    for stream in ours:
        with suppress(OutputError, ReaderLeft):
            stream.flush()
    sys.stdout, sys.stderr = _Originals.streams
    _Originals.words = ours[1]
    try:
        yield
    finally:
        _Originals.words = None
        for theirs in (sys.stdout, sys.stderr, *_Originals.streams):
            with suppress(*_WRITE_ERRORS):
                theirs.flush()
        sys.stdout, sys.stderr = ours


def tell(text: str, end: str = "\n") -> None:
    """Write a message line to stderr; a failure is ignored."""
    stream = _Originals.words or sys.stderr
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(f"{text}{end}".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except _WRITE_ERRORS:
        _forget_unwritten(stream)


def hand_over(text: str) -> None:
    """Write a line of data to stdout.

    Raises OutputError if stdout is closed or its target accepts no more.
    """
    stream = sys.stdout
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except _WRITE_ERRORS as err:
        if stream is not None:
            # Python would flush again at exit and return exit code 120.
            sys.stdout = _NullStream()
        why = err.strerror if isinstance(err, OSError) else "it is closed"
        raise OutputError(f"cannot write to stdout: {why or err}", slug="stdout") from None


def is_terminal() -> bool:
    """Return True if stderr is a terminal."""
    try:
        return sys.stderr.isatty()
    except _WRITE_ERRORS:
        return False


def fill_closed_descriptors() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next opened file, such as a report, would get the number of stderr and receive its
    output.
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
    """Redirect stdout to stderr within the block, also for C code and child processes."""
    if not enabled:
        yield
        return
    with suppress(*_WRITE_ERRORS):
        sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(*_WRITE_ERRORS):
            sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _forget_unwritten(stream: TextIO | None) -> None:
    """Keep Python from flushing `stream` again at exit, where a failure sets exit code 120."""
    if stream is not None and sys.stderr is stream:
        sys.stderr = _NullStream()


@contextmanager
def writing_the_result() -> Iterator[None]:
    """Convert failures to write stdout to uprof's errors.

    Raises OutputError if stdout cannot be written, and ReaderLeft if the reader has closed the
    pipe.
    """
    try:
        yield
    except OSError as err:
        _discard(sys.stdout)
        if err.errno == errno.EPIPE:
            raise ReaderLeft from None
        raise OutputError(f"stdout cannot be written: {err.strerror}", slug="stdout") from None


class _Originals:
    """Original streams while `guarded` is active."""

    streams: tuple[TextIO, TextIO] | None = None
    words: TextIO | None = None


class _DataStream(io.TextIOWrapper):
    """stdout: a failed write ends the command; undecodable bytes in names are escaped."""

    def write(self, text: str) -> int:
        with writing_the_result():
            return super().write(text)

    def flush(self) -> None:
        if not self.closed:
            with writing_the_result():
                super().flush()


class _MessageStream(io.TextIOWrapper):
    """stderr: a failed write is ignored."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except _WRITE_ERRORS:
            _discard(self)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except _WRITE_ERRORS:
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
    """Discard the unwritten buffer of a stream, which Python would otherwise write at exit."""
    with suppress(*_WRITE_ERRORS):
        assert stream is not None
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
