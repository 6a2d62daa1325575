"""Damaged files: something is counted or said, never a traceback, a hang or a silent loss."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.ascend_pt.made import Framework, record, tlv
from tests.decoders.ascend_pt.rows import decode
from tests.prof_generator import Recipe, generate
from unified_prof.decoders.ascend_pt import folder as records
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.convert import convert


def all_kinds() -> Framework:
    made = Framework()
    for number in range(6):
        start = 100 * number
        made.operator(f"aten::op{number % 3}", start, start + 90, sequence=number,
                      fields=[(3, b"float"), (8, b"a;b")])  # fmt: skip
        made.enqueue(start + 10, start + 20, number, 1)
        made.dequeue(start + 30, start + 40, number, 2)
        made.memory(start + 11, number, 64)
        made.memory(start + 12, number, -64, 1)
        made.call(start, 1)
        made.call(start + 1, 1, 1)
        made.collection(start, start + 5)
    made.operator("ProfilerStep#1", 0, 700)
    made.text(1, "Linear######5")
    return made


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = all_kinds().write(tmp_path_factory.mktemp("complete") / "x_ascend_pt", rank=0)
    prof = generate(folder, Recipe(operators=4, allocations=3)).path
    prof.rename(folder / "PROF_000001_20260101000000000_ABC")
    return folder


FILES = tuple(all_kinds().files)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_keeps_its_complete_records(name: str, tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    path = folder / "FRAMEWORK" / name
    before = decode(folder).rows
    path.write_bytes(path.read_bytes()[:-5])
    sink = decode(folder)
    assert sink.anomalies["cut_off"].cases == 1
    assert name in sink.anomalies["cut_off"].detail
    assert sink.rows != before
    assert all(len(sink.rows.get(table, ())) <= len(rows) for table, rows in before.items())


def test_records_that_are_too_short_or_of_another_type_are_counted(tmp_path: Path) -> None:
    made = Framework()
    made.put("torch.op_range", tlv(1, b"short"))
    made.put("torch.op_range", record(9, bytes(60)))
    made.operator("aten::mm", 1, 2)
    sink = decode(made.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["aten::mm"]
    assert sink.anomalies["damaged_record"].cases == 2


def test_a_record_whose_fields_do_not_end_with_it_keeps_what_fits(tmp_path: Path) -> None:
    made = Framework()
    fixed = struct.pack("<3q4QB?", 1, 2, -1, 7, 1, 1, 0, 0, False)
    broken = fixed + tlv(2, b"aten::mm") + struct.pack("<HI", 3, 99) + b"float"
    made.put("torch.op_range", tlv(1, broken))
    sink = decode(made.write(tmp_path))
    assert sink.table("PYTORCH_API", "name", "inputDtypes") == [("aten::mm", None)]
    assert sink.anomalies["damaged_record"].cases == 1


def test_unknown_marks_tags_and_kinds_are_counted(tmp_path: Path) -> None:
    made = all_kinds()
    made.mark(1, 9, 1, 1, "k")
    made.call(1, 1, 7)
    made.memory(1, 1, 1, 5)
    sink = decode(made.write(tmp_path))
    assert sink.anomalies["damaged_record"].cases == 3


def test_a_stated_length_beyond_the_file_allocates_no_memory(tmp_path: Path) -> None:
    made = Framework()
    made.operator("aten::mm", 1, 2)
    made.put("torch.op_range", struct.pack("<HI", 1, 0xFFFFFFFF) + b"x")
    sink = decode(made.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["aten::mm"]
    assert sink.anomalies["cut_off"].cases == 1


def test_records_longer_than_a_block_are_read_or_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_PIECE_BYTES", 64)
    monkeypatch.setattr(records, "_MAX_RECORD_BYTES", 4_000)
    made = Framework()
    made.operator("a" * 3_000, 1, 2)
    made.operator("b" * 5_000, 3, 4)
    made.operator("c", 5, 6)
    sink = decode(made.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["a" * 3_000, "c"]
    assert sink.anomalies["oversized_record"].cases == 1


def test_endless_fields_end(tmp_path: Path) -> None:
    made = Framework()
    made.operator("aten::mm", 1, 2, fields=[(7, b"")] * 5_000)
    sink = decode(made.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["aten::mm"]
    assert sink.anomalies["damaged_record"].cases == 1


def test_very_deep_nesting_ends(tmp_path: Path) -> None:
    made = Framework()
    for number in range(3_000):
        made.operator("op", number, 10_000 - number)
    made.memory(20_000, 1, 8)
    assert decode(made.write(tmp_path)).table("OP_MEMORY", "name") == [None]


def test_a_directory_in_place_of_a_file_loses_only_its_tables(tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    (folder / "FRAMEWORK" / "torch.op_mark").unlink()
    (folder / "FRAMEWORK" / "torch.op_mark").mkdir()
    sink = decode(folder)
    assert "undecoded_part" in sink.anomalies
    assert len(sink.table("STEP_TIME", "id")) == 1


def test_a_prof_directory_that_cannot_be_read_leaves_what_pytorch_recorded(tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    (folder / "PROF_1_2_abc" / "host").mkdir(parents=True)
    sink = decode(folder)
    assert "undecoded_part" in sink.anomalies
    assert len(sink.table("STEP_TIME", "id")) == 1


DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(FILES), st.integers(0, 3), st.integers(0, 2**16), st.integers(0, 255)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE)
def test_any_damage_leaves_a_valid_report_or_one_error(
    damage: list[tuple[str, int, int, int]], recording: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "x_ascend_pt"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(recording, folder)
    for name, kind, place, value in damage:
        path = folder / "FRAMEWORK" / name
        data = bytearray(path.read_bytes())
        at = place % max(len(data), 1)
        if kind == 0:
            data = data[:at]
        elif kind == 1 and data:
            data[at] = value
        elif kind == 2:
            data[at:at] = bytes([value]) * (place % 40)
        else:
            data[at : at + 8] = struct.pack("<Q", 2**64 - 1 - value)
        path.write_bytes(data)
    with np.errstate(all="raise"):
        made = convert(folder, tmp_path / "r.db", force=True)
    assert made.database.stat().st_size


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(["rank_id", "start_info", "end_info", "config"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["freq", "start_cnt", "collectionTimeEnd", "syscnt_enable"]), inner
            )
        ),
        max_leaves=4,
    ),
)
def test_control_files_may_hold_anything(key: str, value: object, tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    info = json.loads((folder / "profiler_info.json").read_text())
    (folder / "profiler_info.json").write_text(json.dumps({**info, key: value}))
    (folder / "profiler_metadata.json").write_text(json.dumps({key: value}))
    with suppress(RawFormatError):
        decode(folder)
