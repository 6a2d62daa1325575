"""Every error uprof raises on purpose, and the exit code the shell sees.

UprofError                  1   the answer is no, or an error of no finer kind
+- UsageError               2   wrong use: an option, a path or a value that cannot be meant
+- DeviceUnavailableError   4   no such device, driver or toolkit here
+- CaptureError             5   the profiler ran and failed, or the workload broke its rules
|  +- MeasuringError        5   the workload ended well, only measuring it failed
+- RawFormatError           6   a raw file is not what its version says
+- StoreError               7   a report cannot be read or written as a database
|  +- SchemaVersionError    8   readable, but at a version that is not accepted
+- OutputError              9   the output cannot be written (exists, read-only, disk full)
+- EngineError             10   who was to do the work cannot be had, or was lost before the end

A gate that cannot tell      3   not an error: too few samples, or they scatter too much
Any other exception           70   a bug: one line on stderr, its traceback in a file

70 is EX_SOFTWARE of sysexits.h; CI can tell it from a gate that says no. As shells have it, 130 is
Ctrl-C, 141 a reader of stdout that left, 143 SIGTERM and 129 SIGHUP.

`uprof run` returns the workload's own exit code whenever that is not 0.

Beside its class every error has a *slug*, the name of its cause: `[uprof:no-report]` at the end of
the message, `slug` in JSON. The slug is given where the error is raised and stays what it is from
version to version, whatever becomes of the words; `docs/troubleshooting.md` has an entry for each,
with the cause and what to do. An error of somebody else's that gives none has its class's.
"""

from __future__ import annotations

# Exit code of an inconclusive gate.
INCONCLUSIVE_EXIT_CODE = 3

# Exit code of an unexpected exception.
BUG_EXIT_CODE = 70


class UprofError(Exception):
    """Base class: `str(err)` is the one-line message, `hint` says what to do next.

    Attributes:
        exit_code: What the shell sees.
        slug: The name of the cause, for people to look up and for programs to tell errors apart.
        hint: What to do next, where there is more to say than the message does.
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
    def told(self) -> str:
        """The message as people are shown it: with the slug that they can look up."""
        return f"{self} {tag(self.slug)}"


def tag(slug: str) -> str:
    """Return how a message shows a slug."""
    return f"[uprof:{slug}]"


class UsageError(UprofError):
    """The command or call cannot be meant as it was written."""

    exit_code = 2
    slug = "usage"


class DeviceUnavailableError(UprofError):
    """A device, driver or toolkit that the request needs is not here."""

    exit_code = 4
    slug = "device-unavailable"


class CaptureError(UprofError):
    """A profiler ran and failed, or the workload did not do what it must."""

    exit_code = 5
    slug = "capture"


class MeasuringError(CaptureError):
    """The workload ended well; only measuring it failed."""

    slug = "measuring"


class RawFormatError(UprofError):
    """A raw recording is not what its kind and version promise."""

    exit_code = 6
    slug = "raw-format"


class StoreError(UprofError):
    """A report cannot be used as the database it should be."""

    exit_code = 7
    slug = "store"


class SchemaVersionError(StoreError):
    """A report is readable, but at a schema version that is not accepted."""

    exit_code = 8
    slug = "schema-version"


class OutputError(UprofError):
    """An output cannot be written: it exists, its place is read-only, the disk is full."""

    exit_code = 9
    slug = "output"


class EngineError(UprofError):
    """A scheduler, its workers or the package for them cannot be had, or were lost midway."""

    exit_code = 10
    slug = "engine"
