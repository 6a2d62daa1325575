"""Counts what goes into a report on its way to the writer.

One recording to one msprof database.

What a recording is, and how its rows are decoded, is the business of `pipeline.sources`; where its
report goes, that of `pipeline.places`; this module joins them. `uprof build`, `uprof import` and
`uprof run` all come through here, many recordings by way of `pipeline.conversions`.

Many recordings to msprof databases, several at a time in processes of their own.

One that fails does not stop the others: an outcome says what became of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unified_prof.base.columns import Column, Ledger, Sink, Strings
from unified_prof.errors import OutputError, UprofError
from unified_prof.pipeline import analysis_db, discovery, output_paths, outputs
from unified_prof.pipeline.discovery import Found
from unified_prof.pipeline.output_paths import ASCEND_PT, PLAIN, Place
from unified_prof.pipeline.sources import Decoded, Ground, Source, source_of
from unified_prof.pipeline.sources.base import Stages
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import remove_abandoned
from unified_prof.sqlite.writer import ReportWriter
from unified_prof.version import VERSION


class Tally(Sink):
    """Passes everything on to another sink and counts rows and anomalies."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.rows: dict[str, int] = {}
        """Rows by table, only tables that have some."""
        self.anomalies = Ledger()

    @property
    def strings(self) -> Strings:
        """The string pool of the sink behind."""
        return self._sink.strings

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Pass on and count; see `columns.Sink.write`."""
        count = self._sink.write(table, columns)
        if count:
            self.rows[table] = self.rows.get(table, 0) + count
        return count

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Pass on and count; see `columns.Sink.anomaly`."""
        self.anomalies.add(name, detail, count)
        self._sink.anomaly(name, count, detail)


Progress = Callable[[str], None]

_NO_FACTS: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Converted:
    """A report that was made of a recording, and what went into it."""

    recording: Path
    database: Path
    kind: str
    decoded: Decoded
    rows: Mapping[str, int]
    """Rows by table, only tables that have some; STRING_IDS and UPROF_ tables are not counted."""
    anomalies: Mapping[str, tuple[int, str]]
    """What was skipped or not understood, as in UPROF_ANOMALIES: (count, the first case in words)
    by name."""
    seconds: Mapping[str, float]
    """CPU time by stage, in order."""


def convert(
    path: Path,
    target: Path | None = None,
    *,
    source: Source | None = None,
    schema: str = "documented",
    force: bool = False,
    facts: Mapping[str, str | None] = _NO_FACTS,
    of_own_run: bool = False,
    progress: Progress = lambda _: None,
) -> Converted:
    """Make the msprof database of one recording.

    Args:
        path: The recording.
        target: The database; by default where the source puts it.
        source: What the recording is; by default told by its contents.
        schema: Revision or alias of the msprof schema.
        force: Whether databases that are there may be replaced.
        facts: More rows of UPROF_RUN, about the run that was recorded.
        of_own_run: Whether uprof ran the program: its own frames are left out of call chains.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: it is no recording, or damaged beyond use.
        OutputError: a database exists or cannot be written.
        UsageError: no such revision; or it is something that another command reads.
    """
    source = source or source_of(path)
    if source is None:
        raise discovery.refusal(path)
    found = Found(path, source)
    place = Place(target) if target is not None else _usual_place(found)
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force, facts, of_own_run)
    if not force:
        output_paths.refuse_existing(place)
    with ExitStack() as folders:
        if place.folder is not None:
            folders.enter_context(outputs.output_directory(place.folder))
        return convert_found(found, place, settings, progress)


@dataclass(frozen=True, slots=True)
class Settings:
    """What all conversions of one command have in common."""

    revision: str
    force: bool
    facts: Mapping[str, str | None] = field(default_factory=dict)
    of_own_run: bool = False


def _usual_place(found: Found) -> Place:
    (place,) = output_paths.choose([found], None)
    if isinstance(place, OutputError):
        raise place
    return place


def convert_found(found: Found, place: Place, settings: Settings, progress: Progress) -> Converted:
    """Write one report and give it its name; what it replaces goes when it is complete."""
    if place.target.exists() and place.target.samefile(found.path):
        raise OutputError(
            f"{place.target} is the recording itself, which a report never replaces",
            slug="not-replaced",
        )
    if not settings.force:
        output_paths.refuse_existing(place)
    if place.folder is not None:  # another second has another name: the writer looks for its own
        remove_abandoned(place.folder)
    converted = _write(found, place, settings, progress)
    for old in place.existing:
        if old != converted.database:
            old.unlink(missing_ok=True)
    return converted


