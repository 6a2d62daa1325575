"""Converts recordings to msprof databases, several at a time in parallel processes.

`uprof convert` and `uprof run` use this module. `pipeline.sources` decides what a recording is and
decodes it; `pipeline.discovery` decides where its report is written. A recording that fails does
not stop the others; each recording has an `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.base.columns import (
    COVERAGE_TABLE,
    Column,
    CoveredPart,
    Ledger,
    Sink,
    Strings,
    anomaly_fields,
    anomaly_lines,
    coverage_text,
)
from unified_prof.errors import OutputError, RawFormatError, UprofError
from unified_prof.pipeline import analysis_db, discovery, outputs
from unified_prof.pipeline.discovery import ASCEND_PT, PLAIN, FoundRecording, ReportPlace
from unified_prof.pipeline.sources import DecodeContext, DecodeResult, Source, find_source
from unified_prof.pipeline.sources.base import Stages
from unified_prof.pipeline.temporary_inputs import STANDARD_INPUT, TemporaryInputs
from unified_prof.schema import catalogue
from unified_prof.sqlite.writer import ReportWriter
from unified_prof.version import VERSION


class CountingSink(Sink):
    """Forwards rows and anomalies to another sink and counts them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.rows: dict[str, int] = {}  # Number of rows by table, without empty tables.
        self.anomalies = Ledger()
        self.coverage: list[CoveredPart] = []

    @property
    def strings(self) -> Strings:
        """String pool of the wrapped sink."""
        return self._sink.strings

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        """Count and write a batch; see `columns.Sink.write`."""
        count = self._sink.write(table, columns)
        if table == COVERAGE_TABLE:
            rows = zip(*(columns[name] for name in CoveredPart._fields), strict=True)
            self.coverage += [CoveredPart(*row) for row in rows]
        elif count:
            self.rows[table] = self.rows.get(table, 0) + count
        return count

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        """Count an anomaly; see `columns.Sink.anomaly`."""
        self.anomalies.add(name, detail, count)
        self._sink.anomaly(name, count, detail)


Progress = Callable[[str], None]


def prefixed(progress: Progress, prefix: str) -> Progress:
    """Return `progress` with a text before each stage."""
    return lambda stage: progress(f"{prefix}{stage}")


_NO_FACTS: Mapping[str, str | None] = MappingProxyType({})


class Conversion(Struct, frozen=True):
    """A report created from a recording, with row counts and anomalies."""

    recording: Path
    database: Path
    kind: str
    result: DecodeResult
    # Number of rows by table, without empty tables, STRING_IDS and UPROF_ tables.
    rows: Mapping[str, int]
    # Skipped or unknown data with count and first example, as in UPROF_ANOMALIES.
    anomalies: Mapping[str, tuple[int, str]]
    seconds: Mapping[str, float]  # CPU time by stage, in order.
    # How much of each kind of data was decoded, as in UPROF_COVERAGE.
    coverage: Sequence[CoveredPart] = ()

    def fields(self) -> dict[str, Any]:
        """Return rows, anomalies, coverage and times as plain data."""
        return {
            **self.result.figures,
            "rows": dict(sorted(self.rows.items())),
            "anomalies": anomaly_fields(self.anomalies),
            "coverage": [part._asdict() for part in self.coverage],
            "cpu_seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
        }

    def lines(self, title: str) -> Iterator[str]:
        """Yield what was converted as indented lines of text."""
        if self.result.summary is not None:
            yield f"  {title}: {self.result.summary}"
        else:
            yield f"  {title}"
            width = max((len(name) for name in self.rows), default=0)
            for table, rows in sorted(self.rows.items()):
                yield f"  {table:{width}}  {rows:>12,} row{'s' * (rows != 1)}"
        if self.coverage:
            yield f"  decoded {coverage_text(self.coverage)}"
        yield from anomaly_lines(self.anomalies)
        total = sum(self.seconds.values())
        slowest = sorted(self.seconds.items(), key=lambda stage: -stage[1])
        parts = ", ".join(f"{name} {used:.2f} s" for name, used in slowest if used >= 0.005)
        yield f"  CPU time {total:.2f} s" + (f": {parts}" if parts else "")


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
) -> Conversion:
    """Convert one recording to an msprof database.

    By default, the source chooses `target` and is determined by the content. If `force`, existing
    databases may be replaced; if `of_own_run`, frames of uprof itself are omitted from call chains.
    `facts` are additional rows of UPROF_RUN. Raises RawFormatError if it is not a recording, or is
    damaged beyond use, OutputError if a database exists or cannot be written, and UsageError if the
    revision is unknown, or the file is for another command.
    """
    source = source or find_source(path)
    if source is None:
        raise discovery.refusal(path)
    found = FoundRecording(path, source)
    if target is not None:
        place = ReportPlace(target)
    else:
        (default,) = discovery.choose([found], None)
        if isinstance(default, OutputError):
            raise default
        place = default
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force, facts, of_own_run)
    if not force:
        discovery.refuse_existing(place)
    with ExitStack() as directories:
        if place.directory is not None:
            directories.enter_context(outputs.output_directory(place.directory))
        return _convert_found(found, place, settings, progress)


