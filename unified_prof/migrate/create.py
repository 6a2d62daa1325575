"""Creates an empty report with every table of a revision."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from unified_prof.models import catalogue
from unified_prof.models.catalogue import REVISION_ROW
from unified_prof.store.atomic import replacing
from unified_prof.store.sql import open_unfinished


def create(path: Path | str, family: str, revision: str, *, overwrite: bool = False) -> str:
    """Create the file and return the full name of its revision, which may be an alias.

    Raises:
        UsageError: no such family or revision.
        OutputError: the file exists, or cannot be written.
    """
    schema = catalogue.load(family, revision)
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(f"BEGIN;\n{catalogue.frozen_text(family, revision)}")
        if schema.schema_version is not None:
            db.execute(
                "INSERT INTO META_DATA (name, value) VALUES (?, ?)", (REVISION_ROW, schema.revision)
            )
        db.execute("COMMIT")
    return schema.revision