def _write(found: Found, place: Place, settings: Settings, progress: Progress) -> Converted:
    source, revision = found.source, settings.revision
    stages = Stages(progress)
    with ReportWriter(
        place.target,
        revision=revision,
        overwrite=settings.force,
        empty_tables=analysis_db.empty_tables(revision) if place.layout == ASCEND_PT else (),
        enums=source.wants_enums(found.path),
    ) as writer:
        tally = Tally(writer)
        ground = _ground(revision, stages, of_own_run=settings.of_own_run)
        decoded = source.decode(found.path, tally, ground)
        facts: dict[str, Any] = {"tool": f"uprof {VERSION}", "command": source.command}
        for name, value in {
            **facts,
            **source.identity(found.path),
            **decoded.facts,
            **settings.facts,
        }.items():
            writer.fact(name, value)
        if place.folder is not None:
            if place.layout == ASCEND_PT:
                writer.rename(analysis_db.database_name(decoded.rank))
            writer.before_name(_Companions(found, place, decoded, stages, force=settings.force))
        stages.now("finish")
    stages.end()
    return Converted(
        found.path,
        writer.path,
        source.kind,
        decoded,
        tally.rows,
        dict(writer.anomalies),
        stages.seconds,
    )


@dataclass(frozen=True, slots=True)
class _Companions:
    """Writes what belongs beside a report at a place of our choice, before it gets its name.

    So a report that is there has them, whenever the process that made it was killed.
    """

    found: Found
    place: Place
    decoded: Decoded
    stages: Stages
    force: bool

    def __call__(self, report: Path) -> None:
        """Write them; `report` is complete."""
        with self.stages.stage("beside"):
            source = self.found.source
            if self.place.layout == ASCEND_PT:
                analysis_db.accompany(
                    report,
                    self.decoded.rank,
                    what=None if source.describes_itself(self.found.path) else source.what,
                    force=self.force,
                )
            source.complete(self.found.path, report, force=self.force)


def _ground(revision: str, stages: Stages, *, of_own_run: bool) -> Ground:
    spec = catalogue.load(catalogue.MSPROF, revision)
    columns = {name: frozenset(table.column_names) for name, table in spec.tables.items()}

    @cache
    def enum(table: str) -> Mapping[str, int]:
        return {str(name): int(str(number)) for number, name in spec.rows.get(table, ())}

    return Ground(
        has_column=lambda table, column: column in columns.get(table, ()),
        data_types=enum("ENUM_HCCL_DATA_TYPE"),
        enums=enum,
        stage=stages.stage,
        now=stages.now,
        is_own_frame=_is_own_frame if of_own_run else lambda _: False,
    )


def _is_own_frame(frame: str) -> bool:
    """Tell frames of this package, as the profiler writes them: it strips site-packages."""
    package = Path(__file__).resolve().parents[1]
    return frame.startswith((f"{package.name}/", f"{package}/"))


STANDARD_INPUT = Path("-")
"""What names standard input among recordings."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one recording of several: `converted`, `already` or `error`."""

    number: int
    """Place among what was asked for, from 0: outcomes come as they are ready."""
    recording: Path
    source: Source | None = None
    """None: the path names no recording."""
    converted: Converted | None = None
    already: Path | None = None
    """The report that an earlier run made of it, which was left as it is."""
    error: UprofError | None = None


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code of several conversions: of the first that failed, else 0."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    first = min(failed, key=lambda outcome: outcome.number, default=None)
    return 0 if first is None or first.error is None else first.error.exit_code


def convert_all(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    schema: str | None = None,
    layout: str = PLAIN,
    force: bool = False,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    note: Progress = lambda _: None,
) -> Iterator[Outcome]:
    """Make the databases of all recordings that `paths` name; yield each when it is ready.

    One that fails does not stop the others. Of several recordings, those whose report an earlier
    run has made are passed over (`Outcome.already`), unless `force` is given.

    Args:
        paths: Recordings, folders in which they lie at any depth, and patterns; STANDARD_INPUT.
        output: A file if it ends in `.db` (for one recording), else a folder.
        schema: Revision or alias of the msprof schema; None: `documented`, or in the layout of
            torch_npu what its readers do best with.
        layout: `plain`, or `ascend-pt` for the names and folders of torch_npu.
        force: Whether databases that are there may be replaced.
        jobs: How many recordings to convert at a time.
        progress: Told in a few words what is going on.
        note: Told in a sentence what was not looked into.

    Raises:
        UsageError: no such revision; several reports, or a layout, cannot be had in one file.
    """
    schema = schema or (analysis_db.SCHEMA if layout == ASCEND_PT else "documented")
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force)
    if output is not None and output_paths.is_file(output):
        output_paths.refuse_sharing(output, len(paths), layout)
    if STANDARD_INPUT not in paths:
        yield from _convert_all(paths, output, layout, settings, jobs, progress, note)
        return
    from unified_prof.pipeline import discovery as standard_input

    with ExitStack() as files:
        named = [path for path in paths if path != STANDARD_INPUT]
        kept = None
        try:
            kept = files.enter_context(standard_input.as_file(progress))
        except UprofError as err:
            yield Outcome(-1, STANDARD_INPUT, error=err)
        else:
            named.insert(paths.index(STANDARD_INPUT), kept)
        for outcome in _convert_all(named, output, layout, settings, jobs, progress, note):
            yield _of_standard_input(outcome) if outcome.recording == kept else outcome


