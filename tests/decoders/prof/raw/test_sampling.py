"""Functions shared by the decoders of samples, compared with straightforward versions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unified_prof.decoders.prof import sampling, slices
from unified_prof.decoders.prof.slices import RawFile, scan
from unified_prof.errors import RawFormatError


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=40), st.integers(1, 9))
def test_previous_samples_are_found_across_blocks(rows: list[tuple[int, int]], piece: int) -> None:
    last: dict[int, int] = {}
    expected = []
    for group, value in rows:
        expected.append(last.get(group))
        last[group] = value
    samples = sampling.PreviousSamples()
    found: list[int | None] = []
    for first in range(0, len(rows), piece):
        part = np.array(rows[first : first + piece])
        known, (before,) = samples.previous(part[:, 0], part[:, 1])
        found += [
            int(value) if is_known else None for is_known, value in zip(known, before, strict=True)
        ]
    assert found == expected


@given(st.lists(st.floats(0, 1e9), max_size=20), st.sampled_from([2, 3, 6]))
@example([0.125, 2.675, 1.005, 0.0005, 1234.5675], 3)
def test_rounding_equals_pythons(values: list[float], decimals: int) -> None:
    found = sampling.rounded(np.array(values), decimals)
    assert found.tolist() == [round(value, decimals) for value in values]


def test_invalid_integers_are_rejected() -> None:
    assert sampling.integer("9223372036854775807") == 2**63 - 1
    for text in ("9223372036854775808", "1" * 400, "", "-", "0x10", "1.5", "١٢", " 1"):
        assert sampling.integer(text) is None
    assert sampling.integers("1 -2  3") == [1, -2, 3]
    assert sampling.integers("1 two 3") is None


def _file(folder: Path, *slices: bytes) -> RawFile:
    for index, content in enumerate(slices):
        (folder / f"hccs.data.0.slice_{index}").write_bytes(content)
    file = scan(folder).get("hccs")
    assert file is not None
    return file


def test_lines_are_joined_across_slices(tmp_path: Path) -> None:
    file = _file(tmp_path, b"first li", b"ne\n\nsecond\n \nthi", b"rd")
    lines = [line for batch in file.line_batches() for line in batch]
    assert lines == ["first line", "second", "third"]
    path = tmp_path / "escaped"
    path.mkdir()
    assert list(_file(path, b"caf\xe9\n").line_batches()) == [["caf\\xe9"]]


def test_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_MAX_LINE_BYTES", 1000)
    with pytest.raises(RawFormatError, match="has a line of more than"):
        list(_file(tmp_path, bytes(5 << 20)).line_batches())


def test_times_beyond_int64_are_limited() -> None:
    assert sampling.truncated_ns(np.array([1.0, 1e30])).tolist() == [1, 2**63 - 1]
