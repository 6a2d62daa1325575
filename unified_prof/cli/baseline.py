"""Command group `uprof baseline`: save, show."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unified_prof.cli import output as printing
from unified_prof.cli import report_input
from unified_prof.cli.command import (
    COMMANDS,
    AsJson,
    Group,
    Quiet,
    argument,
    flag,
    formats_of,
    option,
)
from unified_prof.cli.gate import Allowed
from unified_prof.cli.output import ResultOptions
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


baseline = Group("baseline", help="Save runs as baselines and compare later runs with them.")
COMMANDS.add_command(baseline)


@baseline.command("save")
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
        saved = f"{entry.name}@{entry.version}: {entry.samples} samples of {entry.label}"
        printing.print_message(f"saved {saved}")


Last = Annotated[
    int, option("--last", min=1, help="Chart: number of versions to show, newest first.")
]
_FORMATS_OF_CHART = formats_of(
    _SUFFIXES, help="Format of the chart.", show_default="by the extension of -o, or text"
)


@baseline.command("show")
def show(
    *,
    names: list[str] | None = argument(
        default=None, metavar="[NAME]...", help="Names of baselines."
    ),
    as_chart: bool = flag("--history", help="Show a chart of the versions, with changes marked."),
    allowed: Allowed,
    last: Last = 100,
    result: ResultOptions = _FORMATS_OF_CHART,
    store: StoreOption = None,
) -> None:
    """List the newest version of each baseline, or all versions of the named ones.

    `gate --baseline NAME@2` selects version 2. With --history, --format or -o, shows a chart in
    which each version has a confidence interval. A version is marked as changed if it differs, by
    the rule of `uprof gate`, from the first versions since the previous change.
    """
    from unified_prof.baselines import api

    if as_chart or result.format_ is not None or result.output is not None:
        if not names:
            raise UsageError(
                "--history needs the name of a baseline",
                hint="`uprof baseline show` lists them",
                slug="wrong-inputs",
            )
        show_history(names=names, allowed=allowed, last=last, result=result, store=store)
    elif not names:
        list_baselines(store, result.json_)
    else:
        _print_entries([one for name in names for one in api.entries(store, name)], result.json_)


@baseline.command("list", replaced_by="baseline show")
def list_baselines(store: StoreOption = None, json_: AsJson = False) -> None:
    """List the newest version of each baseline."""
    from unified_prof.baselines import api

    newest = {entry.name: entry for entry in api.entries(store)}
    _print_entries(sorted(newest.values(), key=lambda entry: entry.name), json_)


@baseline.command("history", replaced_by="baseline show --history")
def show_history(
    *,
    names: list[str] = argument(metavar="NAME", help="Names of baselines."),
    allowed: Allowed,
    last: Last = 100,
    result: ResultOptions = _FORMATS_OF_CHART,
    store: StoreOption = None,
) -> None:
    """Show the versions of baselines over time, with a chart."""
    from unified_prof.baselines import api
    from unified_prof.compare.comparable import TOTAL
    from unified_prof.compare.history import history as analyse
    from unified_prof.report import history as shown

    target = result.target(_SUFFIXES)
    limits = allowed.limits()
    series = []
    for name in dict.fromkeys(names):
        entries, runs = zip(*api.versions(name, store, last), strict=True)
        noise = report_input.noise_of(allowed.noise, runs[-1])
        series += [
            shown.BaselineSeries(name, entries, analyse(runs, metric, limits, noise))
            for metric in allowed.metrics or [TOTAL]
        ]
    if target.shape == "csv":
        text = shown.history_csv(series)
    elif target.shape == "html":
        text = shown.history_page(series, limits)
    else:
        width = None if target.file else printing.terminal()[0]
        text = target.render_document(
            lambda: printing.json_text(shown.history_fields(series, limits)),
            lambda: shown.history_document(series, limits, width=width),
        )
    target.deliver(text)
    if target.file is not None and not result.quiet:
        points = sum(len(one.entries) for one in series)
        printing.print_message(f"{target.file}: {target.shape}, {points} points")


def _print_entries(entries: list[Entry], as_json: bool) -> None:
    if as_json:
        printing.put_json([_document(entry) for entry in entries])
        return
    from unified_prof.report.document import Column, Document, name_column
    from unified_prof.report.names import format_number

    document = Document()
    if not entries:
        printing.print_message("no baselines; save one with `uprof baseline save NAME FILE`")
        return
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
    printing.put(printing.render(document, "text"))


def _document(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "saved_at": entry.saved_at.isoformat()}
