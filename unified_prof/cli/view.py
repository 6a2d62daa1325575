"""Command `uprof view`: open a run in the browser."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from unified_prof.cli import command as cli
from unified_prof.cli import output
from unified_prof.cli.output import Printer
from unified_prof.errors import StoreError, UprofError
from unified_prof.schema.catalogue import WATCH_FILES

if TYPE_CHECKING:
    from unified_prof.base.loopback import Item

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
                output.put(f"{served.url}\n")
            opened = not no_open and open_browser(served.url, folder)
            where = "opened in the browser" if opened else _WHERE_TO_OPEN
            printer.note(f"{where}; press Ctrl-C to stop")
            if not opened or "SSH_CONNECTION" in os.environ:
                printer.hint(
                    f"from another machine, run `ssh -N -L {served.port}:127.0.0.1:{served.port} "
                    f"{socket.gethostname()}` and open the same address there"
                )
            served.wait(idle, after_last_s=min(idle, _AFTER_TRACE_S))
    output.end_if_missing(missing)


def _page(
    path: Path, folder: Path, rank: int | None, printer: Printer, *, convert: bool = False
) -> tuple[list[Item], str]:
    """Return the page of a run, and a description of what could not be read."""
    from unified_prof.base.loopback import Item
    from unified_prof.pipeline.report_input import Reader, render_reports
    from unified_prof.report import formats

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
    from unified_prof.pipeline.report_input import Reader
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
