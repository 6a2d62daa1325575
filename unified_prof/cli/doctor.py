"""Command `uprof doctor`: available backends and installed packages."""

from __future__ import annotations

from unified_prof.cli import output
from unified_prof.cli.command import AsJson, Group
from unified_prof.version import VERSION


def register(app: Group) -> None:
    """Register the command."""
    app.command("doctor")(doctor)


def doctor(
    json_: AsJson = False,
) -> None:
    """Show which backends can run on this machine, and what is installed."""
    from unified_prof.backends import environment, registry
    from unified_prof.report.document import Document, text_columns
    from unified_prof.report.terminal import render_text

    backends = list(registry.survey())
    versions = {"uprof": VERSION, **environment.versions()}
    if json_:
        findings = {
            "backends": {
                answer.name: {
                    "available": answer.reason is None,
                    "reason": answer.reason,
                    "doubt": answer.doubt,
                }
                for answer in backends
            },
            "versions": versions,
        }
        output.put_json(findings)
        return
    rows = [("backend", "available", "why")]
    for answer in backends:
        can = "no" if answer.reason else "only on request" if answer.doubt else "yes"
        rows.append((answer.name, can, answer.reason or answer.doubt or ""))
    # Reasons are sentences and are never cut, however narrow the terminal is.
    document = Document()
    document.table(text_columns(rows))
    document.table(text_columns([("installed", ""), *((k, v or "-") for k, v in versions.items())]))
    output.put(render_text(document))
