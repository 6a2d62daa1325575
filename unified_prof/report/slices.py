"""The begin and end events of a track's slices, in an order that viewers nest correctly."""

from __future__ import annotations

from collections.abc import Iterator

from unified_prof.analysis.views.tracks import Track


def events(track: Track) -> Iterator[tuple[int, int, bool]]:
    """Yield (time_ns, slice, begins) in order of time, inner slices between their outer's."""
    open_slices: list[int] = []
    start_ns, end_ns = track.start_ns.tolist(), track.end_ns.tolist()
    for index, start in enumerate(start_ns):
        while open_slices and end_ns[open_slices[-1]] <= start:
            ended = open_slices.pop()
            yield end_ns[ended], ended, False
        yield start, index, True
        open_slices.append(index)
    while open_slices:
        ended = open_slices.pop()
        yield end_ns[ended], ended, False


def category(track: Track, index: int) -> str:
    """Return a slice's category."""
    return track.category[index] if len(track.category) > 1 else track.category[0]
