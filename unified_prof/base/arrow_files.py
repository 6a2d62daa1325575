"""Writers of Parquet and Arrow files, and the import of pyarrow."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from unified_prof.errors import UsageError

# Parquet, and Arrow's IPC file format (Feather 2).
KINDS = ("parquet", "arrow")


def pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        UsageError: It is not installed.
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
    """Return a writer of batches and tables to a new file.

    Args:
        kind: One of `KINDS`.
        where: Path as text, or a stream of pyarrow.
        schema: Names and types of the columns.
    """
    from pyarrow import ipc, parquet

    writer: AbstractContextManager[Any]
    if kind == "parquet":
        writer = parquet.ParquetWriter(where, schema)
    else:
        writer = ipc.new_file(where, schema)
    return writer
