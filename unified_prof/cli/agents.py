"""Commands on uprof itself: servers for agents and editors, JSON Schemas, and what is installed."""

from __future__ import annotations

from pathlib import Path

from unified_prof.cli import command as cli
from unified_prof.cli import output
from unified_prof.version import VERSION


@cli.command("mcp")
def mcp(
    *,
    root: list[Path] | None = cli.option(
        "Directory whose reports may be read. Repeatable. [default: the current directory]", "DIR"
    ),
    allow_run: bool = cli.flag("Also offer a tool that profiles a script."),
) -> None:
    """Serve reports to coding agents (MCP server on stdio).

    Reports and recordings are read only below the given directories; symbolic links that lead out
    of them are refused. Nothing is written, except to uprof's cache and by --allow-run.
    """
    from unified_prof.integrations.report_tools import ReportTools, make_server

    roots = root or [Path()]
    for one in roots:
        cli.refuse(not one.is_dir(), f"--root {one} is not a directory", slug="no-folder")
    make_server(ReportTools(roots), allow_run=allow_run).run()


@cli.command("lsp")
def lsp(
    *,
    run: Path | None = cli.option(
        "Report to show. [default: the newest in the workspace]", "FILE|DIR"
    ),
) -> None:
    """Show costs of Python lines in the editor (language server on stdio).

    Lines have their costs as hints, functions and classes their totals; findings are diagnostics. A
    file that changed since the run is marked as stale.
    """
    import sys

    from unified_prof.integrations.language_server import Input, make_server

    is_missing = run is not None and not run.exists()
    cli.refuse(is_missing, f"--run {run} does not exist", slug="no-such-file")
    make_server(run).start_io(Input(sys.stdin.buffer))


@cli.command("schema")
def schema(
    command: str = cli.argument("report, advise, what-if, diff, gate or cluster.", "COMMAND"),
) -> None:
    """Print the JSON Schema of a command's JSON output.

    Readers must ignore keys that they do not know: new keys do not change the version.
    """
    from unified_prof.report import contract

    output.Printer(json_=True).json(lambda: contract.schema(command))


@cli.command("doctor")
def doctor(json_: cli.AsJson = False) -> None:
    """Show which backends can run on this machine, and what is installed."""
    from unified_prof.backends import environment, registry
    from unified_prof.report.document import Document, text_columns
    from unified_prof.report.terminal import render_text

    backends = list(registry.survey())
    versions = {"uprof": VERSION, **environment.versions()}
    findings = {
        "backends": {
            one.name: {"available": one.reason is None, "reason": one.reason, "doubt": one.doubt}
            for one in backends
        },
        "versions": versions,
    }
    if output.Printer(json_=json_).json(lambda: findings):
        return
    rows = [("backend", "available", "why")]
    for answer in backends:
        can = "no" if answer.reason else "only on request" if answer.doubt else "yes"
        rows.append((answer.name, can, answer.reason or answer.doubt or ""))
    document = Document()
    document.table(text_columns(rows))
    document.table(text_columns([("installed", ""), *((k, v or "-") for k, v in versions.items())]))
    width, color = output.terminal()
    output.put(render_text(document, width=width, color=color))
