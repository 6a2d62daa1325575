"""Command group `uprof baseline`: save, show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from unified_prof.cli import output as printing
from unified_prof.cli import report_input, workloads
from unified_prof.cli.command import (
    AsJson,
    AsJsonFormat,
    Force,
    Group,
    OutputFile,
    Quiet,
    argument,
    flag,
    format_option,
    option,
)
from unified_prof.cli.gate_sides import Allowed
from unified_prof.cli.report_input import Convert
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.baselines.store import Entry

_STORE_HELP = (
    "Baseline store: an SQLite file, or a SQLAlchemy URL such as "
    "postgresql+psycopg://user@host/database."
)
StoreOption = Annotated[
    str | None, option("--store", help=_STORE_HELP, show_default=".uprof/baselines.sqlite")
]


_SUFFIXES = {
    "text": (".txt",),
    "html": (".html", ".htm"),
    "json": (".json",),
    "csv": (".csv",),
}


def register(app: Group) -> None:
    """Register the commands."""
    group = Group("baseline", help="Save runs as baselines and compare later runs with them.")
    group.command("save")(save)
    group.command("show")(show)
    group.command("list", replaced_by="baseline show")(list_baselines)
    group.command("history", replaced_by="baseline show --history")(show_history)
    app.add_command(group)


def save(
    name: str = argument(metavar="NAME", help="Name of the baseline, for example main."),
    files: list[Path] = argument(
        metavar="FILE|DIR",
        help="Report or run directory; several runs of one workload are samples.",
    ),
    store: StoreOption = None,
    convert: Convert = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Save a run as a new version of a baseline; earlier versions are kept."""
    from unified_prof.baselines import api

    read = report_input.Reader(convert, quiet or json_).run
    entry = api.save(name, files, store, read)
    if json_:
        printing.put_json(_document(entry))
    elif not quiet:
        printing.print_message(f"saved {entry.name}@{entry.version}: {_samples(entry)}")


def list_baselines(store: StoreOption = None, json_: AsJson = False) -> None:
    """List the newest version of each baseline."""
    from unified_prof.baselines import api

    newest = {entry.name: entry for entry in api.entries(store)}
    _print_entries(sorted(newest.values(), key=lambda entry: entry.name), json_)


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """Output of a chart."""

    last: int = option(default=100, min=1, help="Chart: number of versions to show, newest first.")
    format_: str | None = format_option(
        _SUFFIXES, help="Format of the chart.", show_default="by the extension of -o, or text"
    )
    output: OutputFile = None
    force: Force = False
    quiet: Quiet = False


def show(
    *,
    context: click.Context,
    names: list[str] | None = argument(
        default=None, metavar="[NAME]...", help="Names of baselines."
    ),
    as_chart: bool = flag("--history", help="Show a chart of the versions, with changes marked."),
    allowed: Allowed,
    chart: ChartOptions,
    store: StoreOption = None,
    json_: AsJsonFormat = False,
) -> None:
    """List the newest version of each baseline, or all versions of the named ones.

    `gate --baseline NAME@2` selects version 2. With --history, --format or -o, shows a chart in
    which each version has a confidence interval. A version is marked as changed if it differs, by
    the rule of `uprof gate`, from the first versions since the previous change.
    """
    from unified_prof.baselines import api

    if as_chart or chart.format_ is not None or chart.output is not None:
        if not names:
            raise UsageError(
                "--history needs the name of a baseline",
                hint="`uprof baseline show` lists them",
                slug="wrong-inputs",
            )
        show_history(
            context=context, names=names, allowed=allowed, chart=chart, store=store, json_=json_
        )
    elif not names:
        list_baselines(store, json_)
    else:
        _print_entries([one for name in names for one in api.entries(store, name)], json_)


def show_history(
    *,
    context: click.Context,
    names: list[str] = argument(metavar="NAME", help="Names of baselines."),
    allowed: Allowed,
    chart: ChartOptions,
    store: StoreOption = None,
    json_: AsJsonFormat = False,
) -> None:
    """Show the versions of baselines over time, with a chart."""
    from unified_prof.baselines import api
    from unified_prof.compare.comparable import TOTAL
    from unified_prof.compare.history import history as analyse
    from unified_prof.report import history as shown

    file, shape = printing.destination(context, _SUFFIXES, chart.output, chart.format_, json_)
    limits = allowed.limits()
    series = []
    for name in dict.fromkeys(names):
        entries, runs = zip(*api.versions(name, store, chart.last), strict=True)
        noise = workloads.noise(allowed.noise, runs[-1])
        series += [
            shown.BaselineSeries(name, entries, analyse(runs, metric, limits, noise))
            for metric in allowed.metrics or [TOTAL]
        ]
    if shape == "json":
        text = printing.json_text(shown.history_fields(series, limits))
    elif shape == "csv":
        text = shown.history_csv(series)
    elif shape == "html":
        text = shown.history_page(series, limits)
    else:
        width = None if file else printing.terminal()[0]
        document = shown.history_document(series, limits, width=width)
        text = printing.render(document, shape, to_file=file is not None)
    printing.deliver(text, file, force=chart.force, for_people=shape == "text")
    if file is not None and not chart.quiet:
        printing.print_message(f"{file}: {shape}, {sum(len(one.entries) for one in series)} points")


def _print_entries(entries: list[Entry], as_json: bool) -> None:
    if as_json:
        printing.put_json([_document(entry) for entry in entries])
        return
    from unified_prof.report import names as words
    from unified_prof.report.document import Column, Document

    document = Document()
    if not entries:
        printing.print_message("no baselines; save one with `uprof baseline save NAME FILE`")
        return
    document.table(
        [
            Column(
                "baseline",
                tuple(words.neutral(f"{entry.name}@{entry.version}") for entry in entries),
                is_name=True,
            ),
            Column("saved (UTC)", tuple(f"{entry.saved_at:%Y-%m-%d %H:%M}" for entry in entries)),
            Column("samples", tuple(words.format_number(entry.samples) for entry in entries)),
            Column(
                "device",
                tuple(words.neutral(entry.device or "-") for entry in entries),
                is_name=True,
                importance=6,
            ),
            Column("commit", tuple((entry.commit or "-")[:12] for entry in entries), importance=7),
            Column(
                "from",
                tuple(words.neutral(entry.label) for entry in entries),
                is_name=True,
                importance=5,
            ),
        ]
    )
    printing.put(printing.render(document, "text"))


def _samples(entry: Entry) -> str:
    return f"{entry.samples} samples of {entry.label}"


def _document(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "saved_at": entry.saved_at.isoformat()}
