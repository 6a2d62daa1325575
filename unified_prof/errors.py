"""Errors that uprof raises deliberately, and the exit codes of the command line.

UprofError                  1   negative result (regression, failed check), or another error
+- UsageError               2   invalid option, path or argument
+- DeviceUnavailableError   4   device, driver or toolkit missing
+- CaptureError             5   the profiler failed, or the workload cannot be measured
|  +- MeasuringError        5   the workload succeeded, but measuring it failed
+- RawFormatError           6   a recording does not match its format
+- StoreError               7   a report is missing or not a valid database
|  +- SchemaVersionError    8   the schema revision is not supported
+- OutputError              9   the output cannot be written (exists, read-only, disk full)
+- EngineError             10   Dask scheduler or workers unavailable or lost
+- SystemLimitError        71   out of memory, file descriptors or processes

Inconclusive gate            3   not an error: too few samples, or too much variance
Any other exception         70   a bug: one line on stderr, traceback in a file

70 and 71 are EX_SOFTWARE and EX_OSERR of sysexits.h. Signals follow shell conventions: 130 Ctrl-C,
141 closed stdout, 143 SIGTERM, 129 SIGHUP. `uprof run` returns the workload's exit code if it is
not 0.

Every error has a slug that names its cause. It appears as `[uprof:no-report]` at the end of the
message and as `slug` in JSON, and does not change between versions. `docs/troubleshooting.md` has
an entry per slug with cause and fix. Errors raised without a slug have the slug of their class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INCONCLUSIVE_EXIT_CODE = 3  # Exit code of an inconclusive gate.

BUG_EXIT_CODE = 70  # Exit code of an unexpected exception.
INTERRUPTED = 130  # Exit code after Ctrl-C in shells.


class UprofError(Exception):
    """Base class of uprof's errors; `str(err)` is a one-line message.

    Attributes:
        exit_code: Exit code of the command line.
        slug: Stable name of the cause; see `docs/troubleshooting.md`.
        hint: What to do next, or None.
    """

    exit_code = 1
    slug = "error"

    def __init__(self, message: str, *, hint: str | None = None, slug: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if slug is not None:
            self.slug = slug
        self.__notes__ = [tag(self.slug)]  # shown below a traceback (Python 3.11 and newer)

    @property
    def tagged_message(self) -> str:
        """The message followed by the slug, as the command line prints it."""
        return f"{self} {tag(self.slug)}"


def tag(slug: str) -> str:
    """Return a slug as messages show it: `[uprof:SLUG]`."""
    return f"[uprof:{slug}]"


@contextmanager
def system_errors(
    kind: type[UprofError], what: str, *, hint: str | None = None, slug: str
) -> Iterator[None]:
    """Context manager that raises an OSError of its block as `kind`: `WHAT: REASON`."""
    try:
        yield
    except OSError as err:
        raise kind(f"{what}: {err.strerror or err}", hint=hint, slug=slug) from err


@contextmanager
def missing_package(
    message: str, *, hint: str, kind: type[UprofError] | None = None
) -> Iterator[None]:
    """Context manager that raises an ImportError of its block as `kind`, by default UsageError."""
    try:
        yield
    except ImportError as err:
        raise (kind or UsageError)(message, hint=hint, slug="missing-package") from err


class UsageError(UprofError):
    """Invalid option, path or argument."""

    exit_code = 2
    slug = "usage"


class DeviceUnavailableError(UprofError):
    """A required device, driver or toolkit is missing."""

    exit_code = 4
    slug = "device-unavailable"


class CaptureError(UprofError):
    """The profiler failed, or the workload cannot be measured."""

    exit_code = 5
    slug = "capture"


class MeasuringError(CaptureError):
    """The workload succeeded, but measuring it failed."""

    slug = "measuring"


class RawFormatError(UprofError):
    """A recording does not match its format or version."""

    exit_code = 6
    slug = "raw-format"


class StoreError(UprofError):
    """A report is missing, damaged or not a valid database."""

    exit_code = 7
    slug = "store"


class SchemaVersionError(StoreError):
    """A report is readable, but its schema revision is not supported."""

    exit_code = 8
    slug = "schema-version"


class OutputError(UprofError):
    """An output cannot be written: it exists, is read-only, or the disk is full."""

    exit_code = 9
    slug = "output"


class EngineError(UprofError):
    """The Dask scheduler or its workers are unavailable or were lost, or Dask is not installed."""

    exit_code = 10
    slug = "engine"


class SystemLimitError(UprofError):
    """Memory, file descriptors or processes ran out."""

    exit_code = 71
    slug = "system-limit"
