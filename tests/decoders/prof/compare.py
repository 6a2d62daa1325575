"""Comparison of decoded tables with the rows that a recording was generated from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_RELATIVE = 1e-8
# The exporter rounds or truncates HCCS and LLC to a thousandth MB/s, usage to six decimals.
_ABSOLUTE = {
    "hitRate": 0.051,
    **dict.fromkeys(("throughput", "txThroughput", "rxThroughput"), 1050.0),
    **dict.fromkeys(("bandwidth", "read", "write"), 1.0),
}


def assert_same_rows(
    table: str, expected: dict[str, NDArray[Any]], actual: dict[str, NDArray[Any]]
) -> None:
    """Fail unless both have the same rows, in any order, in the expected columns."""
    missing = [name for name in expected if name not in actual]
    assert not missing, f"{table} has no {missing}"
    exact = [name for name in expected if not _is_float(expected[name])]
    inexact = [name for name in expected if _is_float(expected[name])]
    wanted, found = _sorted(expected, exact, inexact), _sorted(actual, exact, inexact)
    assert len(wanted) == len(found), f"{table}: expected {len(wanted)} rows, found {len(found)}"
    for want, have in zip(wanted, found, strict=True):
        assert want[0] == have[0], f"{table} {exact}: expected {want[0]}, found {have[0]}"
        for name, a, b in zip(inexact, want[1], have[1], strict=True):
            slack = _ABSOLUTE.get(name, 1e-6) + _RELATIVE * abs(a)
            assert abs(a - b) <= slack, f"{table}.{name}: expected {a}, found {b} in {want}"


def _is_float(values: NDArray[Any]) -> bool:
    return bool(values.dtype.kind == "f")


def _sorted(
    columns: dict[str, NDArray[Any]], exact: list[str], inexact: list[str]
) -> list[tuple[tuple[Any, ...], tuple[float, ...]]]:
    plain = [_plain(columns[name]) for name in exact]
    numbers = [columns[name].astype(np.float64).tolist() for name in inexact]
    count = len(next(iter(columns.values())))
    left = list(zip(*plain, strict=True)) if plain else [()] * count
    right = list(zip(*numbers, strict=True)) if numbers else [()] * count
    return sorted(zip(left, right, strict=True))


def _plain(values: NDArray[Any]) -> list[Any]:
    whole = values.astype(np.int64) if values.dtype.kind == "f" else values
    return list(whole.tolist())
