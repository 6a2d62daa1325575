from __future__ import annotations

import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.test_diff import STEP, run_of
from unified_prof.analysis import document
from unified_prof.analysis.comparable import Operations, Place, Run, Sized
from unified_prof.errors import StoreError

text = st.text(max_size=8)
maybe = st.none() | text
places = st.builds(Place, text, maybe, maybe, text)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(places, max_size=5),
    st.integers(0, 4),
    st.lists(st.builds(Sized, places, st.integers(0, 2**62)), max_size=3),
    st.dictionaries(text, text, max_size=3),
)
def test_what_is_kept_comes_back(
    found: list[Place], samples: int, sizes: list[Sized], facts: dict[str, str]
) -> None:
    matrix = np.random.default_rng(1).normal(size=(len(found), samples))
    matrix[::2] = np.nan
    run = Run(
        label="x",
        families=frozenset({"msprof"}),
        clock="device",
        facts=facts,
        operations=Operations(tuple(found), matrix, -matrix),
        sizes=tuple(sizes),
        totals={"total": matrix[:1].ravel()},
        kernels={"conv": {"gemm": 3.0}},
    )
    back = document.load(document.dump(run), where="here")
    assert (back.families, back.kernels) == (run.families, run.kernels)
    assert (back.label, back.clock, back.facts, back.sizes) == ("x", "device", facts, tuple(sizes))
    assert back.operations.places == tuple(found)
    np.testing.assert_array_equal(back.operations.forward_ns, matrix)
    np.testing.assert_array_equal(back.operations.backward_ns, -matrix)
    np.testing.assert_array_equal(back.totals["total"], matrix[:1].ravel())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_told_and_never_a_traceback(position: int, value: int) -> None:
    data = bytearray(document.dump(run_of(STEP)))
    data[position % len(data)] = value
    try:
        said = document.load(bytes(data), where="baseline 'x'").label
    except StoreError as err:
        said = str(err)
    assert said == "run.sqlite" or "baseline 'x'" in said


@pytest.mark.parametrize("data", [b"", b"abc", zlib.compress(b""), zlib.compress(b"\x80")])
def test_what_is_no_run_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        document.load(data, where="here")


def test_a_later_version_is_refused_by_its_number() -> None:
    raw = msgspec.msgpack.decode(zlib.decompress(document.dump(run_of(STEP))))
    raw["version"] = 99
    with pytest.raises(StoreError, match="version 99"):
        document.load(zlib.compress(msgspec.msgpack.encode(raw)), where="here")
