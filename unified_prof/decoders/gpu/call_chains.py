"""Python call chains, forward call chains of backward operations, and emit_nvtx operations.

A call chain is a frame and the call chain of its caller. `torch.autograd.profiler.emit_nvtx` marks
operations as ranges, with NVTX on NVIDIA devices and roctx on AMD devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Ints, find
from unified_prof.arrays.nesting import NONE
from unified_prof.base.columns import MISSING, Sink

# Names of built-in methods contain the address of their object, which would make every call a new
# frame.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_BATCH_ROWS = 100_000


class Frames(dict[Any, int]):
    """Names of Python functions -> consecutive numbers."""

    def __init__(self, is_outside: Callable[[str], bool]) -> None:
        self.texts: list[str] = []
        # Frames of the tool that ran the program; these frames and their callers are omitted.
        self.outside: set[int] = set()
        self._is_outside = is_outside
        self._numbers: dict[str, int] = {}

    def __missing__(self, name: Any) -> int:
        text = _ADDRESS.sub("", str(name))
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
            if self._is_outside(text):
                self.outside.add(number)
        if len(text) == len(str(name)):
            self[name] = number  # a name with an address occurs once
        return number


class CallChains:
    """Tree of all distinct call chains of a recording."""

    def __init__(self, is_outside: Callable[[str], bool]) -> None:
        self.frames = Frames(is_outside)
        self._numbers: dict[int, int] = {}  # parent << 32 | frame -> number
        self._parents: list[int] = []
        self._frames: list[int] = []
        self._stacks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def links(self) -> tuple[list[int], list[int]]:
        """Caller's chain and last frame of each chain; arguments for `extend_all`."""
        return self._parents, self._frames

    def extend_all(self, parents: list[int], known: list[int], frames: list[int]) -> list[int]:
        """Add frames (numbers of `Frames`), and return the chain of each.

        `parents` are the indexes of the calling frames in these lists, or `NONE`; callers precede
        callees. `known` are the chains of frames that were added before, else `NONE`.
        """
        chains: list[int] = []
        numbers, all_parents, all_frames = self._numbers, self._parents, self._frames
        outside = self.frames.outside
        for parent, chain, frame in zip(parents, known, frames, strict=True):
            if chain == NONE and frame not in outside:
                above = chains[parent] if parent != NONE else NONE
                key = (above + 1) << 32 | frame
                found = numbers.get(key)
                if found is None:
                    found = numbers[key] = len(all_parents)
                    all_parents.append(above)
                    all_frames.append(frame)
                chain = found
            chains.append(chain)
        return chains

    def from_text(self, text: Any) -> int:
        """Parse a chain in the format of `Call stack` (`inner;outer`); return NONE if invalid."""
        if not isinstance(text, str) or not text:
            return NONE
        chain = self._stacks.get(text)
        if chain is None:
            parts = [part.strip() for part in reversed(text.split(";"))]
            frames = [self.frames[part] for part in parts if part]
            above = list(range(NONE, len(frames) - 1))
            chains = self.extend_all(above, [NONE] * len(frames), frames)
            chain = self._stacks[text] = chains[-1] if chains else NONE
        return chain

    def write(self, sink: Sink, used: Ints) -> None:
        """Write PYTORCH_CALLCHAINS for the chains `used`: one row per frame, innermost depth 0."""
        strings = [NONE] * len(self.frames.texts)
        ids: list[int] = []
        stacks: list[int] = []
        depths: list[int] = []
        for chain in np.unique(used).tolist():
            depth, at = 0, chain
            while at != NONE:
                frame = self._frames[at]
                if strings[frame] == NONE:
                    strings[frame] = sink.strings.intern(self.frames.texts[frame])
                ids.append(chain)
                stacks.append(strings[frame])
                depths.append(depth)
                depth, at = depth + 1, self._parents[at]
            if len(ids) >= _BATCH_ROWS:
                _write_rows(sink, ids, stacks, depths)
                ids, stacks, depths = [], [], []
        _write_rows(sink, ids, stacks, depths)


