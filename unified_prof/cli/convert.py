"""`uprof build` and `uprof import`: recordings of other profilers to msprof databases.

One command of two names: what the arguments are is told by their contents, not by the command.

`--convert` of the commands that read reports: recordings are taken as well.

A path, as somebody names a run, to one of the formats: what `report` prints and `view` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof.base import streams
from unified_prof.cli import output as hints
from unified_prof.cli import output as printing
from unified_prof.cli import report_ranks
from unified_prof.cli.command import SCHEMA_HELP, AsJson, Force, Quiet
from unified_prof.errors import OutputError, UsageError
from unified_prof.pipeline.sources import SOURCES

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.compare.comparable import Run
    from unified_prof.explain.api import Opened
    from unified_prof.pipeline.cache import Ready
    from unified_prof.pipeline.convert import Outcome
    from unified_prof.report.formats import Format, ReportRequest


_TAKES = "; ".join(source.what for source in SOURCES)
_HELP = {
    "build": (
        "Build the databases of recorded Ascend PROF_* directories: no CANN, no NPU needed."
        " The same as `uprof import`."
    ),
    "import": (
        "Make msprof databases of what other profilers recorded: no torch, no device needed."
        " The same as `uprof build`."
    ),
}
_EPILOG = (
    "Exit code: 0 all converted; 1 the process that converted one was killed; 2 wrong use; 6 a"
    " recording is unreadable (the others are converted); 9 a database exists or cannot be"
    " written. Of several recordings, those that"
    " an earlier run has converted are passed over; the others are converted whatever becomes of"
    " one."
)


class Layout(str, Enum):
    """How files and folders are named."""

    PLAIN = "plain"
    ASCEND_PT = "ascend-pt"


def register(app: typer.Typer) -> None:
    """Add both names of the command to `app`."""
    for name, help_ in _HELP.items():
        app.command(name, no_args_is_help=True, help=help_, epilog=_EPILOG)(convert)


def convert(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDING...",
            help="Recordings, folders that hold some at any depth, patterns, or - for standard"
            f" input (packed or not). Taken: {_TAKES}.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The database if OUT ends in .db (for one recording), else a folder.",
            show_default="PROF_*/msprof_TIME.db, where msprof puts it; TRACE.db, stdin.db in this"
            " folder",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help=SCHEMA_HELP,
            show_default="documented; with --layout ascend-pt latest",
        ),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(
            help="ascend-pt: the folders in which MindStudio Insight and msprof-analyze look."
            " Not for PROF_* directories and memory snapshots."
        ),
    ] = Layout.PLAIN,
    jobs: Annotated[int, typer.Option(min=1, help="Recordings to convert at a time.")] = 1,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Convert what is named; both commands."""
    from unified_prof.cli.command import keep_memory
    from unified_prof.pipeline.convert import convert_all, worst_exit_code

    keep_memory()
    outcomes: list[Outcome] = []
    enabled = streams.is_terminal() and not quiet
    with printing.progress_line(enabled=enabled) as progress:
        for outcome in convert_all(
            recordings,
            output,
            schema=schema,
            layout=layout.value,
            force=force,
            jobs=jobs,
            progress=progress,
            note=lambda sentence: printing.say(f"uprof: note: {sentence}"),
        ):
            outcomes.append(outcome)
            _tell(outcome, quiet=quiet)
    outcomes.sort(key=lambda outcome: outcome.number)
    if len(outcomes) > 1 and not quiet:
        printing.say(_together(outcomes))
    if json_:
        printing.put_json([_record(outcome) for outcome in outcomes])
    if code := worst_exit_code(outcomes):
        raise typer.Exit(code)


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    if outcome.error is not None:
        printing.put_error(outcome.error)
    elif quiet:
        return
    elif outcome.already is not None:
        printing.say(f"{_named(outcome.recording)} -> {outcome.already}: converted already")
    elif outcome.converted is not None:
        for line in _summary(outcome):
            printing.say(line)


