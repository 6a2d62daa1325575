"""Commands `uprof build` and `uprof import`, `--convert`, and rendering of a path as a report.

Both commands are the same; file contents decide what an argument is.
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


_INPUT_HELP = "; ".join(source.what for source in SOURCES)
_HELP = {
    "build": (
        "Convert Ascend PROF_* directories to databases, without CANN or an NPU. "
        "Same as `uprof import`."
    ),
    "import": (
        "Convert recordings of other profilers to databases, without torch or a device. "
        "Same as `uprof build`."
    ),
}
_EPILOG = (
    "Exit codes: 0 all converted; 1 the process that converted a recording was killed; 2 "
    "usage error; 6 recording unreadable (the others are converted); 9 a database exists "
    "or cannot be written. Recordings that were converted before are skipped."
)


class Layout(str, Enum):
    """Naming of files and directories."""

    PLAIN = "plain"
    ASCEND_PT = "ascend-pt"


def register(app: typer.Typer) -> None:
    """Register both names of the command."""
    for name, help_ in _HELP.items():
        app.command(name, no_args_is_help=True, help=help_, epilog=_EPILOG)(convert)


def convert(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDING...",
            help="Recordings, directories of them at any depth, patterns, or - for standard "
            f"input (compressed or not). Formats: {_INPUT_HELP}.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="Database file if OUT ends in .db (one recording), else a directory.",
            show_default="PROF_*/msprof_TIME.db as msprof does; TRACE.db or stdin.db here",
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help=SCHEMA_HELP,
            show_default="documented; latest with --layout ascend-pt",
        ),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(
            help="ascend-pt: the directories that MindStudio Insight and msprof-analyze "
            "expect. Not for PROF_* directories and memory snapshots."
        ),
    ] = Layout.PLAIN,
    jobs: Annotated[
        int, typer.Option(min=1, help=("Number of recordings to convert in parallel."))
    ] = 1,
    force: Force = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Convert recordings; implements both commands."""
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
            note=lambda sentence: printing.print_message(f"uprof: note: {sentence}"),
        ):
            outcomes.append(outcome)
            _print_written(outcome, quiet=quiet)
    outcomes.sort(key=lambda outcome: outcome.number)
    if len(outcomes) > 1 and not quiet:
        printing.print_message(_combined_record(outcomes))
    if json_:
        printing.put_json([_record(outcome) for outcome in outcomes])
    if code := worst_exit_code(outcomes):
        raise typer.Exit(code)


def _print_written(outcome: Outcome, *, quiet: bool) -> None:
    if outcome.error is not None:
        printing.put_error(outcome.error)
    elif quiet:
        return
    elif outcome.already is not None:
        printing.print_message(
            f"{_display_name(outcome.recording)} -> {outcome.already}: already converted"
        )
    elif outcome.converted is not None:
        for line in _summary(outcome):
            printing.print_message(line)


