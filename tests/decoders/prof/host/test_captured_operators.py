"""Operators of captured graphs: records of fixed and variable length, joined with tasks."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import host_records, write_file
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.operators import find_captured, read_captured
from unified_prof.decoders.prof.tensors import TensorTexts
from unified_prof.decoders.spool import Rows


def tensor(kind: int, shape: tuple[int, ...]) -> list[int]:
    return [kind, 2, 1, *shape, *[0] * (8 - len(shape))]


def variable_record(task: int, tensors: list[list[int]], *, longer_by: int = 0) -> bytes:
    """Return one record whose length depends on its tensors."""
    length = 64 + 44 * len(tensors) + longer_by
    head = struct.pack("<HHIIIQ", 0x5A5A, 0, 0, 1, length, 1)
    body = struct.pack("<6I3Q8x2I", 1, 0, 70, task, 2, 3 << 16 | 16, 11, 12, 0, 1, len(tensors))
    words = [word for one in tensors for word in one]
    return head + body + struct.pack(f"<{len(words)}I", *words) + bytes(longer_by)


@pytest.fixture(params=(4, 5, 15))
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    recipe = Recipe(platform=request.param, operators=0, host_only=True)
    return generate(tmp_path, recipe).path / "host"


def read(host: Path, sink: MemorySink | None = None) -> tuple[Rows, TensorTexts]:
    texts = TensorTexts()
    return read_captured(HostDirectory(host), texts, sink or MemorySink()), texts


def test_variable_length_records_are_read_in_sequence(host: Path) -> None:
    tensors = [tensor(0, (4, number)) for number in range(1, 8)]
    raw = variable_record(5, tensors) + variable_record(6, []) + variable_record(7, tensors[:1])
    write_file(host / "data" / "unaging.variable.capture_op_info.slice_0", raw)
    found, texts = read(host)
    rows = find_captured(found, np.zeros(4), np.full(4, 70), np.array([5, 6, 7, 8]))
    assert rows.tolist() == [0, 1, 2, -1]
    assert [texts.texts(i)[0].shapes for i in found["tensors"].tolist()] == [
        '"4,1;4,2;4,3;4,4;4,5;4,6;4,7"',
        "N/A",
        '"4,1"',
    ]
    assert found["block_dim"].tolist() == [3 << 16 | 16] * 3
    assert found["static"].all()
    assert found["hf32"].all()


def test_oversized_and_truncated_records_are_skipped_and_counted(host: Path) -> None:
    whole = variable_record(5, [tensor(0, (4,))])
    raw = variable_record(4, [], longer_by=8) + whole + variable_record(6, [tensor(0, (4,))])[:-4]
    write_file(host / "data" / "aging.variable.capture_op_info.slice_0", raw)
    sink = MemorySink()
    found, _ = read(host, sink)
    assert (found["key"] & np.uint64(0xFFFF)).tolist() == [5]
    assert not found["static"].any()
    assert sink.anomalies["bad_record_capture_op_info"] == 2


def test_last_record_of_a_task_wins(host: Path) -> None:
    fields = {"stream_id": 70, "task_id": 65_541, "tensor_num": 0, "thread_id": 1, "timestamp": 9}
    part = host_records("capture_op_info", 2, 0, 0, op_name=[1, 2], **fields)
    write_file(host / "data" / "unaging.additional.capture_op_info.slice_0", part.tobytes())
    found, _ = read(host)
    assert found["name"].tolist() == [2]
    assert find_captured(found, np.zeros(1), np.array([70]), np.array([5])).tolist() == [0], (
        "low 16 bits"
    )


def test_captured_tensors_have_formats_unknown_to_the_exporter() -> None:
    texts = TensorTexts()
    words = np.array([[0, 0x12000003, 99, 4, *[0] * 7], [0, 999, 1, 4, *[0] * 7]], np.uint32)
    index = texts.intern(words.tobytes())
    captured, _ = texts.texts(index, captured=True)
    described, _ = texts.texts(index)
    assert (captured.formats, captured.data_types) == ("NC1HWC0;999", "UNDEFINED;FLOAT16")
    assert (described.formats, described.data_types) == ("NC1HWC0;231:3", "99;FLOAT16")


@given(st.binary(max_size=400))
def test_random_bytes_are_read_without_error(raw: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        host = generate(Path(folder), Recipe(operators=0, host_only=True)).path / "host"
        magic = struct.pack("<H", 0x5A5A)
        write_file(host / "data" / "unaging.variable.capture_op_info.slice_0", magic + raw)
        read(host)
