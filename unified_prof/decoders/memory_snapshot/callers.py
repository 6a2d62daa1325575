"""Who asked for memory: call chains of allocations, and what they are named after."""

from __future__ import annotations

from typing import Any

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.gpu.chains import CallChains
from unified_prof.decoders.memory_snapshot.values import NONE, mappings
from unified_prof.vocabulary import NOT_AVAILABLE

# Frames of these are what called the allocator, not what the program did.
_LIBRARY = ("/site-packages/", "/dist-packages/", "<")


class Callers:
    """The stacks of a snapshot, each of which is one list for all that share it."""

    def __init__(self, sink: Sink) -> None:
        self.no_name = sink.strings.intern(NOT_AVAILABLE)
        """String id of allocations of which no stack was kept."""
        self._sink = sink
        self._chains = CallChains(lambda frame: False)
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}
        self._used: set[int] = set()

    def of(self, frames: Any) -> tuple[int, int]:
        """Return the call chain of an allocation, and the string id of what it is named after."""
        if not isinstance(frames, list) or not frames:
            return NONE, self.no_name
        key = tuple(map(id, frames))
        found = self._known.get(key)
        if found is None:
            texts = [text for text in map(_frame_text, frames) if text is not None]
            chain = self._chains.of_stack(";".join(text.replace(";", ",") for text in texts))
            own = next((text for text in texts if _is_own(text)), None)
            name = own or (texts[0] if texts else None)
            number = self.no_name if name is None else self._sink.strings.intern(name)
            found = self._known[key] = (chain, number)
            if chain != NONE:
                self._used.add(chain)
        return found

    def write(self) -> None:
        """Write the call chains that were asked for."""
        if self._used:
            self._chains.write(self._sink, np.array(sorted(self._used), np.int64))


def frames_of(block: dict[Any, Any]) -> Any:
    """Return the stack of a block that is in use."""
    frames = block.get("frames")
    if not frames:  # before torch 2.1
        for one in mappings(block.get("history")):
            return one.get("frames")
    return frames


def _frame_text(frame: Any) -> str | None:
    """Write a frame the way Kineto does, `file.py(line): function`."""
    if not isinstance(frame, dict):
        return None
    name, file, line = (frame.get(key) for key in ("name", "filename", "line"))
    if not isinstance(name, str) or not name:
        return None
    if not isinstance(file, str) or file in ("", "??"):
        return name
    return f"{file}({line if isinstance(line, int) else 0}): {name}"


def _is_own(text: str) -> bool:
    return ".py(" in text and not any(part in text for part in _LIBRARY)
