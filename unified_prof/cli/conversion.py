"""`uprof build` and `uprof import`: recordings of other profilers to msprof databases.

One command of two names: what the arguments are is told by their contents, not by the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unified_prof import streams
from unified_prof.cli import printing
from unified_prof.cli.options import SCHEMA_HELP, AsJson, Force, Quiet
from unified_prof.pipeline.sources import SOURCES

if TYPE_CHECKING:
    from unified_prof.pipeline.conversions import Outcome

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
    from unified_prof.cli.thrift import keep_memory
    from unified_prof.pipeline.conversions import convert_all, worst_exit_code

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
    from unified_prof.pipeline.conversions import STANDARD_INPUT

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
