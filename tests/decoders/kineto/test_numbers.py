"""Times and ids of traces as integers."""

from decimal import ROUND_DOWN, Decimal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.decoders.kineto.builders import complete, decode_events, operation
from unified_prof.base.columns import MISSING
from unified_prof.decoders.kineto import fields
from unified_prof.decoders.kineto.fields import to_float64, to_int64, us_to_ns


def raw(*texts: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(text.encode()) for text in texts]


numbers = st.decimals(
    min_value=-(10**12), max_value=10**13, allow_nan=False, allow_infinity=False, places=3
) | st.decimals(min_value=0, max_value=10**15, allow_nan=False, allow_infinity=False, places=6)


@settings(max_examples=60)
@given(st.lists(numbers, min_size=1, max_size=20))
def test_times_equal_exact_decimal_arithmetic(values: list[Decimal]) -> None:
    texts = [format(value, "f") for value in values]
    times, valid = us_to_ns(raw(*texts))
    assert valid.all()
    exact = [int((Decimal(t) * 1000).quantize(Decimal(1), ROUND_DOWN)) for t in texts]
    assert times.tolist() == exact


JSON_VALUES = st.one_of(
    st.from_regex(r"[1-9][0-9]{3}\.[0-9]{3}", fullmatch=True),
    st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,7})?", fullmatch=True),
    st.sampled_from(["1e3", '"2.5"', '"1-2"', " 3", "null"]),
)


@settings(max_examples=200)
@given(st.lists(JSON_VALUES, min_size=1, max_size=4))
@example(["9223372036854775.807", "9223372036854775.808"])
@example(["9223372036854775", "9223372036854776", "1.5"])
@example(["-9223372036854775", "-9223372036854776"])
def test_times_converted_together_equal_those_converted_alone(texts: list[str]) -> None:
    found, valid = us_to_ns(raw(*texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_convert_plain", lambda *_: None)
        expected, is_valid = us_to_ns(raw(*texts))
    assert (found.tolist(), valid.tolist()) == (expected.tolist(), is_valid.tolist())


@pytest.mark.parametrize("digits", range(4, 19))
def test_times_of_equal_length_are_converted_without_parsing_each(digits: int) -> None:
    numbers = [10 ** (digits - 1), 10**digits - 1, 10**digits // 7]
    text = ",".join(f"{number // 1000}.{number % 1000:03}" for number in numbers).encode()
    found = fields._convert_same_length(np.frombuffer(text, np.uint8), 3)
    assert found is not None
    assert found.tolist() == numbers
    plain = fields._convert_plain(text + b",-5", 4)
    assert plain is not None
    assert plain.tolist() == [*numbers, -5000]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["1695835543008415.123", "1695835543008415.124"],
            [1695835543008415123, 1695835543008415124],
        ),
        (["12", "5"], [12000, 5000]),
        (["12.5", "5", "0.25", "7.123456"], [12500, 5000, 250, 7123]),
        (["-0.5", "-1.2349"], [-500, -1234]),
        (['"12.5"', "1e3", "2.5E-1"], [12500, 1000000, 250]),
    ],
)
def test_all_number_spellings_are_read_exactly(texts: list[str], expected: list[int]) -> None:
    times, valid = us_to_ns(raw(*texts))
    assert valid.all()
    assert times.tolist() == expected


def test_invalid_time_does_not_affect_others() -> None:
    texts = ["1.5", "", "null", "[1,2]", '"soon"', "99999999999999999", "NaN", "2"]
    times, valid = us_to_ns(raw(*texts))
    assert valid.tolist() == [True, False, False, False, False, False, False, True]
    assert times[valid].tolist() == [1500, 2000]


def test_ids_are_read_from_text_hexadecimal_and_unsigned() -> None:
    values = [7, "8", "0x10", "-0X3", 2**64 - 1, 2**63, 2**63 - 1, -(2**63), None, 9.0]
    column, bad = to_int64(values)
    least = -(2**63)
    assert column.tolist() == [7, 8, 16, -3, -1, least, 2**63 - 1, least, MISSING, 9]
    assert bad == 0


def test_unreadable_ids_are_counted() -> None:
    unreadable = ["x", 1.5, True, [1], 2**70, 2**64, -(2**63) - 1]
    column, bad = to_int64([*unreadable, 3, None], missing=-7)
    assert column.tolist() == [-7] * 7 + [3, -7]
    assert column.dtype == np.int64
    assert bad == 7
    assert repr(to_float64(["x", 1, "2.5", None, 10**400, [2]]).tolist()) == (
        "[nan, 1.0, 2.5, nan, nan, nan]"
    )


def test_external_ids_are_correlation_ids_if_no_event_has_one(tmp_path: Path) -> None:
    """Old torch on ROCm: ids of calls are not those of operations, although both begin at 1."""
    launches = [("gemm", 3, 25), ("post", 8, 2), ("add", 35, 1)]
    sink = decode_events(
        tmp_path,
        operation("aten::mm", 0, 20, args={"External id": 1}),
        operation("aten::add", 30, 20, args={"External id": 2}),
        *(
            complete("cuda_runtime", "hipLaunchKernel", at, 2, args={"External id": number})
            for _, at, number in launches
        ),
        *(
            complete("kernel", name, 60 + at, 1, pid=2, tid=0, args={"External id": number})
            for name, at, number in launches
        ),
    )
    launched = dict(sink.rows("CONNECTION_IDS", "connectionId", "id"))
    gemm, post, add = sink.rows("TASK", "connectionId", "deviceId")
    assert [gemm, post, add] == [(25, 2), (2, 2), (1, 2)]
    assert launched[25] == launched[2] != launched[1]
    assert "task_without_launch" not in sink.anomalies
