"""Commands that show a run: `report` as figures, `advise` as findings, `view` in the browser."""

from __future__ import annotations

import math
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from unified_prof.cli import command as cli
from unified_prof.cli import output as printing
from unified_prof.cli.output import Printer, ResultOptions
from unified_prof.errors import StoreError, UprofError, UsageError
from unified_prof.pipeline import report_input
from unified_prof.pipeline.report_input import Reader, render_reports
from unified_prof.recording.model import KINDS, STATISTICS_OF
from unified_prof.report import formats
from unified_prof.schema.catalogue import WATCH_FILES

if TYPE_CHECKING:
    from unified_prof.base.loopback import Item
    from unified_prof.explain.report_questions import Change
    from unified_prof.recording.model import Finding


# Keys to sort rows by, largest value first.
_SORT_KEYS = ("time", "forward", "backward", "average", "count", "size", "name")


@cli.command(
    "report",
    epilog="Exit codes: 0 success; 2 usage error; 6 recording unreadable; 7 report missing "
    "or unreadable; 9 output cannot be written.",
)
def report(
    path: cli.ReportPath,
    by: str | None = cli.option(
        f"Breakdown: {', '.join(KINDS)}. [default: operation; several for json and html]",
        "NAME",
        choices=KINDS,
    ),
    top: int | None = cli.option(
        "Number of rows to show. [default: 20; all for json, csv and html]", min=1
    ),
    sort: str | None = cli.option("Sort rows. [default: time, else size]", choices=_SORT_KEYS),
    result: ResultOptions = cli.formats_of(*formats.FORMAT_NAMES),
    rank: cli.OneRank = None,
    statistics: bool = cli.flag(
        "Add min, median, p99, max, standard deviation and launch statistics.", "--stats"
    ),
    capture: Path | None = cli.rare_option(
        "Report in which the CUDA graphs that this run replays were captured; their kernels are "
        "attributed to the operations recorded there.",
        "--with CAPTURE",
    ),
    full_names: cli.FullNames = False,
    convert: cli.Convert = False,
    embed_source: bool = cli.rare_flag(
        "html: embed source lines of files below the current directory."
    ),
) -> None:
    """Show time and memory of a run per operation, kernel, module or line.

    If DIR is given, damaged or missing reports are listed in every format and the exit code is 7;
    the others are shown. For a multi-rank run, a summary of the run comes first; with many ranks
    only the summary is shown.
    """
    target = result.target()
    shape = formats.find_format(target.shape)
    if embed_source and not shape.embeds_source:
        raise UsageError(
            "--embed-source applies to --format html only", slug="option-without-effect"
        )
    if statistics and by is not None and by not in STATISTICS_OF:
        raise UsageError(
            f"--stats adds nothing to --by {by}",
            hint=f"use it with --by {', '.join(STATISTICS_OF)}",
            slug="no-breakdown",
        )
    width, color = (None, False) if target.file else printing.terminal()
    request = formats.ReportRequest(
        by=by,
        sort=sort,
        top=top,
        statistics=statistics,
        full_names=full_names,
        source_root=Path.cwd() if embed_source else None,
        width=width,
        color=color,
    )
    folder = path.parent if path.match(WATCH_FILES) else path
    if any(folder.glob(WATCH_FILES)):
        if by is not None or sort is not None or statistics or capture is not None:
            raise UsageError(
                "--by, --sort, --stats and --with do not apply to watched runs",
                slug="option-without-effect",
            )
        from unified_prof.report.watch_document import render_watched

        content, missing = render_watched(folder, shape.name, rank, request)
        target.deliver(content, note=not result.quiet)
        printing.end_if_missing(missing)
        return
    reader = Reader(result.printer, convert, target.file)
    made = render_reports(path, shape, request, reader, rank=rank, capture=capture)
    target.deliver(made.content, note=not result.quiet)
    for hint in made.hints:
        result.printer.hint(hint)
    # On a terminal it is printed above the figures.
    told = target.file is None and target.is_text and sys.stdout.isatty()
    printing.end_if_missing(made.missing, told=told)


# Default number of findings in text and Markdown; JSON has all. Also the number of candidates that
# `--what-if` tries.
_DEFAULT_ROWS = 10


