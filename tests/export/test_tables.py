from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.export.builders import Recorded, table
from tests.export.conftest import Export
from unified_prof.errors import UsageError
from unified_prof.export.mindstudio import delivery, recording
from unified_prof.export.mindstudio.core_metrics import shown, title
from unified_prof.export.mindstudio.recording import in_order_of_text, ranks_of_texts


def _column(rows: list[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in rows]


def test_waits_are_counted_from_the_row_before_in_the_file(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(10_000, 12_000, "b")
        database.op(1_000, 4_000, "a")
        database.collective(5_000, 20_000)
        database.op(30_000, 31_000, "c", device=1)
    export(database.path)
    rows = table(out, "op_summary")
    assert _column(rows, "Op Name") == ["a", "hcom_allReduce__1_1", "b", "c"]
    assert _column(rows, "Task Wait Time(us)") == ["0", "1.000000", "0.000000", "18.000000"]
    assert _column(rows, "Task Start Time(us)")[0] == "1767225600000001.000\t"
    assert rows[1]["Task Type"] == "COMMUNICATION"
    assert rows[1]["Block Num"] == "0"
    assert {rows[1][name] for name in ("Task ID", "Stream ID", "Input Shapes")} == {"N/A"}


def test_waits_have_the_precision_of_a_double(
    database: Recorded, out: Path, export: Export
) -> None:
    """At today's times a microsecond has two binary places left."""
    with database:
        database.op(893_540, 900_640)
        database.op(934_320, 940_000)
    export(database.path)
    exact, as_vendor = 33.68, 33.650000
    assert float(table(out, "op_summary")[1]["Task Wait Time(us)"]) == as_vendor != exact


def test_devices_stand_in_the_order_of_their_numbers_texts(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        for device in (2, 10, 1):
            database.op(0, 10, device=device)
    export(database.path)
    assert _column(table(out, "op_summary"), "Device_id") == ["1", "10", "2"]
    assert _column(table(out, "task_time"), "Device_id") == ["1", "2", "10"]


def test_a_collective_comes_before_a_kernel_of_the_same_moment(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(1_000, 2_000)
        database.collective(1_000, 3_000)
    export(database.path)
    assert _column(table(out, "op_summary"), "Task Type") == ["COMMUNICATION", "AI_CORE"]


def test_collectives_alone_have_one_column_more(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.collective(1_000, 3_000)
    export(database.path)
    (row,) = table(out, "op_summary")
    assert list(row)[-2:] == ["Task Wait Time(us)", "Context ID"]
    assert row["Context ID"] == "0"


def test_chips_without_contexts_have_no_columns_for_them(
    tmp_path: Path, export: Export, out: Path
) -> None:
    with Recorded(tmp_path / "d.db", chip="Ascend310P") as database:
        database.op(0, 10)
    exported = export(database.path)
    (row,) = table(out, "op_summary")
    assert "Context ID" not in row
    assert "Mix Block Num" not in row
    assert row["Block Num"] == "8"
    assert ("op_summary", "counters of AI cores") in {
        (one.deliverable, one.what) for one in exported.left_out
    }


def test_tasks_that_only_carry_a_collective_out_are_no_kernels(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(0, 10, "small", core="COMMUNICATION")
        database.op(20, 30, "hcom_allReduce_AivKernel", core="COMMUNICATION")
        database.op(40, 50, "cpu", core="HCCL_AI_CPU")
        database.op(60, 70, "kernel", "Mul")
        database.op(80, 90, "written back", "Mul", core="WRITE_BACK")
    export(database.path)
    names = _column(table(out, "op_summary"), "Op Name")
    assert names == ["hcom_allReduce_AivKernel", "kernel"]
    (row,) = table(out, "op_statistic")
    assert (row["OP Type"], row["Count"], row["Ratio(%)"]) == ("Mul", "1", "50")


def test_statistics_are_cut_where_the_vendor_cuts_and_rounded_where_it_rounds(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        for end in (5, 5, 6):
            database.op(0, end)
            database.collective(0, end)
        database.call(0, 5, "a")
        database.call(0, 6, "a")
    export(database.path)
    (op,) = table(out, "op_statistic")
    assert (op["Total Time(us)"], op["Avg Time(us)"]) == ("0.016", "0.005")
    (group,) = table(out, "communication_statistic")
    assert (group["Total Time(us)"], group["Avg Time(us)"]) == ("0.016", "0.005")
    (call,) = table(out, "api_statistic")
    assert (call["Time(us)"], call["Avg(us)"], call["Variance"]) == ("0.011", "0.006", "0")


def test_shares_are_those_of_the_device(database: Recorded, out: Path, export: Export) -> None:
    with database:
        database.op(0, 3_000, op_type="Mul")
        database.op(0, 1_000, op_type="Add")
        database.op(0, 2_000, op_type="Add", device=1)
        database.op(0, 9_000, op_type="N/A", device=1)
        for device in (0, 1):
            database.collective(0, 1_000, device=device)
        database.collective(0, 2_000, "hcom_send_")
    export(database.path)
    found = [
        (row["Device_id"], row["OP Type"], row["Ratio(%)"]) for row in table(out, "op_statistic")
    ]
    assert found == [("0", "Mul", "75"), ("1", "Add", "18.182"), ("0", "Add", "25")]
    shares = [
        (row["Device_id"], row["OP Type"], row["Ratio(%)"])
        for row in table(out, "communication_statistic")
    ]
    assert shares == [
        ("0", "hcom_send_", "66.667"),
        ("0", "hcom_allReduce_", "33.333"),
        ("1", "hcom_allReduce_", "100"),
    ]


def test_nothing_is_written_of_what_there_are_no_rows_of(
    database: Recorded, out: Path, export: Export
) -> None:
    """At the lowest level nobody knows an operator's type."""
    with database:
        database.op(0, 10, op_type="N/A")
        database.collective(0, 10, "N/A")
    exported = export(database.path)
    kinds = {file.name.rpartition("_")[0] for file in exported.files}
    assert kinds >= {"op_summary", "task_time"}
    assert not kinds & {"op_statistic", "communication_statistic", "api_statistic", "msprof_tx"}


def test_calls_are_listed_by_the_bytes_of_their_names_and_then_by_level(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        for name, level in (("b", 20000), ("é", 5000), ("B", 10000), ("b", 5000), ("b", 7)):
            database.call(0, 1_000, name, level)
    export(database.path)
    found = [(row["API Name"], row["Level"]) for row in table(out, "api_statistic")]
    assert found == [("B", "node"), ("b", ""), ("b", "runtime"), ("b", "acl"), ("é", "runtime")]


def test_of_a_kernel_on_two_kinds_of_cores_the_first_context_is_shown(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.task(0, 100, "KERNEL_MIX_AIC", number=5, connection=9)
        database.task(10, 90, "KERNEL_MIX_AIC", number=5, connection=9, context=0)
        database.task(200, 300, "FFTS_PLUS", number=6, connection=10)
        for context in (1, 2):
            database.task(210, 290, "FFTS_PLUS", number=6, connection=10, context=context)
        # The same numbers again, by another launch, and a context that no launch is known of.
        database.task(400, 500, number=5, connection=11)
        database.task(600, 700, "KERNEL_MIX_AIV", number=5, connection=12)
        database.task(610, 690, "MIX_AIV", number=5, connection=-1, context=0)
        # Another device is another matter.
        database.task(0, 100, number=5, connection=13, device=1)
    export(database.path)
    found = [
        (row["Device_id"], row["task_id"], row["task_time(us)"]) for row in table(out, "task_time")
    ]
    assert found == [
        ("1", "5", "0.100"),
        ("0", "5", "0.080"),
        ("0", "6", "0.100"),
        ("0", "6", "0.080"),
        ("0", "6", "0.080"),
        ("0", "5", "0.100"),
        ("0", "5", "0.080"),
    ]


def test_a_task_of_unknown_work_has_its_own_type_and_no_name(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.task(0, 10, "EVENT_WAIT")
        database.op(20, 30, "mul_1", core="N/A")
        database.task(40, 50, "MsTx")
    export(database.path)
    found = [(row["kernel_name"], row["kernel_type"]) for row in table(out, "task_time")]
    assert found == [("N/A", "EVENT_WAIT"), ("mul_1", "KERNEL_AICORE")]


def test_names_of_any_kind_are_cells(database: Recorded, out: Path, export: Export) -> None:
    names = ['comma, "quote"', "two\nlines", "\udcff\udce9", "步骤", " ", "tab\t"]
    with database:
        for number, name in enumerate(names):
            database.op(number * 100, number * 100 + 1, name)
    export(database.path)
    (path,) = out.glob("op_summary_*.csv")
    assert path.read_bytes().count(b'"comma, ""quote"""') == 1
    assert len(table(out, "op_summary")) == len(names)


def test_tables_of_many_rows_are_cut_into_slices(
    database: Recorded, out: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ROWS_A_FILE", 4)
    monkeypatch.setattr(recording, "BLOCK_ROWS", 3)
    with database:
        for number in range(9):
            database.op(number * 10, number * 10 + 1, f"op{number}")
    exported = export(database.path)
    slices = [file for file in exported.files if file.name.startswith("op_summary_slice_")]
    assert [file.entries for file in slices] == [4, 4, 1]
    read = [(out / file.name).read_text().splitlines() for file in slices]
    assert {lines[0] for lines in read} == {read[0][0]}
    assert [line.split(",")[4] for lines in read for line in lines[1:]] == [
        f"op{number}" for number in range(9)
    ]


def test_impossible_times_are_left_out_and_told(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(10, 5)
        database.op(10, 15)
    exported = export(database.path)
    assert len(table(out, "op_summary")) == 1
    (anomaly,) = exported.anomalies
    assert (anomaly.name, anomaly.count) == ("impossible_time", 1)


def test_a_report_without_anything_to_write_is_refused(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        pass
    with pytest.raises(UsageError, match="nothing to write"):
        export(database.path)
    assert not list(out.iterdir())


def test_metrics_have_the_vendors_columns() -> None:
    names = [
        *("aic_total_time", "aic_total_cycles", "aic_ub_read_bw", "aic_l1_read_bw"),
        *("aic_l2_read_bw", "aic_main_mem_read_bw", "aiv_total_time", "aiv_ub_read_bw"),
        *("aiv_l1_read_bw", "aiv_l2_read_bw", "aiv_main_mem_read_bw"),
    ]
    assert [title(name) for name in shown(names)] == [
        *("aicore_time(us)", "aic_total_cycles", "aic_l1_read_bw(GB/s)"),
        *("aic_main_mem_read_bw(GB/s)", "aic_l2_read_bw(GB/s)"),
        *("aiv_time(us)", "aiv_ub_read_bw(GB/s)"),
        *("aiv_main_mem_read_bw(GB/s)", "aiv_l2_read_bw(GB/s)"),
    ]
    assert shown(["aic_vec_ratio", "aic_mac_ratio", "aiv_mac_time", "aiv_r500"]) == [
        "aic_mac_ratio",
        "aiv_r500",
    ]
    assert [title(name) for name in ("total_time", "mac_exe_time", "aic_GM_to_L1_datas", "r8")] == [
        *("aicore_time(us)", "mac_exe_time(us)", "aic_GM_to_L1_datas(KB)", "r8"),
    ]


def test_counters_of_tasks_that_ran_again_and_of_tasks_without(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(0, 10, task_id=0)
        database.op(100, 110, task_id=1)
        database.task(200, 210, task_id=0)
        database.task(300, 310, task_id=0)
        for turn in (1, 2):
            database.metric(0, "aic_total_time", turn * 1_000)
            database.metric(0, "aic_total_cycles", turn)
            database.metric(0, "aic_r8", turn / 16)
    export(database.path)
    rows = table(out, "op_summary")
    assert _column(rows, "aicore_time(us)") == ["1.0", "N/A", "2.0", "N/A"]
    assert _column(rows, "aic_total_cycles") == ["1", "N/A", "2", "N/A"]
    assert _column(rows, "aic_r8") == ["0.063", "N/A", "0.125", "N/A"]


def test_cube_utilization_needs_what_a_database_does_not_have(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        identity = database.op(0, 10)
        database.metric(identity, "aic_total_cycles", 5)
        database.metric(identity, "aic_mac_ratio", 0.5)
    exported = export(database.path)
    assert table(out, "op_summary")[0]["cube_utilization(%)"] == "N/A"
    assert "cube_utilization(%)" in {one.what for one in exported.left_out}


def test_memory_bound_is_computed_on_chips_of_one_kind_of_core(
    tmp_path: Path, out: Path, export: Export
) -> None:
    with Recorded(tmp_path / "d.db", chip="Ascend310B") as database:
        for turn, ratios in enumerate([(0.2, 0.1, 0.5), (0.0, 0.1, 0.5)]):
            identity = database.op(turn * 100, turn * 100 + 10)
            for name, value in zip(("mac", "vec", "mte2"), ratios, strict=True):
                database.metric(identity, f"{name}_exe_ratio", value)
    export(database.path)
    assert _column(table(out, "op_summary"), "memory_bound") == ["2.500000", "N/A"]


def test_operators_memory(database: Recorded, out: Path, export: Export) -> None:
    with database:
        database.memory(0, "allocate", 1_000, name="a", address=1, total=1_000)
        database.memory(1_000, "allocate", 64, name="123456789", address=2, total=1_064)
        database.memory(2_000, "allocate", 2_048, name="a", address=3, total=3_112)
        database.memory(3_000, "release", 64, name="123456789", address=2, total=3_048)
        database.memory(4_000, "release", 1_000, name="a", address=1, total=2_048)
        database.memory(5_000, "release", 1_000, name="unknown", address=9, total=2_048)
        database.memory(6_000, "allocate", 4_096, name="a", address=3, total=6_144)
    exported = export(database.path)
    found = table(out, "operator_memory")
    assert _column(found, "Name") == ["", "a", "a"]
    assert _column(found, "Size(KB)") == ["0.062", "0.977", "4.0"]
    assert _column(found, "Duration(us)") == ["2.0", "4.0", "0.0"]
    assert _column(found, "Release Total Allocated(KB)") == ["2.977", "2.0", "0.0"]
    assert [one.name for one in exported.anomalies] == ["allocated_twice"]
    record = table(out, "memory_record")
    assert len(record) == 7
    assert record[0] == {
        "Device_id": "0",
        "Component": "GE",
        "Timestamp(us)": "1767225600000000.000\t",
        "Total Allocated(KB)": "0.977",
        "Total Reserved(KB)": "2.0",
        "Device": "NPU:0",
    }


def test_memory_of_components(database: Recorded, out: Path, export: Export) -> None:
    with database:
        for module, time, size in ((7, 10, 4_095), (0, 30, -1), (0, 20, 1 << 40), (999, 0, 0)):
            database.row(
                "NPU_MODULE_MEM",
                {"moduleId": module, "timestampNs": time, "totalReserved": size, "deviceId": 1},
                texts=(),
            )
    export(database.path)
    found = [(row["Component"], row["Total Reserved(KB)"]) for row in table(out, "npu_module_mem")]
    assert found[:2] == [("SLOG", str(1 << 30)), ("SLOG", "-1")]
    assert [size for _, size in found[2:]] == ["3", "0"]
    assert found[3][0] == "Unknown"


def test_marks(database: Recorded, out: Path, export: Export) -> None:
    with database:
        database.mark(100, 100, "b, c")
        database.mark(0, 50, "a", event=2, domain="mine", connection=4_000_000_002)
        database.mark(200, 200, "old", domain="", connection=4_000_000_000, category=3)
        database.mark(300, 300, "no domain", domain="", connection=4_000_000_003)
        database.task(400, 450, "MsTx", connection=4_000_000_002, device=1)
        database.task(500, 550, "MsTx", connection=4_000_000_000, device=1)
    exported = export(database.path)
    rows = table(out, "msprof_tx")
    assert _column(rows, "message") == ["a", "b, c", "old", "no domain"]
    assert _column(rows, "Device_id") == ["1", "host", "host", "host"]
    assert _column(rows, "event_type") == ["start/end", "marker", "marker", "marker"]
    assert _column(rows, "domain") == ["mine", "default", "N/A", "N/A"]
    assert _column(rows, "category") == ["N/A", "N/A", "3", "N/A"]
    assert (rows[0]["pid"], rows[0]["tid"]) == ("77", "78")
    assert rows[0]["Device Start_time(us)"] == "1767225600000000.400\t"
    assert rows[1]["Device Start_time(us)"] == "N/A"
    assert any("older interface" in one.what for one in exported.left_out)


def test_marks_of_the_host_alone_need_no_device(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.mark(0, 0, "alone")
    export(database.path)
    (row,) = table(out, "msprof_tx")
    assert (row["Device_id"], row["Device End_time(us)"]) == ("host", "N/A")


def test_an_older_database_is_read_in_its_newest_shape(
    tmp_path: Path, out: Path, export: Export
) -> None:
    with Recorded(tmp_path / "d.db", revision="documented") as database:
        database.op(0, 10)
    export(database.path)
    assert table(out, "op_summary")[0]["Block Num"] == "8"


def test_texts_of_numbers_have_an_order_of_their_own() -> None:
    values = np.array([9, 10, 100, 2])
    assert np.argsort(ranks_of_texts(values)).tolist() == [1, 2, 3, 0]
    assert np.argsort(in_order_of_text(np.array([999, 1000]))).tolist() == [1, 0]
    assert in_order_of_text(np.array([12, 11])).tolist() == [12, 11]


def test_bytes_that_are_no_text_do_not_break_a_file(
    database: Recorded, out: Path, export: Export
) -> None:
    with database:
        database.op(0, 10, "odd name")
    with closing(sqlite3.connect(database.path)) as db, db:
        db.execute("UPDATE STRING_IDS SET value = CAST(X'ff2c22fe' AS TEXT) WHERE value='odd name'")
    export(database.path)
    assert table(out, "op_summary")[0]["Op Name"] == '\\xff,"\\xfe'
    (timeline,) = out.glob("msprof_*.json")
    names = {event["name"] for event in json.loads(timeline.read_text(encoding="utf-8"))}
    assert '\\xff,"\\xfe' in names
