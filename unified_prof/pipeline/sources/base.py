"""The interface of a source: a kind of recording, and everything that converting one requires."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from unified_prof.base.columns import Sink


class Match(Enum):
    """How certain a source is that a file or directory is one of its recordings."""

    NO = "no"
    POSSIBLE = "possible"
    """Accepted if the user names it, skipped in a directory search."""
    CERTAIN = "certain"
    """A recording, complete or damaged: accepted anywhere."""


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """The report that a decoder fills, and where it reports progress."""

    has_column: Callable[[str, str], bool]
    """Returns True if the revision being written has (table, column)."""
    data_types: Mapping[str, int]
    """Name -> id in ENUM_HCCL_DATA_TYPE of that revision."""
    enums: Callable[[str], Mapping[str, int]]
    """Returns name -> id of an ENUM_* table of that revision."""
    stage: Callable[[str], AbstractContextManager[Any]]
    """Context manager that counts CPU time as that of a stage; stages can be nested."""
    next_stage: Callable[[str], None]
    """Ends the innermost stage and begins another."""
    is_own_frame: Callable[[str], bool] = lambda _: False
    """Returns True for a Python frame of uprof, which ran the program."""


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """The return value of a decoder, besides the rows it wrote."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Rows of UPROF_RUN."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Keys that `--json` has for this kind of recording only."""
    summary: str | None = None
    """One line that describes the recording; None: the rows of every table are listed."""
    rank: int | None = None
    """Rank of the recorded process, None if it was not recorded."""


class Source(ABC):
    """A kind of recording that is converted to an msprof database."""

    kind: ClassVar[str]
    """Name of the source; `backends.registry.Recording.kind` of what a backend records."""
    description: ClassVar[str]
    """Name of the format with its article, for messages and help."""
    command: ClassVar[str] = "import"
    """Row `command` of UPROF_RUN, and the command that hints name."""
    json_keys: ClassVar[tuple[str, str]] = ("recording", "database")
    """Keys of the recording and its report in `--json`; scripts rely on these."""
    layouts: ClassVar[frozenset[str]] = frozenset({"plain"})
    """Layouts of `pipeline.output_paths` that its reports support."""
    report_is_inside: ClassVar[bool] = False
    """True if the default place of the report is inside the recording, a directory."""
    name_fact: ClassVar[str] = "recording"
    """Fact of UPROF_RUN that holds the name of a recording."""
    report_names_rank: ClassVar[bool] = False
    """True if default names of its reports contain the rank."""

    @property
    def title(self) -> str:
        """The description without file endings: `a torch.profiler trace`."""
        return self.description.partition(" (")[0]

    @abstractmethod
    def sniff(self, path: Path) -> Match:
        """Look at a file or directory; never raises, and reads the beginning only."""

    @abstractmethod
    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Write the rows of the recording at `path` into `sink`.

        Raises:
            RawFormatError: it is damaged beyond use.
        """

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the facts of UPROF_RUN that identify the recording: by default name and length."""
        fact = self.name_fact
        return {fact: path.name, f"{fact}_bytes": str(path.stat().st_size)}

    def modified_ns(self, path: Path) -> int:
        """Return the time of the last change to the recording, ns since 1970."""
        return path.stat().st_mtime_ns

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Return the data that the report would lack although its schema has tables for it.

        `uprof run` then keeps the database of the vendor's exporter instead.

        Raises:
            RawFormatError: it is not a recording.
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
        """Return where the report is written.

        Args:
            path: The recording.
            directory: The directory that the user chose; None: the default place.
            name: `stem` of the recording, made unique among those converted together.
        """
        return (directory or Path()) / f"{name}.db"

    def has_enums(self, path: Path) -> bool:
        """Return True if the report contains the ENUM_* tables of the schema.

        torch_npu's databases of PyTorch alone do not.
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

        Called if the source or the layout chose the report's place, before the report gets its
        final name, so that a finished report always has its companions.

        Args:
            path: The recording.
            report: The complete report in its directory, under a temporary name.
            force: If True, existing files may be replaced.
        """

    def existing_reports(self, target: Path) -> list[Path]:
        """Return the reports that conflict with one at `target`.

        Raises:
            OSError: the directory cannot be listed.
        """
        return [target] if os.path.lexists(target) else []


@dataclass(slots=True)
class Stages:
    """CPU time in seconds by stage, in order; a nested stage counts for itself only."""

    progress: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as that of stage `name`."""
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
