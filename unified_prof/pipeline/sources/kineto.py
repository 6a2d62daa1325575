"""Traces that torch.profiler (Kineto) writes, of NVIDIA and AMD devices and of the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source
from unified_prof.pipeline.sources.gpu import decoded

if TYPE_CHECKING:
    from unified_prof.columns import Sink

_COMPRESSED = r"(\.(?:gz|xz|bz2|zst|zip))"
_SUFFIXES = re.compile(rf"(\.pt)?(\.trace)?\.json{_COMPRESSED}?$|{_COMPRESSED}$", re.IGNORECASE)
_JSON_NAME = re.compile(rf".*\.json{_COMPRESSED}?", re.IGNORECASE | re.DOTALL)
_TRACE_NAME = re.compile(rf".*trace.*\.json{_COMPRESSED}?", re.IGNORECASE | re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}\[]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})\b')
_ALONE = re.compile(rb'"world_size"\s*:\s*1\b')
# Keys and categories of torch.profiler's own, which Chrome traces of other programs lack.
_SIGNS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|record_shapes)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|python_function)"'
)


class Kineto(Source):
    """Chrome JSON as torch.profiler writes it, plain or compressed."""

    kind = "kineto"
    what = "a torch.profiler trace (.json; also .gz, .xz, .bz2, .zst, .zip of one)"
    command = "import"
    keys = ("trace", "report")
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the first bytes; by the name alone where a trace is empty or damaged."""
        try:
            if not path.is_file():  # a pipe would be waited for
                return Sign.NO
            head = _head(path)
        except OSError:
            head = None
        if not head:
            if _TRACE_NAME.fullmatch(path.name):
                return Sign.SURE
            return Sign.MAYBE if head is None or _JSON_NAME.fullmatch(path.name) else Sign.NO
        head = head.removeprefix(_BOM).lstrip()
        if head.startswith(b"{") and _SIGNS.search(head):
            return Sign.SURE
        # A list is what torch_npu writes; its databases say more than such a trace.
        return Sign.MAYBE if head[:1] in (b"{", b"[") else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode in memory that the trace's length does not change; see `decoders.kineto`."""
        from unified_prof.decoders import kineto

        found = kineto.decode(
            path,
            sink,
            has_column=ground.has_column,
            data_types=ground.data_types,
            is_outside=ground.is_own_frame,
            progress=ground.now,
        )
        return decoded(found)

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"trace": path.name, "trace_bytes": str(path.stat().st_size)}

    def rank(self, path: Path) -> int | None:
        """Return the rank that stands before the events; None of a process that was alone."""
        try:
            distributed = _DISTRIBUTED.search(_head(path) or b"")
        except OSError:
            return None
        if distributed is None or _ALONE.search(distributed[1]):
            return None
        rank = _RANK.search(distributed[1])
        return None if rank is None else int(rank[1])

    def stem(self, path: Path) -> str:
        """Return its name without the suffixes that every trace has."""
        return _SUFFIXES.sub("", path.name) or path.name


def _head(path: Path) -> bytes | None:
    """Return the first bytes, decompressed; None: they cannot be had."""
    from unified_prof.decoders.compression import head_of

    return head_of(path)
