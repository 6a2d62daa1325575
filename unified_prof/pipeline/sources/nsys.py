"""Exports of Nsight Systems: `nsys export --type sqlite`, and `--type parquetdir`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.pipeline.sources.gpu import decoded, recorded_tables

if TYPE_CHECKING:
    from unified_prof.columns import Sink, Tables

_SIGNS = ("META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS")
"""How names of tables begin of which every export has one."""
_PARQUET = ".parquet"


class Nsys(Source):
    """The tables of a recording of Nsight Systems, in a database or a folder of Parquet files."""

    kind = "nsys"
    what = "an Nsight Systems export (.sqlite, parquetdir)"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the names of the tables, as versions differ in all else."""
        from unified_prof.store.table_names import table_names

        tables = _parquet_names(path) if path.is_dir() else table_names(path)
        return Sign.SURE if any(name.startswith(_SIGNS) for name in tables) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode in memory that the number of events does not change; see `decoders.nsys`."""
        from unified_prof.decoders import nsys

        with _tables(path) as tables:
            found = nsys.decode(
                path,
                tables,
                sink,
                has_column=ground.has_column,
                data_types=ground.data_types,
                progress=ground.now,
            )
        return decoded(found)

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        files = [path] if path.is_file() else sorted(path.glob(f"*{_PARQUET}"))
        size = sum(file.stat().st_size for file in files)
        return {"export": path.resolve().name, "export_bytes": str(size)}

    def changed_ns(self, path: Path) -> int:
        """Return when a file of it was last written to, ns since 1970."""
        files = [path] if path.is_file() else [path, *path.glob(f"*{_PARQUET}")]
        return max(file.stat().st_mtime_ns for file in files)

    def stem(self, path: Path) -> str:
        """Return its name without what all exports have."""
        name = path.resolve().name
        if name.endswith(".db"):  # the report's own ending
            return f"{name.removesuffix('.db')}_uprof"
        return name.removesuffix(".sqlite").removesuffix("_pqtdir") or name


def _parquet_names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(
            file.name.removesuffix(_PARQUET)
            for file in folder.iterdir()
            if file.name.endswith(_PARQUET)
        )
    except OSError:
        return frozenset()


def _tables(path: Path) -> AbstractContextManager[Tables]:
    """Open the tables of an export, whatever its form."""
    if path.is_dir():
        from unified_prof.decoders.nsys.parquet import ParquetTables

        return nullcontext(ParquetTables(path))
    return recorded_tables(path)