@cli.command("what-if", replaced_by="advise --what-if")
@cli.command(
    "advise",
    epilog="Exit codes: 0 success, with or without findings; 2 usage error; 6 "
    "recording unreadable; 7 report missing or unreadable; 9 output cannot be written.",
)
def advise(
    path: cli.ReportPath,
    top: int | None = cli.option("Number of findings to show. [default: 10; all for json]", min=1),
    result: ResultOptions = cli.formats_of("text", "json", "markdown"),
    estimate: bool = cli.flag(
        "For each of the most expensive items of the critical path, estimate the step time if it "
        "were twice as fast or gone.",
        "--what-if",
    ),
    faster: list[str] | None = cli.option(
        "Estimate the step time if an operation, kernel, collective, call or class (kernel, "
        "communication, copy, host, input) were K times as fast; host:NAME selects host work. "
        "Repeatable.",
        "NAME=K",
    ),
    without: list[str] | None = cli.option(
        "Estimate the step time without an operation, kernel, collective, call or class. "
        "Repeatable.",
        "NAME",
    ),
    device: str | None = cli.option(
        "Estimate the step time with the kernels on another device, for example MI300X.", "NAME"
    ),
    rank: cli.OneRank = None,
    full_names: cli.FullNames = False,
    convert: cli.Convert = False,
) -> None:
    """List findings by cost with advice, or estimate the gain of a change.

    Each finding states the time that a step could save, its evidence, and its confidence. Rules
    whose input was not recorded are listed as skipped. For a multi-rank run, findings about the run
    come first. docs/advice.md describes each rule.

    With --what-if, --faster, --without or --device, replays the recorded schedule with changed
    durations and prints the step time; the order on streams and threads, launches and waits stay
    the same.
    """
    from unified_prof.report import advice

    changes = [*_changes(faster or (), without or ())]
    estimate = estimate or bool(changes) or device is not None
    target, rows, opened = result.target(), top or _DEFAULT_ROWS, None
    of_run: Sequence[Finding] = ()
    reader = Reader(result.printer, convert, target.file)
    with ExitStack() as stack:
        is_summary = False
        if rank is not None or (path.is_dir() and not convert and not estimate):
            overview = stack.enter_context(reader.ranks(path, needed=rank is not None))
            of_run = () if overview is None or estimate else advice.run_findings(overview)
            if rank is not None:
                path = report_input.rank_report(overview, path, rank)
            else:
                # A cluster summary may be read without its ranks' recordings.
                is_summary = overview is not None and overview.run.file.parent == path
                of_run = of_run[:top] if is_summary else of_run
        if not is_summary:
            opened = stack.enter_context(reader.opened(path))
        if opened is not None and estimate:
            answers = advice.gather_what_if(opened, changes, top=rows, device=device)
            text = target.render(
                lambda: advice.what_if_record(answers, changes, opened),
                lambda: advice.what_if_document(answers, changes),
                full_names=full_names,
            )
        else:
            reports = [] if opened is None else advice.gather_advice(opened)
            text = target.render(
                lambda: advice.advice_record(reports, opened, of_run, top=top),
                lambda: advice.advice_document(reports, of_run, top=rows, is_run=is_summary),
                full_names=full_names,
            )
        target.deliver(text, note=not result.quiet)
    if is_summary:
        result.printer.hint("use --rank N to analyze the recording of one rank")
    printing.end_if_missing("" if opened is None else opened.coverage.sentence)


def _changes(faster: Sequence[str], without: Sequence[str]) -> Iterator[Change]:
    """Yield the changes. Raises UsageError if a factor is not a positive number."""
    from unified_prof.explain.report_questions import Change

    for text in faster:
        name, _, number = text.rpartition("=")
        try:
            factor = float(number.removesuffix("x"))
        except ValueError:
            factor = math.nan
        if not name or not (0 < factor < math.inf):
            raise UsageError(
                f"--faster {text}: expected NAME=K with K above 0, for example aten::mm=2",
                slug="wrong-option-value",
            )
        yield Change(name, factor)
    for name in without:
        yield Change(name, math.inf)


_HTML, _BYTES = "text/html; charset=utf-8", "application/octet-stream"
# ui.perfetto.dev may fetch from this port of 127.0.0.1 only.
_PERFETTO_PORT = 9001
_IDLE_S = 600
_WHERE_TO_OPEN = "open the address in a browser on this machine"
_AFTER_TRACE_S = 30  # Seconds to keep serving after the trace was fetched.


