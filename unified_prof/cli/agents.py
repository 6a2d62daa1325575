"""Commands for programs: `mcp` serves coding agents, `lsp` editors, `schema` documents JSON."""

from __future__ import annotations

from pathlib import Path

from unified_prof.cli import output
from unified_prof.cli.command import Group, argument, flag, option
from unified_prof.errors import UsageError


def register(app: Group) -> None:
    """Register the commands."""
    app.command("mcp")(mcp)
    app.command("lsp")(lsp)
    app.command("schema")(schema)


def mcp(
    *,
    root: list[Path] | None = option(
        metavar="DIR",
        help="Directory whose reports may be read. Repeatable.",
        show_default="the current directory",
    ),
    allow_run: bool = flag(help="Also offer a tool that profiles a script."),
) -> None:
    """Answer questions of coding agents about reports: an MCP server on stdio.

    Reports and recordings are read only below the given directories; symbolic links that lead out
    of them are refused. Nothing is written, except to uprof's cache and by --allow-run.
    """
    from unified_prof.integrations.mcp_server import make_server
    from unified_prof.integrations.report_tools import ReportTools

    roots = root or [Path()]
    for one in roots:
        if not one.is_dir():
            raise UsageError(f"--root {one} is not a directory", slug="no-folder")
    make_server(ReportTools(roots), allow_run=allow_run).run()


def lsp(
    *,
    run: Path | None = option(
        metavar="FILE|DIR",
        help="Report to show.",
        show_default="the newest below the editor's folder",
    ),
) -> None:
    """Show costs in the editor: a language server on stdio for Python files.

    Lines with costs get hints, functions and classes their totals, findings are diagnostics. A file
    that changed since the run is marked as stale.
    """
    from unified_prof.integrations.language_server import make_server

    if run is not None and not run.exists():
        raise UsageError(f"--run {run} does not exist", slug="no-such-file")
    make_server(run).start_io()


def schema(command: str = argument(metavar="COMMAND")) -> None:
    """Print the JSON Schema of a command's JSON: report, advise, what-if, diff, gate, cluster.

    Readers must ignore keys that they do not know: new keys do not change the version.
    """
    from unified_prof.report import contract

    output.put_json(contract.schema(command))
