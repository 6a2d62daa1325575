"""Stored runs as documents: round trip, damage and size limits."""

import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.compare.test_diff import STEP, run_of
from tests.processes import python
from unified_prof.baselines import api
from unified_prof.compare.comparable import Operations, Place, Run, Sized
from unified_prof.errors import StoreError, UsageError

pytestmark = pytest.mark.fresh_interpreter

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
def test_document_of_a_run_is_unchanged_after_dump_and_load(
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
        waited={"total": -matrix[:1].ravel()},
        steps=samples or None,
        outside_steps_ns=2.5,
        kernels={"conv": {"gemm": 3.0}},
    )
    back = api.load(api.dump(run), where="here")
    assert (back.families, back.kernels) == (run.families, run.kernels)
    assert (back.steps, back.outside_steps_ns) == (run.steps, 2.5)
    np.testing.assert_array_equal(back.waited["total"], -matrix[:1].ravel())
    assert (back.label, back.clock, back.facts, back.sizes) == ("x", "device", facts, tuple(sizes))
    assert back.operations.places == tuple(found)
    np.testing.assert_array_equal(back.operations.forward_ns, matrix)
    np.testing.assert_array_equal(back.operations.backward_ns, -matrix)
    np.testing.assert_array_equal(back.totals["total"], matrix[:1].ravel())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_document_is_a_store_error(position: int, value: int) -> None:
    data = bytearray(api.dump(run_of(STEP)))
    data[position % len(data)] = value
    try:
        text = api.load(bytes(data), where="baseline 'x'").label
    except StoreError as err:
        text = str(err)
    assert text == "run.sqlite" or "baseline 'x'" in text


@pytest.mark.parametrize("data", [b"", b"abc", zlib.compress(b""), zlib.compress(b"\x80")])
def test_invalid_document_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        api.load(data, where="here")


def test_document_of_a_newer_version_is_refused() -> None:
    raw = msgspec.msgpack.decode(zlib.decompress(api.dump(run_of(STEP))))
    raw["version"] = 99
    with pytest.raises(StoreError, match="version 99"):
        api.load(packed(raw), where="here")


def packed(raw: object) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(raw))


def hostile(places: int = 0, facts: int = 0) -> bytes:
    nameless = {"name": "", "module": None, "line": None}
    arrays = {"forward_ns": [[0], b""], "backward_ns": [[0], b""]}
    run = {"label": "", "families": [], "clock": "", "sizes": [], "totals": {}}
    run |= {"facts": {str(number): "" for number in range(facts)}}
    run |= {"operations": {"places": [nameless] * places, **arrays}}
    return packed({"version": 2, "run": run})


HOSTILE = {
    "zeros": lambda: zlib.compress(bytes(1 << 31), 1),
    "places": lambda: hostile(places=6_000_000),
    "facts": lambda: hostile(facts=2_000_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_document_takes_less_than_600_mb(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(HOSTILE[kind]())
    program = """
import resource, sys
from pathlib import Path
from unified_prof.baselines import api
from unified_prof.errors import StoreError, UsageError
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    api.load(data, where="here")
except StoreError as err:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, err)
"""
    ran = python("-c", program, str(path), check=True)
    kibibytes, _, message = ran.stdout.partition(" ")
    assert "damaged" in message
    assert int(kibibytes) < 600_000


def test_document_beyond_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = api.dump(run_of(STEP))
    monkeypatch.setattr(api, "_MAX_BYTES", 100)
    with pytest.raises(StoreError, match="expands to more than 100 bytes"):
        api.load(data, where="here")
    with pytest.raises(UsageError, match="too large to save: 3 operations with 12 samples"):
        api.dump(run_of(STEP))
