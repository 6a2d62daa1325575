import numpy as np

from unified_prof.decoders.prof.host_events import _messages


def test_message_segments_end_at_their_first_nul_and_are_joined() -> None:
    parts = np.array([b"one \0left over", b"and two", b"three"], "S156")
    assert _messages(parts, np.array([2, 1])) == ["one and two", "three"]
