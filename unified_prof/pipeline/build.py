"""From PROF_* directories to msprof databases."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from unified_prof.decoders.prof.coverage import undecoded
from unified_prof.decoders.prof.directory import ProfDirectory, find_recordings
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.errors import OutputError, UprofError
from unified_prof.pipeline.tally import Tally
from unified_prof.store.writer import ReportWriter
from unified_prof.version import VERSION

_DATABASE = re.compile(r"msprof_\d{1,16}\.db")
_NO_FACTS: Mapping[str, str | None] = MappingProxyType({})

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Built:
    """A database that was built, and what went into it."""

    recording: Path
    database: Path
    rows: Mapping[str, int]
    """Rows by table, only tables that have some; STRING_IDS and UPROF_ tables are not counted."""
    anomalies: Mapping[str, tuple[int, str]]
    """What was skipped or not understood: (count, the first case in words) by name."""
    seconds: Mapping[str, float]
    """CPU time by stage, in order."""


@dataclass(slots=True)
class Outcome:
    """What became of one recording of several: `built` or `error`."""

    recording: Path
    built: Built | None = None
    error: UprofError | None = None


def build_prof(
    recording: Path,
    output: Path | None = None,
    *,
    schema: str = "documented",
    force: bool = False,
    facts: Mapping[str, str | None] = _NO_FACTS,
) -> Path:
    """Build the database of one PROF_* directory and return its path.

    Args:
        recording: The directory.
        output: The database; by default `msprof_<local time>.db` inside `recording`, where the
            vendor's exporter puts it.
        schema: Revision or alias of the msprof schema.
        force: Whether databases that are there may be replaced.
        facts: More rows of UPROF_RUN, about the run that was recorded.

    Raises:
        RawFormatError: it is no recording, or nothing says when it was made.
        OutputError: the database exists or cannot be written.
        UsageError: no such revision.
    """
    return build_database(recording, output, schema=schema, force=force, facts=facts).database


def undecodable(recording: Path) -> tuple[str, ...]:
    """Say what of a recording would be missing in our database, a phrase each; often nothing.

    For those who have another database of it to fall back on.

    Raises:
        RawFormatError: it is no recording.
    """
    return undecoded(ProfDirectory(recording))


def build_database(
    recording: Path,
    output: Path | None = None,
    *,
    schema: str = "documented",
    force: bool = False,
    facts: Mapping[str, str | None] = _NO_FACTS,
    progress: Progress = lambda _: None,
) -> Built:
    """Build one database; as `build_prof`, but tell how it went and what is in it."""
    prof = ProfDirectory(recording)
    replaced: list[Path] = []
    if output is None:
        replaced = _databases_in(recording, force=force)
        output = recording / _file_name(time.time())
    stages = _Stages(progress)
    with ReportWriter(output, revision=schema, overwrite=force) as writer:
        tally = Tally(writer)
        writer.fact("tool", f"uprof {VERSION}")
        writer.fact("command", "build")
        writer.fact("recording", recording.resolve().name)
        for name, value in facts.items():
            writer.fact(name, value)
        for what in undecoded(prof):
            tally.anomaly("undecoded_data", 1, what)
        decode_recording(prof, tally, stages.stage)
        stages.begin("finish")
    stages.end()
    for old in replaced:
        if old != output:
            old.unlink(missing_ok=True)
    return Built(recording, output, tally.rows, tally.anomalies, stages.seconds)


def build_all(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    schema: str = "documented",
    force: bool = False,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Iterator[Outcome]:
    """Build the databases of recordings, or of parents of several; yields each when it is done.

    One that fails does not stop the others.

    Args:
        paths: PROF_* directories or folders of them.
        output: A file if it ends in `.db` and there is one recording, else a folder.
        schema: Revision or alias of the msprof schema.
        force: Whether databases that are there may be replaced.
        jobs: How many recordings to build at a time.
        progress: Told what is being done.
    """
    recordings: list[Path] = []
    for path in paths:
        try:
            recordings += [found for found in find_recordings(path) if found not in recordings]
        except UprofError as err:
            yield Outcome(path, error=err)
    targets = list(_targets(recordings, output, force=force))
    if jobs > 1 and len(recordings) > 1:
        yield from _build_in_parallel(recordings, targets, schema, force, jobs)
        return
    for recording, target in zip(recordings, targets, strict=True):
        yield _outcome(recording, target, schema, force, progress)


def _outcome(
    recording: Path,
    target: Path | None,
    schema: str,
    force: bool,
    progress: Progress = lambda _: None,
) -> Outcome:
    try:
        built = build_database(recording, target, schema=schema, force=force, progress=progress)
    except UprofError as err:
        return Outcome(recording, error=err)
    return Outcome(recording, built)


def _build_in_parallel(
    recordings: Sequence[Path],
    targets: Sequence[Path | None],
    schema: str,
    force: bool,
    jobs: int,
) -> Iterator[Outcome]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(min(jobs, len(recordings)), get_context("spawn")) as pool:
        running = [
            pool.submit(_outcome, recording, target, schema, force)
            for recording, target in zip(recordings, targets, strict=True)
        ]
        for future in running:
            yield future.result()


def _targets(
    recordings: Sequence[Path], output: Path | None, *, force: bool
) -> Iterator[Path | None]:
    """Yield where the database of every recording goes; None is inside the recording.

    Raises:
        OutputError: the folder cannot be made.
    """
    if output is None or (output.suffix == ".db" and len(recordings) == 1):
        yield from [output] * len(recordings)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise OutputError(f"cannot make the folder {output}: {err.strerror}") from err
    moment, taken = time.time(), set()
    for _ in recordings:
        # Readers want this name with 14 digits, so the next second makes a free one.
        while (target := output / _file_name(moment)) in taken or (target.exists() and not force):
            moment += 1
        taken.add(target)
        yield target


def _file_name(moment: float) -> str:
    return f"msprof_{time.strftime('%Y%m%d%H%M%S', time.localtime(moment))}.db"


def _databases_in(recording: Path, *, force: bool) -> list[Path]:
    """Return the databases that lie in a recording already: readers expect one.

    Raises:
        OutputError: there is one, and it may not be replaced.
    """
    try:
        found = sorted(path for path in recording.iterdir() if _DATABASE.fullmatch(path.name))
    except OSError as err:
        raise OutputError(f"cannot list {recording}: {err.strerror}") from err
    if found and not force:
        raise OutputError(
            f"{found[-1]} is there already",
            hint="give --force to replace it, or -o to write elsewhere",
        )
    return found


@dataclass(slots=True)
class _Stages:
    """CPU time by stage; a stage inside another counts for itself only."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def begin(self, name: str) -> None:
        self._count()
        self._running.append(name)
        self.progress(name)

    def end(self) -> None:
        self._count()
        self._running.pop()

    def _count(self) -> None:
        now = time.process_time()
        name = self._running[-1] if self._running else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code of several builds: of the first that failed, else 0."""
    for outcome in outcomes:
        if outcome.error is not None:
            return outcome.error.exit_code
    return 0
