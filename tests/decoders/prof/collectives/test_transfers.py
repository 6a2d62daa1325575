from __future__ import annotations

import numpy as np
import pytest

from unified_prof.decoders.prof.collective_records import FINE_PARTS, bandwidth, closing_tasks

PAYLOAD, OTHER = True, False


def rates(
    kinds: list[bool], operator: str, size: int = 100, *, one_by_one: bool = False
) -> list[float]:
    """Return the bandwidths of tasks of 10 ns each, one after another, in bytes per ns."""
    count = len(kinds)
    start = np.arange(count) * 10 * FINE_PARTS
    found = bandwidth(
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        start,
        start + 10 * FINE_PARTS,
        np.full(count, size),
        np.array(kinds),
        np.repeat(closing_tasks([operator]), count),
        one_by_one=one_by_one,
    )
    return [rate / 1e9 for rate in found.tolist()]


def test_payloads_share_the_time_until_their_transfer_ends() -> None:
    kinds = [PAYLOAD, PAYLOAD, OTHER, OTHER, OTHER, OTHER]
    assert rates(kinds, "hcom_allReduce_") == pytest.approx([200 / 60] * 2 + [10] * 4)


def test_sends_and_receives_end_with_two_tasks() -> None:
    assert rates([PAYLOAD, OTHER, OTHER, OTHER], "hcom_send_")[0] == pytest.approx(100 / 30)


def test_a_transfer_that_is_not_closed_is_one_for_each_payload() -> None:
    assert rates([PAYLOAD, PAYLOAD, OTHER, OTHER], "hcom_allReduce_") == pytest.approx([10] * 4)


def test_payloads_among_the_last_tasks_of_a_transfer_are_skipped_one_by_one() -> None:
    kinds = [PAYLOAD, OTHER, PAYLOAD, OTHER, OTHER, PAYLOAD]
    found = rates(kinds, "hcom_broadcast_", one_by_one=True)
    assert found == pytest.approx([100 / 50, 10, -1, 10, 10, 10])
    assert rates(kinds, "hcom_broadcast_")[2] == pytest.approx(10)


def test_a_payload_after_the_last_tasks_of_a_transfer_begins_another() -> None:
    kinds = [PAYLOAD, OTHER, PAYLOAD, PAYLOAD, OTHER, OTHER]
    found = rates(kinds, "hcom_send_", one_by_one=True)
    assert found == pytest.approx([100 / 30, 10, -1, 100 / 30, 10, 10])


def test_a_missing_duration_has_no_bandwidth_and_a_missing_size_is_negative() -> None:
    zero = np.zeros(1, np.int64)
    arguments = (zero, zero, zero)
    none = bandwidth(*arguments, zero, zero + 100, np.array([OTHER]), zero + 4)
    assert none.tolist() == [0.0]
    unknown = bandwidth(*arguments, zero + 10 * FINE_PARTS, zero - 1, np.array([OTHER]), zero + 4)
    assert unknown.tolist() == pytest.approx([-1e8])