class Settings(Struct, frozen=True):
    """Settings shared by all conversions of one command."""

    revision: str
    force: bool
    facts: Mapping[str, str | None] = field(default_factory=dict)
    of_own_run: bool = False


def _convert_found(
    found: FoundRecording, place: ReportPlace, settings: Settings, progress: Progress
) -> Conversion:
    """Write one report; when it is complete, remove the reports that it replaces."""
    if place.target.exists() and place.target.samefile(found.path):
        raise OutputError(
            f"{place.target} is the recording itself and cannot be overwritten", slug="not-replaced"
        )
    if not settings.force:
        discovery.refuse_existing(place)
    conversion = _write(found, place, settings, progress)
    for old in place.existing:
        if old != conversion.database:
            old.unlink(missing_ok=True)
    return conversion


def _write(
    found: FoundRecording, place: ReportPlace, settings: Settings, progress: Progress
) -> Conversion:
    source, revision = found.source, settings.revision
    stages = Stages(progress)
    with ReportWriter(
        place.target,
        revision=revision,
        overwrite=settings.force,
        empty_tables=analysis_db.empty_tables(revision) if place.layout == ASCEND_PT else (),
        enums=source.has_enums(found.path),
    ) as writer:
        sink = CountingSink(writer)
        context = _decode_context(revision, stages, of_own_run=settings.of_own_run)
        result = source.decode(found.path, sink, context)
        facts: dict[str, Any] = {
            "tool": f"uprof {VERSION}",
            "command": source.command,
            **source.identity(found.path),
            **result.facts,
            **settings.facts,
        }
        for name, value in facts.items():
            writer.fact(name, value)
        if place.directory is not None:
            if place.layout == ASCEND_PT:
                writer.rename(analysis_db.database_name(result.rank))
            # A report that exists has its companions, even if this process is killed.
            writer.before_name(
                partial(_write_companions, found, place, result.rank, stages, settings.force)
            )
        stages.next_stage("finish")
    stages.end()
    return Conversion(
        found.path,
        writer.path,
        source.kind,
        result,
        sink.rows,
        dict(writer.anomalies),
        stages.seconds,
        sink.coverage,
    )


def _write_companions(
    found: FoundRecording,
    place: ReportPlace,
    rank: int | None,
    stages: Stages,
    force: bool,
    report: Path,
) -> None:
    """Write the companion files of a report, unless the user named the report's file."""
    with stages.stage("companions"):
        source = found.source
        if place.layout == ASCEND_PT:
            described = source.has_description(found.path)
            description = None if described else source.description
            analysis_db.write_companions(report, rank, description=description, force=force)
        source.write_companions(found.path, report, force=force)


