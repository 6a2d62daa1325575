"""Recordings of rocprofv3, of AMD devices: rocpd databases and its JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.pipeline.sources.gpu import decoded, joined_tasks, recorded_tables

if TYPE_CHECKING:
    from unified_prof.columns import Sink, Tables

_METADATA = "rocpd_metadata"
_HEAD_BYTES = 256
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')


class Rocm(Source):
    """What `rocprofv3 --output-format rocpd` or `json` leaves."""

    kind = "rocm"
    what = "a rocprofv3 recording (rocpd .db, .json)"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the table that every rocpd database has, or by the first key."""
        from unified_prof.store.table_names import table_names

        if path.is_dir():
            return Sign.NO
        if _is_json(path):
            return Sign.SURE
        found = any(name.startswith(_METADATA) for name in table_names(path))
        return Sign.SURE if found else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode all sessions of the file; see `decoders.rocm`."""
        from unified_prof.decoders import rocm

        with _tables(path) as tables:
            found = rocm.decode(
                path,
                tables,
                sink,
                has_column=ground.has_column,
                data_types=ground.data_types,
                progress=ground.now,
            )
        return decoded(found, joined_tasks(found))

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"recording": path.name, "recording_bytes": str(path.stat().st_size)}

    def stem(self, path: Path) -> str:
        """Return its name without its ending; that of a database may not be the report's own."""
        return f"{path.stem}_uprof" if path.suffix == ".db" else path.stem or path.name


def _is_json(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _JSON.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def _tables(path: Path) -> AbstractContextManager[Tables]:
    if _is_json(path):
        from unified_prof.decoders.rocm.json_tables import JsonTables

        return nullcontext(JsonTables(path))
    return recorded_tables(path)
