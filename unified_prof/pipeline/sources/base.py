"""What a source is: a kind of recording, and all that converting one needs to know of it.

CPU time by stage of a job, and whom it tells what it is doing.
"""

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


class Sign(Enum):
    """What a look at the name and the first bytes says."""

    NO = "no"
    MAYBE = "maybe"
    """It can be one: taken where a user names it, passed over in a folder."""
    SURE = "sure"
    """It is one, or a damaged one: taken wherever it lies."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a decoder may know of the report that it fills, and whom it tells."""

    has_column: Callable[[str, str], bool]
    """Whether the revision being written has (table, column)."""
    data_types: Mapping[str, int]
    """ENUM_HCCL_DATA_TYPE of that revision, name -> id."""
    enums: Callable[[str], Mapping[str, int]]
    """The same of any ENUM_* table."""
    stage: Callable[[str], AbstractContextManager[Any]]
    """Entered around a part of the work: CPU time and progress. One may lie inside another."""
    now: Callable[[str], None]
    """The same for work that has one stage after the other."""
    is_own_frame: Callable[[str], bool] = lambda _: False
    """Whether a Python frame belongs to uprof, which ran the program."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decoder tells besides the rows it wrote."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Rows of UPROF_RUN: where the report comes from."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What `--json` says of this kind of recording only."""
    summary: str | None = None
    """One line on what was found; without it, the rows of every table are listed."""
    rank: int | None = None
    """The process of a distributed run that was recorded, where the recording says it."""


class Source(ABC):
    """A kind of recording that becomes an msprof database."""

    kind: ClassVar[str]
    """Its name; `backends.base.Recording.kind` of what a backend leaves."""
    what: ClassVar[str]
    """What it is in a message, with its article."""
    command: ClassVar[str]
    """Row `command` of UPROF_RUN, and the command that hints name."""
    keys: ClassVar[tuple[str, str]] = ("recording", "database")
    """What `--json` calls the recording and its report; scripts rely on these."""
    layouts: ClassVar[frozenset[str]] = frozenset({"plain"})
    """Layouts of `pipeline.places` that its reports can be put in."""
    inside: ClassVar[bool] = False
    """Whether the report's place is inside the recording, a folder then."""

    names_rank: ClassVar[bool] = False
    """Whether the names of its reports say the rank in any case."""

    @property
    def title(self) -> str:
        """What it is in a sentence, without the ends of names: `a torch.profiler trace`."""
        return self.what.partition(" (")[0]

    @abstractmethod
    def sniff(self, path: Path) -> Sign:
        """Look at a file or folder; never raises and reads a few KB at most."""

    @abstractmethod
    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Write the rows of the recording at `path` into `sink`.

        Raises:
            RawFormatError: it is damaged beyond use.
        """

    @abstractmethod
    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the facts of UPROF_RUN by which its report is known to be of this recording."""

    def changed_ns(self, path: Path) -> int:
        """Return when the recording was last written to, ns since 1970."""
        return path.stat().st_mtime_ns

    def undecodable(self, path: Path) -> tuple[str, ...]:
        """Say what would be missing in our report of it, a phrase each; often nothing.

        For those who have another database of it to fall back on.

        Raises:
            RawFormatError: it is no recording.
        """
        return ()

    def stem(self, path: Path) -> str:
        """Return what its report is named after."""
        return path.resolve().name

    def rank(self, path: Path) -> int | None:
        """Return which of several processes was recorded, where a look at the beginning says it."""
        return None

    def target(self, path: Path, folder: Path | None, name: str) -> Path:
        """Return where its report goes.

        Args:
            path: The recording.
            folder: That was asked for; None: the usual place.
            name: `stem` of the recording, made unique among those converted together.
        """
        return (folder or Path()) / f"{name}.db"

    def wants_enums(self, path: Path) -> bool:
        """Whether the schema's lists of names, ENUM_*, belong into its report.

        They do not where torch_npu makes a database without msprof's, of PyTorch's rows alone.
        """
        return True

    def describes_itself(self, path: Path) -> bool:
        """Whether files of it say what torch_npu says of a recording (profiler_info*.json).

        `complete` puts them where viewers look.
        """
        return False

    def complete(  # noqa: B027 (most have nothing to add)
        self, path: Path, report: Path, *, force: bool
    ) -> None:
        """Write what readers of the layout expect beside the report.

        It is called where the report's place is of the source's or the layout's choice, before
        the report gets its name: a report that is there has all that belongs to it.

        Args:
            path: The recording.
            report: Complete, in its folder, under a name for the time being.
            force: Whether what is there already may be replaced.
        """

    def reports_at(self, target: Path) -> list[Path]:
        """Return the reports that stand in the way of one at `target`.

        Raises:
            OSError: the place cannot be listed.
        """
        return [target] if os.path.lexists(target) else []


@dataclass(slots=True)
class Stages:
    """CPU time in seconds by stage, in order; a stage inside another counts for itself only."""

    progress: Callable[[str], None] = lambda _: None
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block's time as that of `name`."""
        self._count()
        self._running.append(name)
        self.progress(name)
        try:
            yield
        finally:
            self._count()
            self._running.pop()

    def now(self, name: str) -> None:
        """Let `name` take the place of the innermost stage."""
        self._count()
        self._running[-1:] = [name]
        self.progress(name)

    def end(self) -> None:
        """Count what is left."""
        self._count()
        self._running.clear()

    def _count(self) -> None:
        now = time.process_time()
        name = self._running[-1] if self._running else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
