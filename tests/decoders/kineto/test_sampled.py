"""Traces from which most operations were removed after they were recorded."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import TID, Event, decode_events, operation

BLOCK = 512  # Ids that torch reserves for a thread at once.


def operations(ids: range, threads: int = 1) -> list[Event]:
    """Return an operation for each id; threads take turns, one block of ids each."""
    place = {number: {"tid": TID + number // BLOCK % threads} for number in ids}
    return [
        operation("aten::mm", number, 1, args={"External id": number}) | place[number]
        for number in ids
    ]


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        # One operation in 64 of four blocks of 1,024 ids and more is left.
        (operations(range(1, 12_000, 64)), "188 of more than 10,240 operations are in the file"),
        (operations(range(1, 12_000, 4)), None),
        (operations(range(70_001, 70_500)), None),  # a later cycle of the profiler
        (operations(range(1, 40 * BLOCK, BLOCK), threads=40), None),  # threads of one operation
        ([operation("aten::mm", 0, 1)] * 9, None),  # torch before 1.8 has no ids
        # Another tool's ids, such as random numbers or addresses, are no numbers of operations.
        (
            [operation("aten::mm", at, 1, args={"External id": at**7}) for at in range(1, 300)],
            None,
        ),
    ],
)
def test_removed_operations_are_counted_by_their_ids(
    tmp_path: Path, events: list[Event], detail: str | None
) -> None:
    sink = decode_events(tmp_path, *events)
    assert sink.details.get("sampled_trace") == detail
    assert sink.anomalies.keys() == ({"sampled_trace"} if detail else set())
