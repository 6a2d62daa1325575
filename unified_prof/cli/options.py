"""Options that mean the same in every command that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="No remarks, progress or summaries; errors only.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AsJsonFormat = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
FullNames = Annotated[
    bool, typer.Option("--full-names", help="Show names whole in tables, however long.")
]
Noise = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="How much runs of the unchanged workload differ here, such as 2%.",
        show_default="what `uprof gate --self-test` learned",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write to a file, not to stdout."),
]
OneRank = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Of several ranks of a run, this one.")
]
SCHEMA_HELP = "Revision of the schema: documented, latest, or a revision's name."
Schema = Annotated[str, typer.Option("--schema", metavar="REVISION", help=SCHEMA_HELP)]
