import numpy as np
import pytest

from unified_prof.decoders.prof.collectives import FINE_PARTS, bandwidth, closing_tasks


def rates(kinds: str, operator: str, *, one_by_one: bool = False) -> list[float]:
    """Return bytes per ns of consecutive tasks of 10 ns and 100 bytes; P is a payload."""
    count = len(kinds)
    lanes, start = np.zeros(count, np.int64), np.arange(count) * 10 * FINE_PARTS
    payloads = np.array([kind == "P" for kind in kinds])
    closing = np.repeat(closing_tasks([operator]), count)
    times, sizes = (start, start + 10 * FINE_PARTS), np.full(count, 100)
    found = bandwidth((lanes, lanes), *times, sizes, payloads, closing, one_by_one=one_by_one)
    return [rate / 1e9 for rate in found.tolist()]


@pytest.mark.parametrize(
    ("kinds", "operator", "one_by_one", "expected"),
    [
        pytest.param(
            "PP----", "hcom_allReduce_", False, [200 / 60] * 2 + [10] * 4, id="shared until its end"
        ),
        pytest.param(
            "P---", "hcom_send_", False, [100 / 30, 10, 10, 10], id="sends end with two tasks"
        ),
        pytest.param("PP--", "hcom_allReduce_", False, [10] * 4, id="not closed: one per payload"),
        pytest.param(
            *("P-P--P", "hcom_broadcast_", True, [100 / 50, 10, -1, 10, 10, 10]),
            id="among last tasks: skipped",
        ),
        pytest.param(
            *("P-P--P", "hcom_broadcast_", False, [2, 10, 10, 10, 10, 10]), id="all at once"
        ),
        pytest.param(
            *("P-PP--", "hcom_send_", True, [100 / 30, 10, -1, 100 / 30, 10, 10]),
            id="after last tasks: another transfer",
        ),
    ],
)
def test_payloads_share_the_time_of_their_transfer(
    kinds: str, operator: str, one_by_one: bool, expected: list[float]
) -> None:
    assert rates(kinds, operator, one_by_one=one_by_one) == pytest.approx(expected)


def test_missing_duration_has_no_bandwidth_and_missing_size_a_negative_one() -> None:
    zero = np.zeros(1, np.int64)
    arguments = ((zero, zero), zero)
    none = bandwidth(*arguments, zero, zero + 100, np.array([False]), zero + 4)
    assert none.tolist() == [0.0]
    unknown = bandwidth(*arguments, zero + 10 * FINE_PARTS, zero - 1, np.array([False]), zero + 4)
    assert unknown.tolist() == pytest.approx([-1e8])
