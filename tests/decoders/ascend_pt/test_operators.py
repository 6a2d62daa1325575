"""Operators, steps and session facts of `*_ascend_pt` directories."""

from pathlib import Path

import pytest

from tests.decoders.ascend_pt.builders import EPOCH, PID, Framework
from tests.decoders.ascend_pt.rows import decode
from tests.prof_generator import Recipe, generate
from tests.prof_generator.timing import Timing
from unified_prof.errors import RawFormatError


def test_operator_has_its_texts_stack_and_numbers(tmp_path: Path) -> None:
    framework = Framework()
    fields = [(3, b"float;int"), (4, b"2,3;4"), (8, b"f.py(1): g;m.py(2): <module>"), (9, b"Net")]
    framework.operator("aten::mm", 10, 30, 7, sequence=4, forward=9, fields=fields)
    framework.operator("aten::add", 40, 50, 7)
    sink = decode(framework.write(tmp_path / "x_ascend_pt"))
    assert sink.table("PYTORCH_API", "name", "startNs", "endNs", "globalTid", "type") == [
        ("aten::add", 40, 50, PID << 32 | 7, 50001),
        ("aten::mm", 10, 30, PID << 32 | 7, 50001),
    ]
    assert sink.table("PYTORCH_API", "inputDtypes", "inputShapes", "sequenceNumber") == [
        (None, None, -1),
        ("float;\r\nint", "2,3;\r\n4", 4),
    ]
    assert sink.table("PYTORCH_API", "callchainId", "fwdThreadId") == [(None, 0), (0, 9)]
    assert sink.table("PYTORCH_CALLCHAINS", "id", "stackDepth", "stack") == [
        (0, 0, "f.py(1): g"),
        (0, 1, "m.py(2): <module>"),
    ]
    assert sink.table("RANK_DEVICE_MAP", "rankId", "deviceId") == [(-1, -1)]
    assert not sink.anomalies


def test_unusual_names_keep_their_rows(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("", 1, 2)
    framework.operator(b"\xff", 3, 4)
    framework.operator("算子::层", 5, 6)
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "startNs", "name") == [(1, None), (3, "N/A"), (5, "算子::层")]


def test_last_of_repeated_fields_wins_and_unknown_fields_are_skipped(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("first", 1, 2, fields=[(99, b"?"), (2, b"second")])
    assert decode(framework.write(tmp_path)).table("PYTORCH_API", "name") == ["second"]


def test_records_before_september_2024_lack_the_scope(tmp_path: Path) -> None:
    old, new = Framework(), Framework()
    for framework, scope in ((old, False), (new, True)):
        framework.operator("a", 1, 9, sequence=3, fields=[(8, b"f")], scope=scope)
        framework.operator("b", 2, 3, scope=scope)
    columns = ("name", "startNs", "endNs", "sequenceNumber", "callchainId")
    rows = [decode(m.write(tmp_path / n)).table("PYTORCH_API", *columns)
            for n, m in (("old", old), ("new", new))]  # fmt: skip
    assert rows[0] == rows[1]
    assert len(rows[0]) == 2


def test_forward_and_backward_share_the_number_of_the_last_recorded(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("inner", 11, 12, 1, sequence=5)
    framework.operator("forward", 10, 20, 1, sequence=5)
    framework.operator("alone", 21, 22, 1, sequence=6)
    framework.operator("mstx_range", 23, 24, 1, sequence=7)
    framework.operator("backward", 50, 60, 2, sequence=5, forward=1)
    framework.operator("mstx_back", 61, 62, 2, sequence=7, forward=1)
    links = decode(framework.write(tmp_path)).links()
    assert sorted(links) == ["backward", "forward"]
    assert links["forward"] == links["backward"] == [5 << 28]


def test_steps_are_the_outermost_ranges_and_others_are_reported(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("aten::mm", 11, 12, 1)
    framework.operator("ProfilerStep#3", 10, 20, 1)
    framework.operator("aten::long", 25, 45, 2)
    framework.operator("ProfilerStep#4", 30, 40, 1)
    framework.operator("ProfilerStep#x", 50, 60, 1)
    sink = decode(framework.write(tmp_path))
    assert sink.table("STEP_TIME", "id", "startNs", "endNs") == [(3, 10, 20)]
    assert {name: count for name, (count, _) in sink.anomalies.items()} == {
        "step_inside_operator": 1,
        "step_without_number": 1,
    }


def test_counter_values_become_times_as_torch_npu_computes_them(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("a", 1_000 + 7, 1_000 + 10)
    start = {"syscnt_enable": True, "freq": 48.0, "start_cnt": 1_000, "start_monotonic": 500}
    sink = decode(framework.write(tmp_path, start_info=start))
    assert sink.table("PYTORCH_API", "startNs", "endNs") == [(500 + 145, 500 + 208)]


def test_clock_of_the_host_recording_is_preferred(tmp_path: Path) -> None:
    recipe = Recipe(operators=1, host_mhz=50)
    framework, timing = Framework(), Timing(recipe)
    framework.operator("a", *timing.host_ticks([10_000, 20_000]).tolist())
    start = {"syscnt_enable": True, "freq": 48.0, "start_cnt": 1_000, "start_monotonic": 500}
    folder = framework.write(tmp_path / "x_ascend_pt", start_info=start)
    generate(folder, recipe)
    begin_ns = timing.begin_ns - EPOCH
    times = decode(folder).table("PYTORCH_API", "startNs", "endNs")
    assert times == [(begin_ns + 10_000, begin_ns + 20_000)]


def test_ranks_and_metadata_come_from_the_json_files(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("a", 1, 2)
    groups = {"g": {"global_ranks": [0, 1]}}
    metadata = {"parallel_group_info": groups, "note": "é", "SCHEMA_VERSION": "9"}
    sink = decode(framework.write(tmp_path, rank="3", metadata=metadata))
    assert sink.table("RANK_DEVICE_MAP", "rankId", "deviceId") == [(3, -1)]
    assert sink.table("META_DATA", "name", "value") == [
        ("note", '"\\u00e9"'),
        ("parallel_group_info", '{"g": {"global_ranks": [0, 1]}}'),
    ]
    assert list(sink.anomalies) == ["reserved_name"]


def test_missing_clock_or_json_file_is_reported(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("a", 1, 2)
    folder = framework.write(tmp_path)
    (folder / "profiler_info.json").write_text("{")
    sink = decode(folder)
    assert set(sink.anomalies) == {"unreadable_file", "no_clock"}
    (folder / "profiler_info.json").unlink()
    assert set(decode(folder).anomalies) == {"no_profiler_info", "no_clock"}


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RawFormatError, match=r"neither FRAMEWORK/ nor PROF_\*"):
        decode(Framework().write(tmp_path))


def test_garbage_collections_use_the_process_as_thread(tmp_path: Path) -> None:
    framework = Framework()
    framework.collection(5, 9)
    sink = decode(framework.write(tmp_path))
    assert sink.table("GC_RECORD", "startNs", "endNs", "globalTid") == [(5, 9, PID << 32 | PID)]
