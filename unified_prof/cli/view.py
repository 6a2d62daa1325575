"""`uprof view`: a run in the browser, the page or its timeline in Perfetto."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import convert as producing
from unified_prof.cli import output
from unified_prof.cli.command import AsJson, OneRank, Quiet
from unified_prof.cli.convert import Convert
from unified_prof.errors import StoreError

if TYPE_CHECKING:
    from unified_prof.base.loopback import Item

_HTML, _BYTES = "text/html; charset=utf-8", "application/octet-stream"
_PERFETTO_PORT = 9001
"""Perfetto's own page may read from this port of 127.0.0.1, and from no other."""
_IDLE_S = 600
_AFTER_TRACE_S = 30
"""For a second look: Perfetto keeps what it has been given."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        "view",
        epilog="Exit code: 0 fine, also after Ctrl-C; 2 wrong use, or the port is not free, 6 a "
        "recording is unreadable, 7 no report, or one that cannot be read (of a folder, all others "
        "are shown nevertheless).",
    )(view)


def view(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A report of any family, or a folder of reports."),
    ],
    perfetto: Annotated[
        bool,
        typer.Option("--perfetto", help="The timeline in ui.perfetto.dev instead of uprof's page."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="N",
            help="Port of 127.0.0.1 to serve on.",
            show_default="9001 with --perfetto if it is free, else any",
        ),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print the address; open no browser.")
    ] = False,
    idle: Annotated[
        int,
        typer.Option(
            min=0, metavar="SECONDS", help="End when nobody has asked for anything for so long."
        ),
    ] = _IDLE_S,
    rank: OneRank = None,
    convert: Convert = False,
    quiet: Quiet = False,
    json_: AsJson = False,
) -> None:
    """Show a run in the browser: its page, or its timeline in Perfetto.

    What is shown is made anew and served to this machine alone (127.0.0.1), at an address with a
    random word that is printed, until Ctrl-C, or until nobody has asked for it for ten minutes;
    a timeline until half a minute after it has been fetched. Nothing is left behind.
    """
    from unified_prof.base.loopback import Served
    from unified_prof.sqlite.atomic import temporary_folder

    with temporary_folder() as folder:
        made = _timeline if perfetto else _page
        items, missing = made(path, folder, rank, convert=convert, quiet=quiet)
        ports = (_PERFETTO_PORT, 0) if perfetto else (0,)
        with Served(items, ports if port is None else (port,)) as served:
            if json_:
                output.put_json({"url": served.url, "port": served.port})
            else:
                output.put(f"{served.url}\n")
            opened = not no_open and _open_browser(served.url)
            if not quiet:
                _say_how(served.port, opened=opened)
            with suppress(KeyboardInterrupt):
                served.wait(idle, after_last_s=min(idle, _AFTER_TRACE_S))
    if missing:
        output.put_error(StoreError(missing, slug="ranks-missing"))
        raise typer.Exit(StoreError.exit_code)


def _page(
    path: Path, folder: Path, rank: int | None, *, convert: bool, quiet: bool
) -> tuple[list[Item], str]:
    """Return uprof's page of a run, and what of it could not be read."""
    from unified_prof.base.loopback import Item
    from unified_prof.report import formats

    made = producing.produced(
        path,
        formats.find_format("html"),
        formats.ReportRequest(),
        rank=rank,
        convert=convert,
        quiet=quiet,
    )
    if rank is None and not quiet:
        producing.say_hints(path, made)
    assert isinstance(made.content, str)
    return [Item("", _HTML, made.content.encode())], made.missing


def _timeline(
    path: Path, folder: Path, rank: int | None, *, convert: bool, quiet: bool
) -> tuple[list[Item], str]:
    """Return a run's timeline with the page that hands it to Perfetto, and what it lacks."""
    from unified_prof.base.loopback import Item
    from unified_prof.cli import trace
    from unified_prof.cli.cluster_report import Wanted
    from unified_prof.cluster.rank_partial import is_run_directory
    from unified_prof.report import html_page as opener

    title = path.absolute().name
    # Perfetto reads Chrome's format as well, which needs no package to be written.
    suffix = ".perfetto-trace" if find_spec("perfetto") else ".json"
    file = folder / (re.sub(r"[^\w.-]", "_", path.absolute().stem, flags=re.ASCII) + suffix)
    missing = ""
    if rank is not None or is_run_directory(path):
        wanted = Wanted(None if rank is None else (rank,), None)
        ranks = trace.write_ranks(path, file, wanted, convert=convert, force=False, quiet=quiet)
        written = ranks.written
    else:
        written, coverage = trace.write_reports(
            path, file, with_path=False, convert=convert, force=False, quiet=quiet
        )
        missing = coverage.sentence if coverage.missing else ""
    if not quiet:
        output.say(trace.sentence(Path(file.name), written))
    page = opener.perfetto_opener_page(title, file.name, file.stat().st_size)
    return [
        Item("", _HTML, page.encode()),
        Item(file.name, _BYTES, file, reader=opener.PERFETTO_URL, is_last=True),
    ], missing


def _open_browser(url: str) -> bool:
    """Open the address where there is a screen; a browser of the terminal would be in the way."""
    import webbrowser

    if not (chosen := os.environ.get("BROWSER")):
        if sys.platform in ("darwin", "win32"):
            if "SSH_CONNECTION" in os.environ:
                return False
        elif not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            return False
    try:
        browser = webbrowser.get()
        return (bool(chosen) or type(browser) is not webbrowser.GenericBrowser) and browser.open(
            url
        )
    except webbrowser.Error:
        return False


def _say_how(port: int, *, opened: bool) -> None:
    where = "opened in the browser" if opened else "open the address in a browser of this machine"
    output.say(f"uprof: note: {where}; Ctrl-C ends it")
    if not opened or "SSH_CONNECTION" in os.environ:
        output.say(
            f"uprof: hint: elsewhere run `ssh -N -L {port}:127.0.0.1:{port} "
            f"{socket.gethostname()}` first, and open the same address there"
        )