def _decode_context(revision: str, stages: Stages, *, of_own_run: bool) -> DecodeContext:
    spec = catalogue.load(catalogue.MSPROF, revision)
    columns = {name: frozenset(table.column_names) for name, table in spec.tables.items()}

    package = Path(__file__).resolve().parents[1]
    own = (f"{package.name}/", f"{package}/")

    @cache
    def enum(table: str) -> Mapping[str, int]:
        return {str(name): int(str(number)) for number, name in spec.rows.get(table, ())}

    return DecodeContext(
        has_column=lambda table, column: column in columns.get(table, ()),
        enums=enum,
        stage=stages.stage,
        next_stage=stages.next_stage,
        # Frames of this package; the profiler strips site-packages from paths.
        is_own_frame=(lambda frame: frame.startswith(own)) if of_own_run else None,
    )


class Outcome(Struct, frozen=True):
    """Outcome of one recording; one of `conversion`, `existing` and `error` is set."""

    number: int  # Index of the recording, from 0; outcomes are yielded in order of completion.
    recording: Path
    source: Source | None = None  # None: the path is not a recording.
    conversion: Conversion | None = None
    existing: Path | None = None  # Report of an earlier conversion, which was kept.
    error: UprofError | None = None

    def fields(self) -> dict[str, Any]:
        """Return the outcome as plain data without its error; its keys depend on the format."""
        source = self.source
        recording, database = ("recording", "database") if source is None else source.json_keys
        record: dict[str, Any] = {recording: str(self.recording)}
        if source is not None:
            record["kind"] = source.kind
        if self.existing is not None:
            return record | {database: str(self.existing), "converted_already": True}
        if self.conversion is not None:
            record |= {database: str(self.conversion.database), **self.conversion.fields()}
        return record

    def lines(self) -> Iterator[str]:
        """Yield the outcome as lines of text; an error has none."""
        name = "standard input" if self.recording == STANDARD_INPUT else str(self.recording)
        if self.existing is not None:
            yield f"{name} -> {self.existing}: already converted"
        elif self.conversion is not None and self.source is not None:
            yield f"{name} -> {self.conversion.database}"
            yield from self.conversion.lines(self.source.title.partition(" ")[2])


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code of the first conversion that failed, else 0."""
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
    """Convert all recordings in `paths`; yield each outcome as soon as it is ready.

    A failed recording does not stop the others. If there are several recordings, those that already
    have a report are skipped (`Outcome.existing`), unless `force` is true. Paths are recordings,
    directories, archives, patterns and STANDARD_INPUT; `output` is a file if it ends in `.db` (for
    one recording), else a directory. The schema None is `documented`, or in the layout `ascend-pt`
    (names and directories of torch_npu) the one that its readers support best. `note` is called
    with a note about files that were skipped.

    Raises:
        UsageError: the revision is unknown; `output` is a file, but several files would be written.
    """
    schema = schema or (analysis_db.SCHEMA if layout == ASCEND_PT else "documented")
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force)
    if output is not None and discovery.is_file(output):
        discovery.refuse_sharing(output, len(paths), layout)
    with TemporaryInputs() as temporary:
        named = list(paths)
        for index, path in enumerate(paths):
            if path == STANDARD_INPUT:
                try:  # a second `-` is the same file, and found only once
                    if STANDARD_INPUT in paths[:index]:
                        named.remove(STANDARD_INPUT)
                    else:
                        named[named.index(path)] = temporary.read_standard_input(progress)
                except UprofError as err:
                    named.remove(STANDARD_INPUT)
                    yield Outcome(-1, STANDARD_INPUT, error=err)

        found = discovery.find(
            named, progress, lambda text: note(temporary.display_name(text)), temporary
        )
        for outcome in _convert_all(found, output, layout, settings, jobs, progress):
            yield _without_temporary_names(outcome, temporary)


def _without_temporary_names(outcome: Outcome, temporary: TemporaryInputs) -> Outcome:
    """Return the outcome with temporary paths replaced by the names that the user passed."""
    if not temporary.contains(outcome.recording):
        return outcome
    error, conversion = outcome.error, outcome.conversion
    recording = Path(temporary.display_name(str(outcome.recording)))
    if error is not None:
        hint = None if error.hint is None else temporary.display_name(error.hint)
        error = type(error)(temporary.display_name(str(error)), hint=hint, slug=error.slug)
    if conversion is not None:
        conversion = replace(conversion, recording=recording)
    return replace(outcome, recording=recording, error=error, conversion=conversion)


def _convert_all(
    every: Iterable[FoundRecording | discovery.FailedPath],
    output: Path | None,
    layout: str,
    settings: Settings,
    jobs: int,
    progress: Progress,
) -> Iterator[Outcome]:
    recordings: dict[int, FoundRecording] = {}
    for number, found in enumerate(every):
        if isinstance(found, FoundRecording):
            recordings[number] = found
        else:
            yield Outcome(number, found[0], error=found[1])
    chosen = discovery.choose(list(recordings.values()), output, layout)
    tasks: list[_Task] = []
    for (number, found), place in zip(recordings.items(), chosen, strict=True):
        outcome = Outcome(number, found.path, found.source)
        if isinstance(place, OutputError):
            yield replace(outcome, error=place)
        elif (
            len(recordings) > 1
            and not settings.force
            and (existing := discovery.existing_report(found, place, settings.revision))
        ):
            yield replace(outcome, existing=existing)
        else:
            tasks.append(_Task(outcome, found, place, settings))
    with ExitStack() as directories:
        ready: list[_Task] = []
        for task in tasks:
            try:
                if not settings.force:
                    discovery.refuse_existing(task.place)
                if task.place.directory is not None:
                    directories.enter_context(outputs.output_directory(task.place.directory))
            except OutputError as err:
                yield replace(task.outcome, error=err)
            else:
                ready.append(task)
        yield from _run(ready, jobs, progress)


class _Task(Struct, frozen=True):
    """One conversion, which may run in another process."""

    outcome: Outcome
    found: FoundRecording
    place: ReportPlace
    settings: Settings


def _run(tasks: Sequence[_Task], jobs: int, progress: Progress) -> Iterator[Outcome]:
    if jobs == 1 or len(tasks) <= 1:
        for done, task in enumerate(tasks):
            at = f"{done + 1} of {len(tasks)}, " if len(tasks) > 1 else ""
            yield run_task(task, prefixed(progress, f"{at}{task.found.path.name}: "))
        return
    from unified_prof.pipeline import executors

    progress(f"converting {len(tasks)} recordings")
    with executors.open_executor(jobs=min(jobs, len(tasks))) as executor:
        for finished, (task, result) in enumerate(
            executors.map_unordered(executor, run_task, tasks, retry=_retried), start=1
        ):
            progress(f"{finished} of {len(tasks)} done")
            if isinstance(result, executors.Failure):
                error = UprofError(
                    f"{task.found.path}: the worker process {result} in both attempts",
                    hint="if memory ran out, use a machine with more memory or omit --jobs",
                    slug="process-killed",
                )
                yield replace(task.outcome, error=error)
            else:
                yield result


def _retried(task: _Task) -> _Task:
    """Return the task for a second attempt; the first attempt may have written the report."""
    place = discovery.with_existing(task.found, task.place)
    if discovery.existing_report(task.found, place, task.settings.revision) is None:
        return task
    return replace(task, place=place, settings=replace(task.settings, force=True))


def run_task(task: _Task, progress: Progress = lambda _: None) -> Outcome:
    """Convert one recording and return its outcome; may run in any process."""
    try:
        conversion = _convert_found(task.found, task.place, task.settings, progress)
    except UprofError as err:
        return replace(task.outcome, error=err)
    except MemoryError:
        what = f"{task.found.path}: not enough memory to convert it"
        return replace(task.outcome, error=RawFormatError(what, slug="out-of-memory"))
    return replace(task.outcome, conversion=conversion)