def _combined_record(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes of several recordings in one line."""
    counts = {
        "converted": sum(one.converted is not None for one in outcomes),
        "already converted": sum(one.already is not None for one in outcomes),
        "refused": sum(one.error is not None for one in outcomes),
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return f"{len(outcomes):,} recordings: {', '.join(parts)}"


def _summary(outcome: Outcome) -> Iterator[str]:
    converted, source = outcome.converted, outcome.source
    assert converted is not None
    assert source is not None
    yield f"{_display_name(converted.recording)} -> {converted.database}"
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


def _display_name(recording: Path) -> str:
    from unified_prof.pipeline.convert import STANDARD_INPUT

    return "standard input" if recording == STANDARD_INPUT else str(recording)


def _record(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a recording as plain data; its keys depend on the format."""
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
        help=(
            "Also accept recordings of other profilers; their reports are cached in ~/.cache/uprof."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    # Paths as the user gave them.
    given: tuple[Path, ...]
    # Reports to read instead.
    reports: tuple[Path, ...]
    # True if reports were converted from recordings.
    made: bool

    @property
    def label(self) -> str:
        """Name shown for this side."""
        return ", ".join(map(str, self.given))

    def run(self) -> Run:
        """Load the run.

        Raises:
            UprofError: As `compare.runs.load`.
        """
        from unified_prof.compare import runs

        with hints.with_convert_hint(*self.given):
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
    """Return the reports to read for `path`, and print what was converted.

    Args:
        path: Path as the user gave it.
        convert: If True, recordings are converted; otherwise `path` is read as it is.
        quiet: Print errors only.
        several: If True, a directory of several recordings is accepted.
        output: File that will be written; never one of the recordings, not even with --force.

    Raises:
        OutputError: The output is one of the recordings.
        UprofError: As `pipeline.cache.reports_of`.
    """
    from unified_prof.pipeline.cache import Ready

    if not convert:
        return Ready(path)
    from unified_prof.pipeline import cache

    def note(sentence: str) -> None:
        if not quiet:
            printing.print_message(f"uprof: note: {sentence}")

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
                f"{output} is the recording itself and is never overwritten",
                hint="choose another file",
                slug="not-replaced",
            )


def side_of(
    paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None
) -> Side:
    """Return one side of a comparison under the names that the user gave.

    Raises:
        UprofError: As `reports_of`; also if a path is a cluster summary.
    """
    from unified_prof.cluster.rank_partial import is_run_directory

    for path in paths:
        if is_run_directory(path):
            raise UsageError(
                f"{path} is the summary of a cluster run, not the report of one process",
                hint="compare two of them with `uprof cluster diff` or `uprof cluster gate`",
                slug="summary-of-a-cluster",
            )
    ready = [
        reports_of(path, convert=convert, quiet=quiet, several=False, output=output)
        for path in paths
    ]
    return Side(tuple(paths), tuple(one.path for one in ready), any(one.made for one in ready))


def run_of(paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None) -> Run:
    """Load a run from reports or recordings.

    Raises:
        UprofError: As `compare.runs.load` and `side_of`.
    """
    return side_of(paths, convert=convert, quiet=quiet, output=output).run()


@dataclass(frozen=True, slots=True)
class RenderedReport:
    """A run rendered in one format."""

    content: str | bytes
    # Description of what could not be read; empty if everything was read.
    missing: str
    # True if it shows the multi-rank run only, without reports of single ranks.
    has_ranks_alone: bool


def render_reports(
    path: Path,
    shape: Format,
    request: ReportRequest,
    *,
    rank: int | None = None,
    capture: Path | None = None,
    convert: bool = False,
    quiet: bool = False,
    output: Path | None = None,
) -> RenderedReport:
    """Render a report, a directory of reports or a multi-rank run.

    Args:
        path: Path as the user gave it.
        shape: Output format.
        request: What to show.
        rank: Rank of a multi-rank run to show.
        capture: Report in which the replayed graphs were captured.
        convert: If True, recordings are accepted too.
        quiet: Print errors only.
        output: File that will be written.

    Raises:
        UprofError: As the command `report`.
    """
    with ExitStack() as stack:
        overview = None
        together = request.by is None and not convert and capture is None and shape.is_text
        if rank is not None or together:
            overview = stack.enter_context(
                report_ranks.open_ranks(path, quiet=quiet, needed=rank is not None)
            )
        if rank is not None:
            path = report_ranks.rank_report(overview, path, rank)
            overview = None
        reports = None
        if overview is None or len(overview.run.read) <= report_ranks.MAX_RANK_REPORTS:
            reports = stack.enter_context(
                _open_report(path, overview, capture, convert=convert, quiet=quiet, output=output)
            )
        if overview is None:
            assert reports is not None
            return RenderedReport(shape.produce(reports, request), reports.coverage.sentence, False)
        return RenderedReport(
            report_ranks.produce(overview, shape, request, reports),
            overview.coverage if overview.missing else "",
            reports is None,
        )


def say_hints(path: Path, made: RenderedReport) -> None:
    """Print hints: other views of the run, and results of killed runs."""
    if made.has_ranks_alone:
        printing.print_message("uprof: hint: use --rank N to show the report of one rank")
    if path.is_dir() and (hint := hints.recovery_hint(path)) is not None:
        printing.print_message(f"uprof: hint: {hint}")


@contextmanager
def _open_report(
    path: Path,
    overview: Overview | None,
    capture: Path | None,
    *,
    convert: bool,
    quiet: bool,
    output: Path | None,
) -> Iterator[Opened | None]:
    """Open the reports; ranks of a cluster summary may be missing."""
    from unified_prof.explain.api import open_reports

    if overview is not None and (not path.is_dir() or overview.run.file.parent == path):
        yield None
        return
    ready = reports_of(path, convert=convert, quiet=quiet, output=output)
    if capture is not None:
        made = reports_of(capture, convert=convert, quiet=quiet, several=False, output=output)
        capture = made.path
    with (
        hints.with_convert_hint(path),
        open_reports(ready.path, ready.missing, capture=capture) as opened,
    ):
        yield opened
