"""Tables as Parquet or Arrow files: pyarrow is asked for, and files are opened, here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from unified_prof.errors import UsageError

KINDS = ("parquet", "arrow")
"""Parquet, and Arrow's IPC file format, which Feather 2 is."""


def pyarrow() -> Any:
    """Return the package.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as err:
        raise UsageError(
            "Parquet and Arrow files need pyarrow",
            hint="run `pip install 'unified-prof[parquet]'`",
            slug="missing-package",
        ) from err
    return pyarrow


def opened(kind: str, where: Any, schema: Any) -> AbstractContextManager[Any]:
    """Return what writes batches and tables of a schema into a new file.

    Args:
        kind: one of `KINDS`.
        where: the path as text, or a stream of pyarrow's.
        schema: names and types of the columns.
    """
    from pyarrow import ipc, parquet

    writer: AbstractContextManager[Any]
    if kind == "parquet":
        writer = parquet.ParquetWriter(where, schema)
    else:
        writer = ipc.new_file(where, schema)
    return writer
