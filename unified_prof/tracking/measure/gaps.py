"""Which lines ran between two operations, where the time of no operation went.

The stacks of both operations are known as code objects and instructions. Where they part, the
function they have in common went on from one of its lines to another; what it called before may
have had lines left after its last operation, what it called next had lines before its first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unified_prof.tracking.watch.code_entries import CodeEntry, Stack


@dataclass(frozen=True, slots=True)
class GapSite:
    """The lines that can have taken the time between two operations."""

    file_path: str
    """Relative to the project root."""
    first_line: int
    last_line: int
    """Equal to the first where it can only have been one."""


def gap_site(before: Stack, after: Stack) -> GapSite | None:
    """Return the lines between two operations, None where they cannot be told.

    Where whole lines lie between, those; otherwise the line of the operation that follows, in
    which something ran before it.

    Args:
        before: the stack of the operation before; empty where it had no frame in the project.
        after: the stack of the operation that follows.
    """
    for entry, lines in _between(list(_outermost_first(before)), list(_outermost_first(after))):
        if lines and entry.path is not None:
            return GapSite(entry.path, min(lines), max(lines))
    if not before or not after:
        return None
    entry, at = after[0], after[1]
    if entry.path is None:
        return None
    line = entry.line(at)
    return GapSite(entry.path, line, line)


def _between(
    before: list[tuple[CodeEntry, int]], after: list[tuple[CodeEntry, int]]
) -> Iterator[tuple[CodeEntry, set[int]]]:
    """Yield functions and their lines that may have run in between, the likeliest first.

    Those of the function in common come first; then the head of what was called next, then the
    rest of what was called before, each from the innermost call outwards.
    """
    depth = 0
    while depth < min(len(before), len(after)) and before[depth] == after[depth]:
        depth += 1
    started, left = depth, depth
    if depth < min(len(before), len(after)) and before[depth][0] is after[depth][0]:
        entry = after[depth][0]
        first, last = entry.line(before[depth][1]), entry.line(after[depth][1])
        yield entry, {line for line in entry.lines() if first < line < last}
        started = left = depth + 1
    for entry, at in reversed(after[started:]):
        head = entry.line(at)
        yield entry, {line for line in entry.lines() if entry.first_line < line < head}
    for entry, at in reversed(before[left:]):
        tail = entry.line(at)
        yield entry, {line for line in entry.lines() if line > tail}


def _outermost_first(stack: Stack) -> Iterator[tuple[CodeEntry, int]]:
    return zip(reversed(stack[::2]), reversed(stack[1::2]), strict=True)