def _write_rows(sink: Sink, ids: list[int], stacks: list[int], depths: list[int]) -> None:
    if ids:
        sink.write("PYTORCH_CALLCHAINS", {"id": ids, "stack": stacks, "stackDepth": depths})


# Maximum forward operations that are kept: more than any iteration has.
MAX_FORWARDS = 1 << 18

# Chain of a sequence number that several threads recorded.
_AMBIGUOUS = -2


class Forwards:
    """Maps autograd sequence numbers to the call chains of the forward operations.

    An operation records the sequence number of the next autograd node. If consecutive operations
    record the same number, the node belongs to the one that started last.
    """

    def __init__(self, max_forwards: int = MAX_FORWARDS) -> None:
        self._max_forwards = max_forwards
        empty = np.empty(0, dtype=np.int64)
        self._sequence, self._chain, self._thread = empty, empty, empty

    def add(self, sequence: Ints, chain: Ints, thread: Ints) -> None:
        """Add forward operations in order of their starts."""
        if not len(sequence):
            return
        sequence = np.concatenate((self._sequence, sequence))
        chain = np.concatenate((self._chain, chain))
        thread = np.concatenate((self._thread, thread))
        order = np.argsort(sequence, kind="stable")
        sequence, chain, thread = sequence[order], chain[order], thread[order]
        last = np.append(sequence[1:] != sequence[:-1], True)
        # Sequence numbers count per thread: the same one on two threads means two nodes.
        clash = np.append(False, (sequence[1:] == sequence[:-1]) & (thread[1:] != thread[:-1]))
        clashing = np.unique(sequence[clash])
        sequence, chain, thread = sequence[last], chain[last], thread[last]
        chain[np.isin(sequence, clashing)] = _AMBIGUOUS
        # Numbers only grow, so that the smallest are the oldest.
        keep = slice(max(0, len(sequence) - self._max_forwards), None)
        self._sequence, self._chain, self._thread = sequence[keep], chain[keep], thread[keep]

    def find(self, sequence: Ints) -> tuple[Ints, int]:
        """Return the forward call chain of each number, and how many numbers are ambiguous."""
        if not len(self._sequence):
            return np.full(len(sequence), NONE), 0
        at = find(self._sequence, sequence)
        chain = np.where(at != NOWHERE, self._chain[at], NONE)
        ambiguous = chain == _AMBIGUOUS
        chain[ambiguous] = NONE
        return chain, int(np.count_nonzero(ambiguous))


# Text that emit_nvtx adds to the name of an operation, in this order.
_ADDED = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?"
    r"(?:, op_id = (?P<number>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[[\d\[\], -]*\]))?"
    r"(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_FIRST_ADDED = (", seq = ", ", op_id = ", ", sizes = ")
_OPERATION = re.compile(r"aten::|autograd::engine::")
_BACKWARD = re.compile(r"(?:autograd::engine::evaluate_function: )?\w*Backward\d*$")
# `forward_thread` of a backward operation whose forward thread is not recorded.
SOME_FORWARD_THREAD = 1


def as_operation(text: str) -> tuple[str, int, int, str] | None:
    """Parse the text of an emit_nvtx range into name, sequence number, operation number and sizes.

    Missing numbers are MISSING, missing sizes are empty. Returns None for other ranges.
    """
    first = min((at for at in map(text.find, _FIRST_ADDED) if at > 0), default=-1)
    if first < 0:
        return (text, MISSING, MISSING, "") if _OPERATION.match(text) else None
    match = _ADDED.match(text, first)
    if match is None or match.end() == first:
        return None
    sequence, number, sizes = match.group("sequence", "number", "sizes")
    return (
        text[:first],
        MISSING if sequence is None else int(sequence),
        MISSING if number is None else int(number),
        sizes or "",
    )


def is_backward(name: str) -> bool:
    """Return True if an operation with this name is a backward node of autograd."""
    return _BACKWARD.match(name) is not None
