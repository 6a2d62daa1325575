"""`uprof export` of tables: a report's as Parquet or Arrow files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from unified_prof.errors import UsageError
from unified_prof.export import tables
from unified_prof.export.layouts import Layout
from unified_prof.export.tables import Exported
from unified_prof.pipeline import outputs
from unified_prof.store.reader import open_report


def export_tables(
    path: Path,
    directory: Path,
    layout: Layout,
    *,
    only: Collection[str] = (),
    ids: bool = False,
    force: bool = False,
) -> Exported:
    """Write tables of a report of any family as files of their own.

    Args:
        path: the report.
        directory: where the files go; it is made where it is missing.
        layout: one of tables.
        only: the tables; none: all that have rows.
        ids: whether ids of texts stay as they are.
        force: whether files of the same names may be replaced.

    Raises:
        UsageError: there is no such table, or pyarrow is not installed.
        StoreError: it is no report, or a damaged one.
        OutputError: a file exists or cannot be written.
    """
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder, and tables are of one report",
            hint="name one of the reports in it",
            slug="several-reports",
        )
    with open_report(path, any_revision=True) as report, outputs.output_directory(directory):
        return tables.write(report, directory, layout.name, only=only, ids=ids, force=force)
