"""What calls of the host that wait for a device waited for."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.explain.schedule.device_pieces import Pieces
from unified_prof.analysis.explain.schedule.graph import Ints
from unified_prof.analysis.explain.schedule.launch_order import TRIES, Launched
from unified_prof.analysis.read import waits
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.groups import by_key
from unified_prof.arrays.codes import codes
from unified_prof.arrays.lookup import NOWHERE


def waited_for(
    recording: Recording, pieces: Pieces, call: Ints, own: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return what synchronising calls waited for: which of them, and a piece whose end it was.

    Args:
        recording: the recording.
        pieces: its pieces.
        call: the calls.
        own: which of them wait for what they launched themselves.
    """
    calls = recording.host_calls
    known = np.flatnonzero(pieces.call >= 0)
    known = known[np.argsort(pieces.end_ns[known], kind="stable")]
    found: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]

    def look(which: Ints, rows: Ints) -> None:
        """Take the last of some pieces, in order of their ends, that each call can have meant."""
        begin, end = calls.start_ns[call[which]], calls.end_ns[call[which]] - pieces.skew_ns
        last = np.searchsorted(pieces.end_ns[rows], end, side="right") - 1
        looking = np.flatnonzero(last >= 0)
        for _ in range(TRIES):
            at = rows[last[looking]]
            mine = pieces.call[at] == call[which[looking]]
            before = pieces.launched_ns[at] < begin[looking]
            fits = np.where(own[which[looking]], mine, mine | before)
            found.append((which[looking[fits]], at[fits]))
            last[looking[~fits]] -= 1
            looking = looking[~fits]
            looking = looking[last[looking] >= 0]
            if not len(looking):
                break

    events = waits.of_calls(recording.source, calls, call)
    its = Launched(pieces).before(events.awaited_stream, events.recorded_ns)
    found.append((events.call[its != NOWHERE], its[its != NOWHERE]))
    open_ones = np.ones(len(call), bool)
    open_ones[events.call[its != NOWHERE]] = False
    streams = {number: known[rows] for number, rows in by_key(pieces.stream[known])}
    for number, rows in by_key(events.on_stream):
        which = events.on_stream_call[rows]
        which = which[open_ones[which]]
        open_ones[which] = False
        look(which, streams.get(number, known[:0]))
    whole = np.flatnonzero(open_ones & ~own & _of_devices(recording, call))
    if len(streams) <= _STREAMS:
        for rows in streams.values():
            look(whole, rows)
        open_ones[whole] = False
    look(np.flatnonzero(open_ones), known)
    return (
        np.concatenate([which for which, _ in found]),
        np.concatenate([piece for _, piece in found]),
    )


_STREAMS = 64
"""Of up to so many streams the last work is what a wait for a device waits for, else of all."""
_WHOLE = re.compile(r"(?:Device|Ctx|Context)Synchronize", re.IGNORECASE)


def _of_devices(recording: Recording, call: Ints) -> NDArray[np.bool_]:
    """Tell which calls wait for a device as a whole."""
    ids, number = codes(recording.host_calls.name[call])
    flags = [bool(_WHOLE.search(text or "")) for text in recording.strings.texts(ids)]
    return np.array([*flags, False])[number]
