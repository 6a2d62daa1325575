from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.decoders.prof.clocks import MAX_NS, LinearClock, build_clocks

MHZ = st.sampled_from(["50.000000", "48", "100", "37.5", "1000", "49.999999", "24.576", "0.3"])


@given(
    mhz=MHZ,
    origin=st.integers(0, 10**15),
    origin_ns=st.fractions(0, 2 * 10**18, max_denominator=1000),
    ticks=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
)
def test_times_are_exact_and_truncated_to_nanoseconds(
    mhz: str, origin: int, origin_ns: Fraction, ticks: list[int]
) -> None:
    rate = Fraction(1000) / Fraction(Decimal(mhz))
    clock = LinearClock(rate, origin_ns - origin * rate)
    exact = [(tick - origin) * rate + origin_ns for tick in ticks]
    expected = [min(max(time.numerator // time.denominator, 0), MAX_NS) for time in exact]
    assert clock.to_ns(np.array(ticks, np.uint64)).tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int64])
def test_any_integer_column_is_exact(dtype: type[np.uint32 | np.uint64 | np.int64]) -> None:
    clock = LinearClock(Fraction(1000), Fraction(7))
    digits = LinearClock(Fraction(1000) / Fraction(Decimal("99.99999999999999")), Fraction(5))
    assert digits.to_ns(np.array([10**15], np.uint64)).tolist() == [10**16 + 6]
    assert clock.to_ns(np.array([0, 3], dtype)).tolist() == [7, 3007]
    assert clock.to_ns(np.zeros(0, dtype)).dtype == np.int64


def test_finer_parts_of_a_nanosecond_round_to_nearest() -> None:
    clock = LinearClock(Fraction(1000, 48), Fraction(1000)).finer(1024, 1000)
    assert clock.to_ns(np.array([48, 1], np.uint64)).tolist() == [1_024_000, 21_333]


def test_clocks_of_a_directory_share_its_start() -> None:
    clocks = build_clocks(
        host_mhz=Decimal(100), host_monotonic_ns=5_000, host_counter=1_000, host_counter_diff=10,
        begin_us=1_700_000_000_000_000, begin_monotonic_ns=4_000, device_mhz=Decimal(50),
        device_counter=77, device_monotonic_ns=2_000,
    )  # fmt: skip
    start_ns = 1_700_000_000_000_001_000 + 100  # Moment of the start log, with the counter offset.
    assert clocks.device is not None
    assert clocks.device_monotonic is not None
    assert clocks.since_start_us is not None
    assert clocks.host.tick_to_ns(1_000) == start_ns
    assert clocks.device.tick_to_ns(77) == start_ns
    assert clocks.device_monotonic.tick_to_ns(2_000) == start_ns
    assert clocks.since_start_us.tick_to_ns(0) == start_ns
    assert clocks.monotonic.tick_to_ns(4_000) == 1_700_000_000_000_000_000


def test_host_counter_without_frequency_is_in_nanoseconds() -> None:
    clocks = build_clocks(
        host_mhz=None, host_monotonic_ns=5_000, host_counter=123, host_counter_diff=99, begin_us=1,
        begin_monotonic_ns=0, device_mhz=Decimal(50), device_counter=77,
    )  # fmt: skip
    assert clocks.host.tick_to_ns(42) == 1_042
    assert clocks.device is not None
    assert clocks.device.tick_to_ns(77) == 1_000 + 5_000 + 99, "the offset is in nanoseconds"