@cli.command(
    "view",
    epilog="Exit codes: 0 success, also after Ctrl-C; 2 usage error, or the port is in use; "
    "6 recording unreadable; 7 report missing or unreadable (the other reports of a "
    "directory are still shown).",
)
def view(
    path: cli.ReportPath,
    perfetto: bool = cli.flag("Open the timeline in ui.perfetto.dev instead of the page."),
    port: int | None = cli.option(
        "Port on 127.0.0.1. [default: 9001 with --perfetto if it is free, else any]",
        "N",
        min=1,
        max=65535,
    ),
    no_open: bool = cli.flag("Print the address without opening a browser."),
    idle: int = cli.option(
        "Stop after this time without a request.", "SECONDS", default=_IDLE_S, min=0
    ),
    rank: cli.OneRank = None,
    convert: cli.Convert = False,
    *,
    printer: Printer,
) -> None:
    """Open a run in the browser: as a page, or its timeline in Perfetto.

    The page is generated and served on 127.0.0.1 only, at an address with a random token, until
    Ctrl-C or ten minutes without a request (timelines: 30 s after they were fetched). No files are
    left behind.
    """
    from unified_prof.base.loopback import Served, open_browser
    from unified_prof.sqlite.atomic import temporary_folder

    items: list[Item] | Callable[[str], Item | None]
    with temporary_folder() as folder:
        run = path.parent if path.match(WATCH_FILES) else path
        if any(run.glob(WATCH_FILES)) and not perfetto:
            items, missing = _watched(run), ""
        else:
            made = _timeline if perfetto else _page
            items, missing = made(path, folder, rank, printer, convert=convert)
        ports = (_PERFETTO_PORT, 0) if perfetto else (0,)
        # Ctrl-C is the usual end as soon as the address is printed.
        with (
            Served(items, ports if port is None else (port,)) as served,
            suppress(KeyboardInterrupt),
        ):
            if not printer.json(lambda: {"url": served.url, "port": served.port}):
                printing.put(f"{served.url}\n")
            opened = not no_open and open_browser(served.url, folder)
            where = "opened in the browser" if opened else _WHERE_TO_OPEN
            printer.note(f"{where}; press Ctrl-C to stop")
            if not opened or "SSH_CONNECTION" in os.environ:
                printer.hint(
                    f"from another machine, run `ssh -N -L {served.port}:127.0.0.1:{served.port} "
                    f"{socket.gethostname()}` and open the same address there"
                )
            served.wait(idle, after_last_s=min(idle, _AFTER_TRACE_S))
    printing.end_if_missing(missing)


def _page(
    path: Path, folder: Path, rank: int | None, printer: Printer, *, convert: bool = False
) -> tuple[list[Item], str]:
    """Return the page of a run, and a description of what could not be read."""
    from unified_prof.base.loopback import Item

    shape, request = formats.find_format("html"), formats.ReportRequest()
    made = render_reports(path, shape, request, Reader(printer, convert), rank=rank)
    for hint in made.hints:
        printer.hint(hint)
    assert isinstance(made.content, str)
    return [Item("", _HTML, made.content.encode())], made.missing


def _watched(path: Path) -> Callable[[str], Item | None]:
    """Return what serves the page of a watched run and the pages of its captures."""
    from unified_prof.base.loopback import Item
    from unified_prof.report.watch_document import watch_page
    from unified_prof.sqlite.watch_file import read_folder

    ranks, lock = read_folder(path), Lock()

    def find(name: str) -> Item | None:
        nonlocal ranks
        with lock:
            with suppress(StoreError):  # a file is being rotated
                ranks = read_folder(path, ranks)
            if name == "":
                return Item(name, _HTML, watch_page(ranks, path, is_live=True).encode())
            events = [event for one in ranks.values() for event in one.events]
            if any(event.capture == name and event.status == "ready" for event in events):
                with suppress(UprofError):
                    return _page(path / name, path, None, Printer(quiet=True))[0][0]
        return None

    return find


def _timeline(
    path: Path, folder: Path, rank: int | None, printer: Printer, *, convert: bool = False
) -> tuple[list[Item], str]:
    """Return the page that opens Perfetto, the timeline, and a note about missing data."""
    from unified_prof.base.loopback import Item
    from unified_prof.cluster.rank_partial import is_run_directory
    from unified_prof.pipeline import export
    from unified_prof.pipeline.outputs import RankSelection
    from unified_prof.report import html_page as opener

    title = path.absolute().name
    # Perfetto also reads Chrome's format, which needs no extra package.
    suffix = ".perfetto-trace" if find_spec("perfetto") else ".json"
    file = folder / (re.sub(r"[^\w.-]", "_", path.absolute().stem, flags=re.ASCII) + suffix)
    reader = Reader(printer, convert, file)
    if rank is not None or is_run_directory(path):
        chosen = None if rank is None else RankSelection(((rank, rank),))
        made = export.export_ranks(path, file, reader, chosen)
    else:
        made = export.export_timeline(path, file, reader)
    printer.lines(*(line.replace(str(file), file.name) for line in made.lines))
    page = opener.perfetto_opener_page(title, file.name, file.stat().st_size)
    return [
        Item("", _HTML, page.encode()),
        Item(file.name, _BYTES, file, reader=opener.PERFETTO_URL, is_last=True),
    ], made.missing