def _together(outcomes: Sequence[Outcome]) -> str:
    """Say what became of several recordings, in a line."""
    counts = {
        "converted": sum(one.converted is not None for one in outcomes),
        "were already": sum(one.already is not None for one in outcomes),
        "refused": sum(one.error is not None for one in outcomes),
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{len(outcomes):,} recordings: {', '.join(parts)}"


def _summary(outcome: Outcome) -> Iterator[str]:
    converted, source = outcome.converted, outcome.source
    assert converted is not None
    assert source is not None
    yield f"{_named(converted.recording)} -> {converted.database}"
    if converted.decoded.summary is not None:
        yield f"  {source.title.partition(' ')[2]}: {converted.decoded.summary}"
    else:
        yield f"  {source.title.partition(' ')[2]}"
        width = max((len(name) for name in converted.rows), default=0)
        for table, rows in sorted(converted.rows.items()):
            yield f"  {table:{width}}  {rows:>12,} rows"
    for name, (count, detail) in sorted(converted.anomalies.items()):
        yield f"  anomaly {name}: {count:,}" + (f" ({detail})" if detail else "")
    total = sum(converted.seconds.values())
    slowest = sorted(converted.seconds.items(), key=lambda stage: -stage[1])
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest if seconds >= 0.005)
    yield f"  CPU time {total:.2f} s" + (f": {parts}" if parts else "")


def _named(recording: Path) -> str:
    from unified_prof.pipeline.convert import STANDARD_INPUT

    return "standard input" if recording == STANDARD_INPUT else str(recording)


