"""Writers for Parquet and Arrow files; pyarrow is imported on first use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from unified_prof.errors import missing_package

KINDS = ("parquet", "arrow")  # Parquet, and Arrow's IPC file format (Feather 2).


def pyarrow() -> Any:
    """Import and return pyarrow. Raises UsageError if it is not installed."""
    hint = "run `pip install 'unified-prof[parquet]'`"
    with missing_package("Parquet and Arrow files require pyarrow", hint=hint):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def opened(kind: str, where: Any, schema: Any) -> AbstractContextManager[Any]:
    """Return a writer of batches and tables to a new file of a kind in `KINDS`.

    `where` is a path as text, or a pyarrow stream.
    """
    from pyarrow import ipc, parquet

    writer: AbstractContextManager[Any]
    if kind == "parquet":
        writer = parquet.ParquetWriter(where, schema)
    else:
        writer = ipc.new_file(where, schema)
    return writer
