"""Command group `uprof baseline`: save, show."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unified_prof.baselines.noise import noise_of
from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.gate import MetricOptions
from unified_prof.cli.output import Printer, ResultOptions
from unified_prof.compare.comparable import TOTAL
from unified_prof.pipeline.report_input import Reader

if TYPE_CHECKING:
    from unified_prof.baselines.store import Entry
    from unified_prof.report.document import Document

StoreOption = Annotated[
    str | None,
    cli.option(
        "Baseline store: an SQLite file, or a SQLAlchemy URL such as "
        "postgresql+psycopg://user@host/database. [default: .uprof/baselines.sqlite]",
        "--store",
    ),
]

baseline = cli.Group("baseline", help="Save runs as baselines and compare later runs with them.")
cli.COMMANDS.add_command(baseline)


@baseline.command("save")
def save(
    name: str = cli.argument("Name of the baseline, for example main.", "NAME"),
    files: list[Path] = cli.argument(
        "Report or run directory; several runs are samples of one workload.", "FILE|DIR"
    ),
    store: StoreOption = None,
    convert: cli.Convert = False,
    *,
    printer: Printer,
) -> None:
    """Save a run as a new version of a baseline; earlier versions are kept."""
    from unified_prof.baselines import api

    reader = Reader(Printer(printer.quiet or printer.json_), convert)
    entry = api.save(name, files, store, reader.run)
    if not printer.json(lambda: _fields(entry)):
        version = f"{entry.name}@{entry.version}"
        samples = "1 sample" if entry.samples == 1 else f"{entry.samples:,} samples"
        printer.lines(f"saved {version}: {samples} of {entry.label}")


@baseline.command("list", replaced_by="baseline show")
@baseline.command("history", replaced_by="baseline show --history")
@baseline.command("show")
def show(
    *,
    names: list[str] | None = cli.argument("Names of baselines.", "[NAME]...", default=None),
    as_chart: bool = cli.flag("Show a chart of the versions, with changes marked.", "--history"),
    allowed: MetricOptions,
    last: int = cli.option("Chart: number of versions to show, newest first.", default=100, min=1),
    result: ResultOptions = cli.formats_of(
        "text", "html", "json", "csv", help="Format of the chart."
    ),
    store: StoreOption = None,
) -> None:
    """List the newest version of each baseline, or all versions of the named ones.

    `gate --baseline NAME@2` selects version 2. With --history, --format or -o, shows a chart in
    which each version has a confidence interval. A version is marked as changed if it differs, by
    the rule of `uprof gate`, from the first versions since the previous change.
    """
    from unified_prof.baselines import api

    if as_chart or result.format_ is not None or result.output is not None:
        cli.refuse(
            not names,
            "--history needs the name of a baseline",
            hint="`uprof baseline show` lists them",
            slug="wrong-inputs",
        )
        _show_history(names or [], allowed, last, result, store)
        return
    if names:
        entries = [one for name in names for one in api.entries(store, name)]
    else:
        newest = {entry.name: entry for entry in api.entries(store)}
        entries = sorted(newest.values(), key=lambda entry: entry.name)
    if not entries and not result.json_:
        printing.print_message("no baselines; save one with `uprof baseline save NAME FILE`")
        return
    target = printing.Target(None, printing.JSON if result.json_ else printing.TEXT)
    text = target.render(lambda: list(map(_fields, entries)), lambda: _entries_document(entries))
    target.deliver(text)


def _show_history(
    names: list[str], allowed: MetricOptions, last: int, result: ResultOptions, store: str | None
) -> None:
    from unified_prof.baselines import api
    from unified_prof.compare.history import history as analyze
    from unified_prof.report import verdicts as shown

    target, limits = result.target(), allowed.limits()
    series = []
    for name in dict.fromkeys(names):
        entries, runs = zip(*api.versions(name, store, last), strict=True)
        noise = noise_of(allowed.noise, runs[-1])
        series += [
            shown.BaselineSeries(name, entries, analyze(runs, metric, limits, noise))
            for metric in allowed.metrics or [TOTAL]
        ]
    if target.shape == "csv":
        text = shown.history_csv(series)
    elif target.shape == "html":
        text = shown.history_page(series, limits)
    else:
        width = None if target.file else printing.terminal()[0]
        text = target.render(
            lambda: shown.history_fields(series, limits),
            lambda: shown.history_document(series, limits, width=width),
        )
    target.deliver(text)
    if target.file is not None:
        points = sum(len(one.entries) for one in series)
        result.printer.lines(f"{target.file}: {target.shape}, {points} points")


def _entries_document(entries: list[Entry]) -> Document:
    from unified_prof.report.document import Column, Document, name_column
    from unified_prof.report.names import format_number

    document = Document()
    document.table(
        [
            name_column("baseline", (f"{entry.name}@{entry.version}" for entry in entries)),
            Column("saved (UTC)", tuple(f"{entry.saved_at:%Y-%m-%d %H:%M}" for entry in entries)),
            Column("samples", tuple(format_number(entry.samples) for entry in entries)),
            name_column("device", (entry.device or "-" for entry in entries), importance=6),
            Column("commit", tuple((entry.commit or "-")[:12] for entry in entries), importance=7),
            name_column("from", (entry.label for entry in entries), importance=5),
        ]
    )
    return document


def _fields(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "saved_at": entry.saved_at.isoformat()}
