"""Snapshots of PyTorch's caching allocator, as pickle or JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source

if TYPE_CHECKING:
    from unified_prof.columns import Sink

_HEAD_BYTES = 256
_KEYS = rb"segments|device_traces|allocator_settings|external_annotations"
_PICKLE = re.compile(rb"\x80[\x02-\x05].{0,40}(?:" + _KEYS + rb")", re.DOTALL)
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:' + _KEYS + rb')"\s*:')


class MemorySnapshot(Source):
    """What `torch.cuda.memory._dump_snapshot()` writes."""

    kind = "memory_snapshot"
    what = "a memory snapshot of torch.cuda.memory (.pickle, .json)"
    command = "import"

    def sniff(self, path: Path) -> Sign:
        """Tell by the first key, which stands in the first bytes."""
        try:
            if not path.is_file():
                return Sign.NO
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except OSError:
            return Sign.NO
        return Sign.SURE if _PICKLE.match(head) or _JSON.match(head) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Follow every allocation; see `decoders.memory_snapshot`."""
        from unified_prof.decoders import memory_snapshot

        decoded = memory_snapshot.decode(path, sink, progress=ground.now)
        return Decoded(
            facts=decoded.facts,
            figures={"entries": decoded.entries, "blocks": decoded.blocks},
            summary=f"{decoded.entries:,} actions of the allocator, {decoded.blocks:,} blocks",
        )

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"snapshot": path.name, "snapshot_bytes": str(path.stat().st_size)}

    def stem(self, path: Path) -> str:
        """Return its name without its ending."""
        return path.stem or path.name
