"""Damaged files are counted or refused, without traceback, hang or silent loss."""

import json
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.ascend_pt.builders import Framework, record, tlv
from tests.decoders.ascend_pt.rows import decode
from tests.prof_generator import Recipe, generate
from tests.sql import execute
from unified_prof.decoders.ascend_pt import folder as records
from unified_prof.errors import RawFormatError
from unified_prof.migrate.check import check
from unified_prof.pipeline.convert import convert


def all_kinds() -> Framework:
    framework = Framework()
    for number in range(6):
        start = 100 * number
        framework.operator(f"aten::op{number % 3}", start, start + 90, sequence=number,
                      fields=[(3, b"float"), (8, b"a;b")])  # fmt: skip
        framework.enqueue(start + 10, start + 20, number, 1)
        framework.dequeue(start + 30, start + 40, number, 2)
        framework.memory(start + 11, number, 64)
        framework.memory(start + 12, number, -64, 1)
        framework.call(start, 1)
        framework.call(start + 1, 1, 1)
        framework.collection(start, start + 5)
    framework.operator("ProfilerStep#1", 0, 700)
    framework.text(1, "Linear######5")
    return framework


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = all_kinds().write(tmp_path_factory.mktemp("complete") / "x_ascend_pt", rank=0)
    prof = generate(folder, Recipe(operators=4, allocations=3)).path
    prof.rename(folder / "PROF_000001_20260101000000000_ABC")
    return folder


FILES = tuple(all_kinds().files)


@pytest.mark.parametrize("missing", ["PROF_*", "FRAMEWORK"])
def test_constant_rows_equal_torch_npus(recording: Path, tmp_path: Path, missing: str) -> None:
    folder = shutil.copytree(recording, tmp_path / "x_ascend_pt")
    for part in folder.glob(missing):
        shutil.rmtree(part)
    database = convert(folder).database
    types = dict(execute(database, "SELECT id, name FROM ENUM_API_TYPE ORDER BY id"))
    names = [name for (name,) in execute(database, "SELECT name FROM META_DATA")]
    hosts = execute(database, "SELECT count(*) FROM HOST_INFO")[0][0]
    of_torch_npu = {50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"}
    versions = [name for name in names if name.startswith("SCHEMA_VERSION")]
    if missing == "FRAMEWORK":
        of_msprof = {5000: "runtime", 5500: "communication", 10000: "node"}
        assert types == of_msprof | {15000: "model", 20000: "acl"} | of_torch_npu
        assert (len(versions), hosts) == (4, 1)
    else:
        assert types == of_torch_npu
        assert (versions, hosts) == ([], 0)


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_keeps_its_complete_records(name: str, tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    path = folder / "FRAMEWORK" / name
    before = decode(folder).rows
    path.write_bytes(path.read_bytes()[:-5])
    sink = decode(folder)
    assert sink.anomalies["cut_off"].cases == 1
    assert name in sink.anomalies["cut_off"].detail
    assert sink.rows != before
    assert all(len(sink.rows.get(table, ())) <= len(rows) for table, rows in before.items())


@pytest.mark.parametrize(
    ("before", "after", "fields", "anomaly", "count"),
    [
        (tlv(1, b"short") + record(9, bytes(60)), b"", (), "damaged_record", 2),
        # The length is beyond the file: no memory is allocated.
        (b"", struct.pack("<HI", 1, 0xFFFFFFFF) + b"x", (), "cut_off", 1),
        (b"", b"", [(7, b"")] * 5_000, "damaged_record", 1),
    ],
    ids=["invalid", "too long", "too many fields"],
)
def test_other_records_are_counted(
    tmp_path: Path, before: bytes, after: bytes, fields: Any, anomaly: str, count: int
) -> None:
    framework = Framework()
    framework.put("torch.op_range", before)
    framework.operator("aten::mm", 1, 2, fields=fields)
    framework.put("torch.op_range", after)
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["aten::mm"]
    assert sink.anomalies[anomaly].cases == count


def test_hole_of_a_terabyte_is_skipped(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("aten::mm", 1, 2)
    framework.write(tmp_path)
    (path,) = tmp_path.rglob("torch.op_range")
    whole = path.read_bytes()
    os.truncate(path, 1 << 40)
    with path.open("ab") as file:
        file.write(whole)
    sink = decode(tmp_path)
    assert sink.table("PYTORCH_API", "name") == ["aten::mm", "aten::mm"]
    assert sink.anomalies["damaged_record"].cases > 1


def test_record_with_invalid_field_keeps_the_other_fields(tmp_path: Path) -> None:
    framework = Framework()
    fixed = struct.pack("<3q4QB?", 1, 2, -1, 7, 1, 1, 0, 0, False)
    broken = fixed + tlv(2, b"aten::mm") + struct.pack("<HI", 3, 99) + b"float"
    framework.put("torch.op_range", tlv(1, broken))
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name", "inputDtypes") == [("aten::mm", None)]
    assert sink.anomalies["damaged_record"].cases == 1


def test_unknown_marks_tags_and_kinds_are_counted(tmp_path: Path) -> None:
    framework = all_kinds()
    framework.mark(1, 9, 1, 1, "k")
    framework.call(1, 1, 7)
    framework.memory(1, 1, 1, 5)
    sink = decode(framework.write(tmp_path))
    assert sink.anomalies["damaged_record"].cases == 3


def test_records_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PIECE_BYTES", 64)
    monkeypatch.setattr(records, "_MAX_RECORD_BYTES", 4_000)
    framework = Framework()
    framework.operator("a" * 3_000, 1, 2)
    framework.operator("b" * 5_000, 3, 4)
    framework.operator("c", 5, 6)
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == ["a" * 3_000, "c"]
    assert sink.anomalies["oversized_record"].cases == 1


def test_deep_nesting_is_decoded(tmp_path: Path) -> None:
    framework = Framework()
    for number in range(3_000):
        framework.operator("op", number, 10_000 - number)
    framework.memory(20_000, 1, 8)
    assert decode(framework.write(tmp_path)).table("OP_MEMORY", "name") == [None]


@pytest.mark.parametrize("damaged", ["FRAMEWORK/torch.op_mark", "PROF_1_2_abc/host"])
def test_unreadable_part_loses_only_its_tables(damaged: str, tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    (folder / damaged).unlink(missing_ok=True)
    (folder / damaged).mkdir(parents=True)

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
def test_any_damage_leaves_a_valid_report(
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
        conversion = convert(folder, tmp_path / "r.db", force=True)
    assert [one for one in check(conversion.database).findings if one.is_problem] == []


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
def test_control_files_of_any_values_are_decoded(key: str, value: object, tmp_path: Path) -> None:
    folder = all_kinds().write(tmp_path)
    info = json.loads((folder / "profiler_info.json").read_text())
    (folder / "profiler_info.json").write_text(json.dumps({**info, key: value}))
    (folder / "profiler_metadata.json").write_text(json.dumps({key: value}))
    with suppress(RawFormatError):
        decode(folder)
