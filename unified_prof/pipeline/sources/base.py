"""Defines the interface of sources (kinds of recordings that can be converted)."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct, field

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from unified_prof.base.columns import Sink


class Match(Enum):
    """Certainty of a source that a file or directory is one of its recordings."""

    NO = "no"
    POSSIBLE = "possible"  # Accepted if named by the user, skipped in a directory search.
    CERTAIN = "certain"  # Certainly a recording, complete or damaged; always accepted.


class DecodeContext(Struct, frozen=True):
    """Information about the report, and callbacks for a decoder."""

    # Returns True if the revision being written has (table, column).
    has_column: Callable[[str, str], bool]
    # Returns name -> id for an ENUM_* table of the schema revision.
    enums: Callable[[str], Mapping[str, int]]
    # Context manager that measures the CPU time of a stage; stages can be nested.
    stage: Callable[[str], AbstractContextManager[Any]]
    next_stage: Callable[[str], None]  # Ends the innermost stage and begins another.
    # Returns True for a Python frame of uprof itself; None if there are none.
    is_own_frame: Callable[[str], bool] | None = None


class DecodeResult(Struct, frozen=True):
    """Return value of a decoder."""

    facts: Mapping[str, Any] = field(default_factory=dict)  # Rows of UPROF_RUN.
    # Additional keys in `--json` for this kind of recording.
    figures: Mapping[str, Any] = field(default_factory=dict)
    # One line that describes the recording; None: the rows of every table are listed.
    summary: str | None = None
    rank: int | None = None  # Rank of the recorded process, None if it was not recorded.


class Source(ABC):
    """A kind of recording that is converted to an msprof database."""

    # Name of the source; equals `backends.registry.Recording.kind` of recordings from a backend.
    kind: ClassVar[str]
    description: ClassVar[str]  # Name of the format with its article, for messages and help.
    # Value of the row `command` in UPROF_RUN; also used in hints.
    command: ClassVar[str] = "import"
    # Keys of the recording and its report in `--json`; scripts rely on these.
    json_keys: ClassVar[tuple[str, str]] = ("recording", "database")
    # Layouts of `pipeline.discovery` that its reports support.
    layouts: ClassVar[frozenset[str]] = frozenset({"plain"})
    # True if the default place of the report is inside the recording, a directory.
    report_is_inside: ClassVar[bool] = False
    name_fact: ClassVar[str] = "recording"  # Row of UPROF_RUN with the name of the recording.
    # True if default names of its reports contain the rank.
    report_names_rank: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """Description without file suffixes, such as `a torch.profiler trace`."""
        return self.description.partition(" (")[0]

    @abstractmethod
    def sniff(self, path: Path) -> Match:
        """Check whether a path is a recording; never raises, and reads only the beginning."""

    @abstractmethod
    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Write the rows of the recording at `path` into `sink`.

        Raises RawFormatError if the recording is too damaged to decode.
        """

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the rows of UPROF_RUN that identify the recording; by default name and length."""
        fact = self.name_fact
        return {fact: path.name, f"{fact}_bytes": str(path.stat().st_size)}

    def modified_ns(self, path: Path) -> int:
        """Return the time of the last change to the recording, ns since 1970."""
        return path.stat().st_mtime_ns

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Return the data that cannot be decoded although the schema has tables for it.

        If there is such data, `uprof run` keeps the database of the vendor's exporter instead.
        Raises RawFormatError if `path` is not a recording.
        """
        return ()

    def stem(self, path: Path) -> str:
        """Return the name that the report's name is derived from."""
        return path.resolve().name

    def rank(self, path: Path) -> int | None:
        """Return the rank of the recorded process, None if the beginning does not contain it."""
        return None

    def world_size(self, path: Path) -> int | None:
        """Return the number of ranks of the run, None if the beginning does not contain it."""
        return None

    def report_path(self, path: Path, directory: Path | None, name: str) -> Path:
        """Return the path of the report.

        `directory` is the one that the user chose; None: the default place. `name` is `stem` of the
        recording, made unique among the recordings of the command.
        """
        return (directory or Path()) / f"{name}.db"

    def has_enums(self, path: Path) -> bool:
        """Return True if the report contains the constant rows of the schema.

        They are those of the ENUM_* tables and SCHEMA_VERSION; msprof writes them, so torch_npu's
        databases without PROF_* do not contain them.
        """
        return True

    def has_description(self, path: Path) -> bool:
        """Return True if the recording has torch_npu's profiler_info*.json.

        `write_companions` then copies it to where viewers look.
        """
        return False

    def write_companions(  # noqa: B027 (most sources have none)
        self, path: Path, report: Path, *, force: bool
    ) -> None:
        """Write the files that readers of the layout expect beside the report.

        Called if the source or the layout chose the path of the report. The report gets its final
        name afterwards, so that a finished report always has its companion files. The report is
        complete and in its directory, under a temporary name.
        """

    def existing_reports(self, target: Path) -> list[Path]:
        """Return the existing reports that conflict with a report at `target`.

        Raises OSError if the directory cannot be listed.
        """
        return [target] if os.path.lexists(target) else []


class Stages(Struct):
    """CPU time in seconds by stage; the time of a nested stage counts only for the nested stage."""

    progress: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context manager that measures the time of the block as stage `name`."""
        self._count()
        self._running.append(name)
        self.progress(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def next_stage(self, name: str) -> None:
        """End the innermost stage and begin stage `name`."""
        self._count()
        self._running[-1:] = [name]
        self.progress(name)

    def end(self) -> None:
        """End all stages."""
        self._count()
        self._running.clear()

    def _count(self) -> None:
        now = time.process_time()
        name = self._running[-1] if self._running else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
