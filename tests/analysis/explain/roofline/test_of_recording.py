"""Operations of recordings under the limits of their devices: small ones written out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.analysis.builders import Device
from unified_prof import open_report
from unified_prof.cli.app import app
from unified_prof.explain.roofline import breakdown
from unified_prof.explain.roofline import peaks as offered
from unified_prof.explain.roofline.breakdown import Roofline, RooflineRow
from unified_prof.recording.recording import Recording


class Shaped(Device):
    """A device database whose operations and operators have shapes."""

    def __enter__(self) -> Shaped:
        super().__enter__()
        return self

    def named(self, name: str) -> None:
        """Say what device 0 is."""
        self.writer.write("NPU_INFO", {"id": [0], "name": name})

    def operation(
        self,
        start: int,
        end: int,
        name: str,
        shapes: str,
        types: str,
        *,
        launches: int | None = None,
        values: list[str] | None = None,
    ) -> None:
        """Add an operation of the framework with its inputs."""
        self._calls += 1
        at = {"globalTid": 1, "name": self.text(name)}
        self.writer.write(
            "PYTORCH_API",
            {
                "startNs": [str(self.T0 + start)],
                "endNs": [str(self.T0 + end)],
                "connectionId": self._calls,
                "inputShapes": self.text(shapes),
                "inputDtypes": self.text(types),
                "sequenceNumber": -1,
                "fwdThreadId": 0,
                "callchainId": -1,
                "type": 50001,
                **at,
            },
        )
        if values is not None:
            row: dict[str, Any] = {"startNs": [self.T0 + start], **at}
            row |= {"inputStrides": self.text(""), "moduleHierarchy": self.text("")}
            self.writer.write(
                "UPROF_OPERATION_INPUTS", {**row, "concreteInputs": self.text(json.dumps(values))}
            )
        if launches is not None:
            self.writer.write("CONNECTION_IDS", {"id": [self._calls], "connectionId": launches})

    def kernel(self, start: int, end: int, name: str, connection: int = -1) -> None:
        """Add a kernel of a GPU."""
        identity = self.task(start, end, connection=connection, kernel=(name, name))
        self.writer.write(
            "UPROF_GPU_TASKS",
            {
                "globalTaskId": [identity],
                "name": self.text(name),
                "operation": self.text(name),
                "gridDim": self.text("1,1,1"),
                "blockDim": self.text("1,1,1"),
            },
        )

    def operator(
        self,
        start: int,
        end: int,
        op_type: str,
        inputs: tuple[str, str, str],
        outputs: tuple[str, str, str],
        connection: int = -1,
    ) -> None:
        """Add an operator of an Ascend: shapes, types and formats of what it reads and writes."""
        identity = self.task(start, end, connection=connection)
        row: dict[str, Any] = {"name": [self.text(op_type)], "globalTaskId": identity}
        row["opType"] = self.text(op_type)
        for way, texts in (("input", inputs), ("output", outputs)):
            for what, text in zip(("Shapes", "DataTypes", "Formats"), texts, strict=True):
                row[f"{way}{what}"] = self.text(text)
        self.writer.write("COMPUTE_TASK_INFO", row)


def roofline(path: Path) -> Roofline:
    """Return what is found in a database."""
    with open_report(path) as report:
        recording = Recording(report)
        assert offered.offered(recording)
        return breakdown.roofline_of(recording)


def only(found: Roofline, name: str) -> RooflineRow:
    """Return the one row of an operation."""
    (one,) = (row for row in found.rows if row.name == name)
    return one


MM = "1024,4096;4096,2048"
BF16 = "c10::BFloat16;c10::BFloat16"


def gpu(path: Path, name: str = "NVIDIA H100 80GB HBM3", length: int = 40_000) -> Path:
    """Write a step in which a product of two kernels runs within `linear`, and one unknown."""
    with Shaped(path) as device:
        device.named(name)
        device.call(0, 100_000, "ProfilerStep#1")
        device.operation(10, 900, "aten::linear", "1024,4096;2048,4096", BF16)
        device.operation(20, 800, "aten::mm", MM, BF16, launches=100)
        device.operation(1000, 1200, "mine::op", "3,4", "float", launches=101)
        device.kernel(2000, 2000 + length // 2, "gemm_first", 100)
        device.kernel(2000 + length // 2, 2000 + length, "gemm_second", 100)
        device.kernel(90_000, 91_000, "mine", 101)
    return path


def test_an_operation_is_charged_once_with_all_its_kernels(tmp_path: Path) -> None:
    found = roofline(gpu(tmp_path / "a.db"))
    product = only(found, "aten::mm")
    assert product.shapes == "[1024,4096] [4096,2048] bf16"
    assert (product.count, product.total_ns) == (1, 40_000)
    assert product.cost is not None
    flops = 2 * 1024 * 4096 * 2048
    assert product.cost.flops == flops
    assert product.efficiency == pytest.approx(flops / 989e12 / 40e-6)
    assert product.bound == "compute"
    assert product.above_target_ns == pytest.approx(40_000 - flops / (0.7 * 989e12) * 1e9)
    assert not [row for row in found.rows if row.name == "aten::linear"]
    unknown = only(found, "mine::op")
    assert (unknown.cost, unknown.doubt) == (None, "no FLOP formula")
    assert sum(row.total_ns for row in found.rows) == 41_000


def test_matrix_work_of_the_steps_is_told_against_the_peak(tmp_path: Path) -> None:
    (use,) = roofline(gpu(tmp_path / "a.db")).use
    flops = 2 * 1024 * 4096 * 2048
    assert (use.flops, use.steps, use.peak) == (flops, 1, "bf16 989")
    assert use.share == pytest.approx(flops / 989e12 / (use.time_ns / 1e9))
    assert use.known_share == pytest.approx(40 / 41)
    assert use.by_step == (("1", flops, use.share),)


def test_what_is_faster_than_possible_is_doubted_not_shown(tmp_path: Path) -> None:
    found = only(roofline(gpu(tmp_path / "a.db", length=8_000)), "aten::mm")
    assert found.efficiency is None
    assert found.doubt is not None
    assert found.doubt.startswith("faster than the peak allows")


def test_an_unknown_device_has_absolute_figures_only(tmp_path: Path) -> None:
    found = roofline(gpu(tmp_path / "a.db", "Somebody's Accelerator 7"))
    product = only(found, "aten::mm")
    assert product.cost is not None
    assert (product.efficiency, product.bound, product.above_target_ns) == (None, None, None)
    (use,) = found.use
    assert (use.share, use.peak) == (None, "")


def test_the_headline_says_that_no_peak_is_known(tmp_path: Path) -> None:
    path = gpu(tmp_path / "a.db", "Somebody's Accelerator 7")
    output = CliRunner().invoke(app, ["report", str(path)]).output
    assert "172 TFLOP/s, peak of this device unknown (see [tool.uprof" in output
    assert "MFU" not in output


def test_fp32_is_held_against_what_its_kernels_ran_in(tmp_path: Path) -> None:
    types = "float;float"
    with Shaped(tmp_path / "a.db") as device:
        device.named("NVIDIA A100-SXM4-80GB")
        kernels = {
            1: "sm80_xmma_gemm_f32f32_tf32f32_f32_tn",
            2: "ampere_sgemm_128x64_nn",
            3: "cutlass_fast",
            4: "cutlass_slow",
        }
        for number, kernel in kernels.items():
            at = 10_000_000 * number
            shapes = f"1024,4096;4096,{1024 * number}"
            device.operation(at, at + 10, "aten::mm", shapes, types, launches=number)
            length = 1_000_000 if kernel != "cutlass_fast" else 400_000
            device.kernel(at + 100, at + 100 + length, kernel, number)
    by_shape = {row.shapes: row for row in roofline(tmp_path / "a.db").rows}
    peaks = [by_shape[f"[1024,4096] [4096,{1024 * number}] fp32"].peak for number in range(1, 5)]
    assert [None if one is None else one.name for one in peaks] == [
        "tf32",
        "fp32",
        "tf32",
        # Slower than fp32 would be too slow for either: nothing is assumed.
        "fp32" if 2 * 1024 * 4096 * 4096 / 19.5e12 <= 1e-3 else "tf32",
    ]
    assumed = by_shape["[1024,4096] [4096,3072] fp32"].doubt
    assert assumed is not None
    assert "TF32 is assumed" in assumed


def test_a_matrix_operation_within_another_counts_alone(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.named("NVIDIA H100 80GB HBM3")
        device.operation(0, 900, "aten::matmul", MM, BF16, launches=100)
        device.operation(20, 800, "aten::mm", MM, BF16, launches=101)
        device.kernel(2000, 3000, "set_up", 100)
        device.kernel(3000, 60_000, "gemm", 101)
    found = roofline(tmp_path / "a.db")
    outer = only(found, "aten::matmul")
    assert (outer.cost, outer.doubt) == (
        None,
        "counted for the operations within it that launched kernels",
    )
    assert found.use[0].flops == 2 * 1024 * 4096 * 2048


def test_values_of_arguments_tell_the_size_of_a_convolution(tmp_path: Path) -> None:
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    shapes = "8,64,56,56;128,64,3,3;;;;;;;"
    types = ";".join([*BF16.split(";"), "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"])
    with Shaped(tmp_path / "a.db") as device:
        device.named("NVIDIA H100 80GB HBM3")
        for number, given in ((1, values), (2, None)):
            at = 1_000_000 * number
            device.operation(
                at, at + 9, "aten::convolution", shapes, types, launches=number, values=given
            )
            device.kernel(at + 10, at + 50_000, f"conv{number}", number)
    rows = [row for row in roofline(tmp_path / "a.db").rows if row.name == "aten::convolution"]
    told = [row.cost.flops for row in rows if row.cost is not None]
    assert told == [2 * 8 * 128 * 28 * 28 * 64 * 9]
    (untold,) = (row.doubt for row in rows if row.cost is None)
    assert untold == "the values of its arguments were not recorded"


def test_operators_of_an_ascend_have_shapes_of_their_own(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.named("Ascend910B3")
        device.operation(
            0, 90, "aten::mm", "1000,4096;4096,2048", "c10::Half;c10::Half", launches=7
        )
        device.operator(
            100,
            200_100,
            "MatMulV3",
            ('"4096,1000;2048,4096"', "FLOAT16;FLOAT16", "ND;ND"),
            ('"1000,2048"', "FLOAT16", "ND"),
            7,
        )
        device.operator(
            300_000,
            400_000,
            "MatMulV2",
            ('"256,63,16,16;128,256,16,16"', "DT_BF16;DT_BF16", "FRACTAL_NZ;FRACTAL_NZ"),
            ('"128,63,16,16"', "DT_BF16", "FRACTAL_NZ"),
            7,
        )
        device.operator(
            500_000,
            510_000,
            "Add",
            ('"512,1024;1024"', "FLOAT;FLOAT", "ND;ND"),
            ('"512,1024"', "FLOAT", "ND"),
        )
        device.operator(
            600_000, 610_000, "Odd", ('"-1,4"', "FLOAT", "ND"), ('"-1,4"', "FLOAT", "ND")
        )
    found = roofline(tmp_path / "a.db")
    plain, padded = only(found, "MatMulV3"), only(found, "MatMulV2")
    assert plain.cost is not None
    assert plain.cost.flops == 2 * 1000 * 4096 * 2048
    assert plain.efficiency == pytest.approx(plain.cost.flops / (20 * 1800e6 * 8192) / 200e-6)
    assert plain.doubt is None
    # 63 blocks of 16 rows are 1,008: the framework's operation says 1,000.
    assert padded.cost is not None
    assert padded.cost.flops == 2 * 1000 * 4096 * 2048
    assert padded.cost.moved_bytes == 2 * (4096 * 1008 + 4096 * 2048 + 1008 * 2048)
    add = only(found, "Add")
    assert add.cost is not None
    assert (add.cost.unit, add.cost.moved_bytes) == ("vector", 4 * (2 * 512 * 1024 + 1024))
    assert add.bound == "memory"
    assert add.uncertain
    odd = only(found, "Odd")
    assert odd.doubt == "its shapes were not known when it was launched"


def test_sizes_and_types_in_each_others_columns_are_put_right(tmp_path: Path) -> None:
    # torch_npu of 2024 and 2025 wrote them so.
    with Shaped(tmp_path / "a.db") as device:
        device.operation(0, 90, "aten::mm", BF16, MM, launches=7)
        device.task(100, 90_000, connection=7, kernel=("gemm", "gemm"))
    found = only(roofline(tmp_path / "a.db"), "aten::mm")
    assert found.cost is not None
    assert found.cost.flops == 2 * 1024 * 4096 * 2048


def test_the_report_shows_the_breakdown_and_the_headline(tmp_path: Path) -> None:
    path = gpu(tmp_path / "a.db")
    result = CliRunner().invoke(app, ["report", str(path), "--by", "roofline"])
    assert result.exit_code == 0, result.output
    assert "aten::mm [1024,4096] [4096,2048] bf16" in result.output
    assert "17.2 GFLOP in 1 step of 100 µs: 172 TFLOP/s, MFU 17.4 % of bf16 989" in result.output
    document = json.loads(
        CliRunner().invoke(app, ["report", str(path), "--format", "json"]).output
    )["reports"][0]
    (row, *_) = document["breakdowns"]["roofline"]["rows"]
    assert row["work_flops"] == 2 * 1024 * 4096 * 2048
    assert row["of_peak_percent"] == pytest.approx(43.4, abs=0.1)
    assert row["detail"] == "bf16, 989 TFLOP/s"
    (use,) = document["model_use"]
    assert use["share"] == pytest.approx(0.174, abs=1e-3)


def test_the_headline_tells_the_length_of_several_steps_as_a_sum(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        for number, at in enumerate((0, 100_000), start=1):
            device.call(at, at + 100_000, f"ProfilerStep#{number}")
            device.operation(at + 20, at + 800, "aten::mm", MM, BF16, launches=number)
            device.kernel(at + 2000, at + 42_000, "gemm", number)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "a.db")])
    assert "34.4 GFLOP in 2 steps, 200 µs in total: 172 TFLOP/s" in result.output


def test_a_recording_without_shapes_has_no_roofline(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.task(0, 100, kernel=("gemm", "gemm"))
    result = CliRunner().invoke(app, ["report", str(tmp_path / "a.db"), "--by", "roofline"])
    assert "record_shapes" in str(result.exception)


def test_of_millions_of_tasks_a_report_has_it_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gpu(tmp_path / "a.db")
    monkeypatch.setattr(offered, "QUICK_TASKS", 2)
    document = json.loads(CliRunner().invoke(app, ["report", str(path), "--format", "json"]).output)
    (report,) = document["reports"]
    assert "roofline" not in report["breakdowns"]
    assert report["model_use"] == []
    asked = CliRunner().invoke(app, ["report", str(path), "--by", "roofline"])
    assert "aten::mm [1024,4096]" in asked.output


def test_collectives_are_told_by_what_each_rank_sends_at_least(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.operator(0, 50, "Add", ("8;8", "FLOAT;FLOAT", "ND;ND"), ("8", "FLOAT", "ND"))
        device.groups(g={"group_name": "dp", "global_ranks": [0, 1, 2, 3]})
        for number, (name, data_type) in enumerate(
            (("hcom_allReduce_", 4), ("hcom_allGather_", 11), ("hcom_odd_", 4)), start=1
        ):
            device.writer.write(
                "COMMUNICATION_OP",
                {
                    "opName": [device.text(f"{name}_1_{number}")],
                    "opType": device.text(name),
                    "startNs": device.T0 + 1000 * number,
                    "endNs": device.T0 + 1000 * number + 600,
                    "opId": number,
                    "deviceId": 0,
                    "groupName": device.text("g"),
                    "dataType": data_type,
                    "count": 1024,
                },
            )
    rows = {row.name: row for row in roofline(tmp_path / "a.db").rows}
    moved = {name: row.cost and row.cost.moved_bytes for name, row in rows.items() if name != "Add"}
    assert moved == {
        "hcom_allReduce_ (dp)": 2 * 4 * 1024 * 3 // 4,
        # HCCL counts what one rank gives.
        "hcom_allGather_ (dp)": 4 * 2 * 1024 * 3 // 4,
        "hcom_odd_ (dp)": None,
    }
    assert rows["hcom_allReduce_ (dp)"].shapes == "1,024 fp32 x 4 ranks"
    assert rows["hcom_allReduce_ (dp)"].total_ns == 600
