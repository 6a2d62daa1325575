"""The spool of a run returns what was written and refuses everything else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.records import run_with_regions, tracked_run
from unified_prof.base.run_spec import Frame, RegionRecord
from unified_prof.errors import RawFormatError
from unified_prof.sqlite import run_spool
from unified_prof.sqlite.run_spool import Spool, Spooled

CONTENT = Spooled(
    reports=("run-time", "memory"),
    rank=3,
    iterations=10,
    saved="2026-01-02T03:04:05+00:00",
    facts={"host": "node7", "exit_code": None},
    run=tracked_run(),
)
DATA = run_spool.encode(CONTENT)


def changed_run(**changes: Any) -> bytes:
    return run_spool.encode(structs.replace(CONTENT, run=replace(CONTENT.run, **changes)))


def test_written_spool_is_read_back(tmp_path: Path) -> None:
    written = Spool(tmp_path, "_rank3")
    written.write(structs.replace(CONTENT, iterations=1))
    written.write(CONTENT)
    assert run_spool.read(written.path) == CONTENT
    assert run_spool.find(tmp_path) == [written.path]
    assert run_spool.state_of(written.path) == run_spool.RUNS
    written.remove()
    assert [*tmp_path.iterdir()] == []


def test_failed_write_keeps_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Spool(tmp_path, "")
    written.write(CONTENT)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        written.write(structs.replace(CONTENT, iterations=1))
    assert [*tmp_path.iterdir()] == [written.path]
    assert run_spool.read(written.path) == CONTENT


@given(st.integers(0, len(DATA) - 1))
def test_truncated_spool_is_refused(size: int) -> None:
    with pytest.raises(RawFormatError, match="somewhere"):
        run_spool.decode(DATA[:size], where="somewhere")


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_changed_byte_is_refused(at: int, change: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= change
    with pytest.raises(RawFormatError, match="somewhere"):
        run_spool.decode(bytes(damaged), where="somewhere")


@given(st.binary(max_size=200))
def test_other_records_with_a_valid_checksum_are_refused(payload: bytes) -> None:
    with pytest.raises(RawFormatError, match="somewhere"):
        run_spool.decode(_framed(payload), where="somewhere")


def _framed(payload: bytes, version: int = 1) -> bytes:
    import zlib

    return (
        run_spool._HEADER.pack(run_spool._MAGIC, version, len(payload), zlib.crc32(payload))
        + payload
    )


@pytest.mark.parametrize(
    ("payload", "version", "message"),
    [
        pytest.param(b"\x91" * 200_000, 1, "somewhere", id="deep nesting"),
        pytest.param(b"", 2, "spool version 2 is not supported, expected 1", id="later version"),
    ],
)
def test_deep_or_later_documents_are_refused(payload: bytes, version: int, message: str) -> None:
    with pytest.raises(RawFormatError, match=message):
        run_spool.decode(_framed(payload, version), where="somewhere")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"forward_ms": (1.0,)}, "more or fewer times"),
        ({"forward_ms": (), "iterations": ()}, "unknown iterations"),
        ({"iterations": (0, 7)}, "unknown iterations"),
        ({"iterations": (1, 1)}, "two samples of one iteration"),
        ({"backward_ms": (1.0,)}, "more or fewer times"),
        ({"forward_ms": (1.0, float("nan"))}, "a time of nan"),
        ({"frames": (Frame("a.py", 1 << 63),)}, "the number 9223372036854775808"),
    ],
)
def test_contradictory_records_are_refused(change: dict[str, Any], complaint: str) -> None:
    first, *others = CONTENT.run.operations
    with pytest.raises(RawFormatError, match=complaint):
        run_spool.decode(
            changed_run(operations=(replace(first, **change), *others)), where="somewhere"
        )


@pytest.mark.parametrize("change", [{"reports": ("../x",)}, {"reports": ()}, {"rank": -1}])
def test_spool_cannot_name_a_file_elsewhere(change: dict[str, Any]) -> None:
    with pytest.raises(RawFormatError):
        run_spool.decode(run_spool.encode(structs.replace(CONTENT, **change)), where="somewhere")


def test_invalid_unicode_names_are_escaped() -> None:
    first, *others = CONTENT.run.operations
    odd = replace(first, frames=(Frame("caf\udce9.py", 1),))
    read = run_spool.decode(changed_run(operations=(odd, *others)), where="somewhere")
    assert read.run.operations[0].frames[0].file_path == "caf\\xe9.py"
    assert msgspec.to_builtins(read.run.iterations) == msgspec.to_builtins(CONTENT.run.iterations)


def test_regions_are_kept_and_contradictory_ones_are_refused() -> None:
    content = structs.replace(CONTENT, run=run_with_regions())
    assert run_spool.decode(run_spool.encode(content), where="somewhere") == content
    (linear, *_) = CONTENT.run.operations
    for changes in (
        {"operations": (replace(linear, region=0),)},
        {"regions": (RegionRecord("step", 0, (1, 1, 1)),)},
        {"regions": (RegionRecord("step", None, (1,)),)},
    ):
        with pytest.raises(RawFormatError, match="region"):
            run_spool.decode(changed_run(**changes), where="somewhere")