def _record(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a recording; its keys are those of its kind of recording."""
    source = outcome.source
    recording, database = ("recording", "database") if source is None else source.keys
    record: dict[str, Any] = {recording: str(outcome.recording)}
    if source is not None:
        record["kind"] = source.kind
    if outcome.error is not None:
        return record | printing.error_record(outcome.error)
    if outcome.already is not None:
        return record | {database: str(outcome.already), "converted_already": True}
    assert outcome.converted is not None
    converted = outcome.converted
    return record | {
        database: str(converted.database),
        **converted.decoded.figures,
        "rows": dict(sorted(converted.rows.items())),
        "anomalies": {
            name: {"count": count, "detail": detail}
            for name, (count, detail) in sorted(converted.anomalies.items())
        },
        "cpu_seconds": {name: round(seconds, 4) for name, seconds in converted.seconds.items()},
    }


Convert = Annotated[
    bool,
    typer.Option(
        "--convert",
        help="Take recordings of other profilers too; their reports are kept in ~/.cache/uprof.",
    ),
]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    given: tuple[Path, ...]
    """As the user named it."""
    reports: tuple[Path, ...]
    """What to read in its place."""
    made: bool
    """Whether reports were made of recordings."""

    @property
    def label(self) -> str:
        """What the user calls it."""
        return ", ".join(map(str, self.given))

    def run(self) -> Run:
        """Return the run that the reports are of.

        Raises:
            UprofError: as of `analysis.compare.runs.load`.
        """
        from unified_prof.compare import runs

        with hints.for_reports(*self.given):
            run = runs.load(self.reports)
        return replace(run, label=self.label) if self.made else run


def reports_of(
    path: Path,
    *,
    convert: bool,
    quiet: bool,
    several: bool = True,
    output: Path | None = None,
) -> Ready:
    """Return what to read in place of `path`, and say what was made of what.

    Args:
        path: As the user named it.
        convert: Whether recordings may be converted; else `path` is read as it is.
        quiet: Whether to say errors only.
        several: Whether a folder of several recordings is of use.
        output: What will be written; never one of the recordings, not even by force.

    Raises:
        OutputError: the output is one of the recordings.
        UprofError: as of `pipeline.cache.reports_of`.
    """
    from unified_prof.pipeline.cache import Ready

    if not convert:
        return Ready(path)
    from unified_prof.pipeline import cache

    def note(sentence: str) -> None:
        if not quiet:
            printing.say(f"uprof: note: {sentence}")

    with printing.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
        ready = cache.reports_of(path, several=several, progress=progress, note=note)
    _refuse_recording(output, (path, *(found.path for found, _ in ready.made)))
    for found, report in ready.made:
        note(f"{found.path} is {found.source.title}; its report is {report}")
    return ready


def _refuse_recording(output: Path | None, recordings: Iterable[Path]) -> None:
    if output is None or not output.is_file():
        return
    for recording in recordings:
        if recording.is_file() and output.samefile(recording):
            raise OutputError(
                f"{output} is the recording itself, which is never replaced",
                hint="name another file",
                slug="not-replaced",
            )


def side_of(
    paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None
) -> Side:
    """Return one side of a comparison: what to read, under the names that the user knows.

    Raises:
        UprofError: as of `reports_of`; also where a path is the summary of a cluster's run.
    """
    from unified_prof.cluster.rank_partial import is_run_directory

    for path in paths:
        if is_run_directory(path):
            raise UsageError(
                f"{path} is the summary of a cluster's run, not the report of one process",
                hint="compare two of them with `uprof cluster diff` or `uprof cluster gate`",
                slug="summary-of-a-cluster",
            )
    ready = [
        reports_of(path, convert=convert, quiet=quiet, several=False, output=output)
        for path in paths
    ]
    return Side(tuple(paths), tuple(one.path for one in ready), any(one.made for one in ready))


def run_of(paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None) -> Run:
    """Return the run that reports, or recordings, are of.

    Raises:
        UprofError: as of `analysis.compare.runs.load`, and of `side_of`.
    """
    return side_of(paths, convert=convert, quiet=quiet, output=output).run()


@dataclass(frozen=True, slots=True)
class Produced:
    """A run in one of the formats."""

    content: str | bytes
    missing: str
    """What of it could not be read; empty: all could."""
    has_ranks_alone: bool
    """Whether it is of ranks together, and not of each as well."""


def produced(
    path: Path,
    shape: Format,
    request: ReportRequest,
    *,
    rank: int | None = None,
    capture: Path | None = None,
    convert: bool = False,
    quiet: bool = False,
    output: Path | None = None,
) -> Produced:
    """Return a report, a folder of them or a run of ranks in a format.

    Args:
        path: as the user named it.
        shape: the format.
        request: what of it is wanted.
        rank: of several ranks of a run, this one.
        capture: where the graphs were captured that are replayed here.
        convert: whether recordings are taken too.
        quiet: whether to say errors only.
        output: what will be written.

    Raises:
        UprofError: as of `report`.
    """
    with ExitStack() as stack:
        overview = None
        together = request.by is None and not convert and capture is None and shape.is_text
        if rank is not None or together:
            overview = stack.enter_context(
                report_ranks.of_run(path, quiet=quiet, needed=rank is not None)
            )
        if rank is not None:
            path = report_ranks.file_of(overview, path, rank)
            overview = None
        reports = None
        if overview is None or len(overview.run.read) <= report_ranks.SHOWN_EACH:
            reports = stack.enter_context(
                _opened(path, overview, capture, convert=convert, quiet=quiet, output=output)
            )
        if overview is None:
            assert reports is not None
            return Produced(shape.produce(reports, request), reports.coverage.sentence, False)
        return Produced(
            report_ranks.produce(overview, shape, request, reports),
            overview.coverage if overview.missing else "",
            reports is None,
        )


def say_hints(path: Path, made: Produced) -> None:
    """Say what else there is to see, and what a killed run left."""
    if made.has_ranks_alone:
        printing.say("uprof: hint: --rank N shows the report of one rank")
    if path.is_dir() and (hint := hints.unrecovered(path)) is not None:
        printing.say(f"uprof: hint: {hint}")


@contextmanager
def _opened(
    path: Path,
    overview: Overview | None,
    capture: Path | None,
    *,
    convert: bool,
    quiet: bool,
    output: Path | None,
) -> Iterator[Opened | None]:
    """Open the reports; those of a run need not be there any more."""
    from unified_prof.explain.api import open_reports

    if overview is not None and (not path.is_dir() or overview.run.file.parent == path):
        yield None
        return
    ready = reports_of(path, convert=convert, quiet=quiet, output=output)
    if capture is not None:
        made = reports_of(capture, convert=convert, quiet=quiet, several=False, output=output)
        capture = made.path
    with (
        hints.for_reports(path),
        open_reports(ready.path, ready.missing, capture=capture) as opened,
    ):
        yield opened