def _of_standard_input(outcome: Outcome) -> Outcome:
    """Return the outcome in the words of one who knows nothing of a temporary file."""
    error, converted = outcome.error, outcome.converted
    if error is not None:
        path, words = str(outcome.recording), "standard input"
        hint = None if error.hint is None else error.hint.replace(path, words)
        error = type(error)(str(error).replace(path, words), hint=hint, slug=error.slug)
    if converted is not None:
        converted = replace(converted, recording=STANDARD_INPUT)
    return replace(outcome, recording=STANDARD_INPUT, error=error, converted=converted)


def _convert_all(
    paths: Sequence[Path],
    output: Path | None,
    layout: str,
    settings: Settings,
    jobs: int,
    progress: Progress,
    note: Progress,
) -> Iterator[Outcome]:
    recordings: dict[int, Found] = {}
    for number, found in enumerate(discovery.find(paths, progress, note)):
        if isinstance(found, Found):
            recordings[number] = found
        else:
            yield Outcome(number, found[0], error=found[1])
    chosen = output_paths.choose(list(recordings.values()), output, layout)
    tasks: list[_Task] = []
    for (number, found), place in zip(recordings.items(), chosen, strict=True):
        outcome = Outcome(number, found.path, found.source)
        if isinstance(place, OutputError):
            yield replace(outcome, error=place)
        elif (
            len(recordings) > 1
            and not settings.force
            and (already := output_paths.made_already(found, place, settings.revision))
        ):
            yield replace(outcome, already=already)
        else:
            tasks.append(_Task(outcome, found, place, settings))
    with ExitStack() as folders:
        ready: list[_Task] = []
        for task in tasks:
            try:
                if not settings.force:
                    output_paths.refuse_existing(task.place)
                if task.place.folder is not None:
                    folders.enter_context(outputs.output_directory(task.place.folder))
            except OutputError as err:
                yield replace(task.outcome, error=err)
            else:
                ready.append(task)
        yield from _run(ready, jobs, progress)


@dataclass(frozen=True, slots=True)
class _Task:
    """One conversion, as it goes to a process of its own."""

    outcome: Outcome
    found: Found
    place: Place
    settings: Settings


def _run(tasks: Sequence[_Task], jobs: int, progress: Progress) -> Iterator[Outcome]:
    if jobs == 1 or len(tasks) <= 1:
        for done, task in enumerate(tasks):
            at = f"{done + 1} of {len(tasks)}, " if len(tasks) > 1 else ""
            yield outcome_of(task, partial(_tell_of, progress, f"{at}{task.found.path.name}"))
        return
    from unified_prof.pipeline import executors

    progress(f"converting {len(tasks)} recordings")
    with executors.open_executor(jobs=min(jobs, len(tasks))) as crew:
        for finished, (task, result) in enumerate(
            executors.each(crew, outcome_of, tasks, again=_once_more), start=1
        ):
            progress(f"{finished} of {len(tasks)} done")
            if isinstance(result, executors.Failure):
                error = UprofError(
                    f"{task.found.path}: the process that converted it {result}, twice",
                    hint="if memory ran out, convert it without --jobs on a machine that has more",
                    slug="process-killed",
                )
                yield replace(task.outcome, error=error)
            else:
                yield result


def _once_more(task: _Task) -> _Task:
    """Return the task for another try: what is there now may be the first one's own report."""
    place = output_paths.as_it_is_now(task.found, task.place)
    if output_paths.made_already(task.found, place, task.settings.revision) is None:
        return task
    return replace(task, place=place, settings=replace(task.settings, force=True))


def _tell_of(progress: Progress, recording: str, stage: str) -> None:
    progress(f"{recording}: {stage}")


def outcome_of(task: _Task, progress: Progress = lambda _: None) -> Outcome:
    """Convert one recording, in whichever process this is, and return what became of it."""
    try:
        converted = convert_found(task.found, task.place, task.settings, progress)
    except UprofError as err:
        return replace(task.outcome, error=err)
    return replace(task.outcome, converted=converted)
