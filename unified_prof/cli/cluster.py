"""`uprof cluster`: many ranks as one run."""

from __future__ import annotations

import typer

from unified_prof.cli import cluster_build, cluster_reading
from unified_prof.cli.command_line import Application

cluster = Application(
    name="cluster",
    help="Many ranks as one run: who is slow, who waits for whom, which link, which step.",
)
cluster_build.register(cluster)
cluster_reading.register(cluster)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.add_typer(cluster)
