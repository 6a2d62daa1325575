"""Operations of hand-written recordings relative to the roofline of their device."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils.flop_counter import FlopCounterMode

from tests.analysis.builders import Device
from unified_prof import open_report
from unified_prof.cli.app import app
from unified_prof.explain.roofline import breakdown, peaks
from unified_prof.explain.roofline.breakdown import Roofline, RooflineRow
from unified_prof.recording.recording import Recording


class Shaped(Device):
    """A database whose operations and operators have shapes."""

    def set_device_name(self, name: str) -> None:
        """Set the name of device 0."""
        self.row("NPU_INFO", id=0, name=name)

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
        """Add a framework operation with its inputs."""
        self.call(start, end, name, launches=launches, inputs=(shapes, types))
        if values is not None:
            names = ("name", "inputStrides", "moduleHierarchy", "concreteInputs")
            texts = map(self.text, (name, "", "", json.dumps(values)))
            row = dict(zip(names, texts, strict=True))
            self.row("UPROF_OPERATION_INPUTS", startNs=start, globalTid=1, **row)

    def kernel(
        self,
        start: int,
        end: int,
        name: str,
        connection: int = -1,
        *,
        stream: int = 2,
        grid: str = "1,1,1",
        block: str = "1,1,1",
    ) -> None:
        """Add a GPU kernel."""
        identity = self.task(start, end, connection=connection, kernel=(name, name), stream=stream)
        text, sizes = self.text(name), (self.text(grid), self.text(block))
        columns = {"name": text, "operation": text, "gridDim": sizes[0], "blockDim": sizes[1]}
        self.row("UPROF_GPU_TASKS", globalTaskId=identity, **columns)

    def operator(
        self,
        start: int,
        end: int,
        op_type: str,
        inputs: tuple[str, str, str],
        outputs: tuple[str, str, str],
        connection: int = -1,
    ) -> None:
        """Add an Ascend operator; `inputs` and `outputs` are shapes, types and formats."""
        identity = self.task(start, end, connection=connection)
        row: dict[str, int] = {"name": self.text(op_type), "opType": self.text(op_type)}
        for direction, texts in (("input", inputs), ("output", outputs)):
            for column, text in zip(("Shapes", "DataTypes", "Formats"), texts, strict=True):
                row[f"{direction}{column}"] = self.text(text)
        self.row("COMPUTE_TASK_INFO", globalTaskId=identity, **row)


def roofline(path: Path) -> Roofline:
    """Return the roofline of a database."""
    with open_report(path) as report:
        recording = Recording(report)
        assert peaks.is_available(recording)
        return breakdown.roofline_of(recording)


def row_of(found: Roofline, name: str) -> RooflineRow:
    """Return the only row of an operation."""
    (one,) = (row for row in found.rows if row.name == name)
    return one


MM = "1024,4096;4096,2048"
BF16 = "c10::BFloat16;c10::BFloat16"


def write_gpu_step(path: Path, name: str = "NVIDIA H100 80GB HBM3", length: int = 40_000) -> Path:
    """Write a step with a matmul of two kernels in `linear`, and an operation without formula."""
    with Shaped(path) as device:
        device.set_device_name(name)
        device.call(0, 100_000, "ProfilerStep#1")
        device.operation(10, 900, "aten::linear", "1024,4096;2048,4096", BF16)
        device.operation(20, 800, "aten::mm", MM, BF16, launches=100)
        device.operation(1000, 1200, "mine::op", "3,4", "float", launches=101)
        device.kernel(2000, 2000 + length // 2, "gemm_first", 100)
        device.kernel(2000 + length // 2, 2000 + length, "gemm_second", 100)
        device.kernel(90_000, 91_000, "mine", 101)
    return path


def test_operation_is_rated_once_with_all_its_kernels(tmp_path: Path) -> None:
    found = roofline(write_gpu_step(tmp_path / "a.db"))
    product = row_of(found, "aten::mm")
    assert product.shapes == "[1024,4096] [4096,2048] bf16"
    assert (product.count, product.total_ns) == (1, 40_000)
    assert product.cost is not None
    flops = 2 * 1024 * 4096 * 2048
    assert product.cost.flops == flops
    assert product.efficiency == pytest.approx(flops / 989e12 / 40e-6)
    assert product.bound == "compute"
    assert product.above_target_ns == pytest.approx(40_000 - flops / (0.7 * 989e12) * 1e9)
    assert not [row for row in found.rows if row.name == "aten::linear"]
    unknown = row_of(found, "mine::op")
    assert (unknown.cost, unknown.doubt) == (None, "no FLOP formula")
    assert sum(row.total_ns for row in found.rows) == 41_000


def test_flops_of_the_steps_are_compared_with_the_peak(tmp_path: Path) -> None:
    (use,) = roofline(write_gpu_step(tmp_path / "a.db")).use
    flops = 2 * 1024 * 4096 * 2048
    assert (use.flops, use.steps, use.peak) == (flops, 1, "bf16 989")
    assert use.share == pytest.approx(flops / 989e12 / (use.time_ns / 1e9))
    assert use.known_share == pytest.approx(40 / 41)
    assert use.by_step == (("1", flops, use.share),)


def test_operation_faster_than_the_peak_has_only_a_doubt(tmp_path: Path) -> None:
    found = row_of(roofline(write_gpu_step(tmp_path / "a.db", length=8_000)), "aten::mm")
    assert found.efficiency is None
    assert found.doubt is not None
    assert found.doubt.startswith("faster than the peak allows")


def test_unknown_device_has_absolute_figures_only(tmp_path: Path) -> None:
    found = roofline(write_gpu_step(tmp_path / "a.db", "Somebody's Accelerator 7"))
    product = row_of(found, "aten::mm")
    assert product.cost is not None
    assert (product.efficiency, product.bound, product.above_target_ns) == (None, None, None)
    (use,) = found.use
    assert (use.share, use.peak) == (None, "")


def test_headline_of_an_unknown_device_reports_no_mfu(tmp_path: Path) -> None:
    path = write_gpu_step(tmp_path / "a.db", "Somebody's Accelerator 7")
    output = CliRunner().invoke(app, ["report", str(path)]).output
    assert "172 TFLOP/s, peak of this device unknown (see [tool.uprof" in output
    assert "MFU" not in output


def test_fp32_matmul_is_rated_by_the_precision_of_its_kernel(tmp_path: Path) -> None:
    types = "float;float"
    with Shaped(tmp_path / "a.db") as device:
        device.set_device_name("NVIDIA A100-SXM4-80GB")
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
        # At the fp32 rate it would be too slow for either: nothing is assumed.
        "fp32" if 2 * 1024 * 4096 * 4096 / 19.5e12 <= 1e-3 else "tf32",
    ]
    assumed = by_shape["[1024,4096] [4096,3072] fp32"].doubt
    assert assumed is not None
    assert "TF32 is assumed" in assumed


def test_nested_matrix_operation_counts_instead_of_the_outer_one(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.set_device_name("NVIDIA H100 80GB HBM3")
        device.operation(0, 900, "aten::matmul", MM, BF16, launches=100)
        device.operation(20, 800, "aten::mm", MM, BF16, launches=101)
        device.kernel(2000, 3000, "set_up", 100)
        device.kernel(3000, 60_000, "gemm", 101)
    found = roofline(tmp_path / "a.db")
    outer = row_of(found, "aten::matmul")
    assert (outer.cost, outer.doubt) == (
        None,
        "counted for the operations within it that launched kernels",
    )
    assert found.use[0].flops == 2 * 1024 * 4096 * 2048


@pytest.mark.parametrize("library", ["cudnn", "miopen"])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 4)])
def test_gradients_of_old_convolutions_equal_those_that_torch_counts(
    tmp_path: Path, library: str, stride: int, groups: int
) -> None:
    """Releases before 1.11 record lists of sizes without values: the operation around has all."""
    x = torch.empty(8, 16, 14, 14, device="meta", requires_grad=True)
    w = torch.empty(32, 16 // groups, 3, 3, device="meta", requires_grad=True)
    y = torch.nn.functional.conv2d(x, w, stride=stride, groups=groups)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(y, x, torch.empty_like(y), retain_graph=True)
    expected = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(y, w, torch.empty_like(y))
    # With groups, torch multiplies the FLOPs of the weight gradient by their number.
    assert counter.get_total_flops() == groups * expected > 0

    def text(*tensors: torch.Tensor | None) -> str:
        return ";".join("" if one is None else ",".join(map(str, one.shape)) for one in tensors)

    outer, sizes = f"aten::{library}_convolution_backward", "GenericList;float;float"
    with Shaped(tmp_path / "a.db") as device:
        device.set_device_name("NVIDIA H100 80GB HBM3")
        for at in (0, 1_000_000):
            if at:
                device.operation(at, at + 900, outer, text(x, y, w), "float;float;float")
            for number, (name, last) in enumerate((("input", w), ("weight", x))):
                begin, launch = at + 100 * (number + 1), at + number + 1
                device.operation(
                    begin,
                    begin + 50,
                    f"{outer}_{name}",
                    text(None, y, last),
                    sizes,
                    launches=launch,
                )
                device.kernel(
                    at + 1000 + 200_000 * number, at + 200_000 * (number + 1), name, launch
                )
    rows = roofline(tmp_path / "a.db").rows
    doubts = {row.name.rpartition("_")[2]: row.doubt for row in rows if row.shapes.count("[") == 2}
    assert doubts == {
        "input": "the size of the result was not recorded; "
        "only the bytes that it reads are counted",
        "weight": "the values of its arguments were not recorded",
    }
    known = {row.name.rpartition("_")[2]: row for row in rows if row.shapes.count("[") == 3}
    for row in known.values():
        assert row.cost is not None
        assert (row.cost.flops, row.doubt) == (expected, None)
        assert row.cost.moved_bytes == 4 * (x.numel() + y.numel() + w.numel())
    assert {*known} == {"input", "weight"}


def test_recorded_arguments_determine_the_size_of_a_convolution(tmp_path: Path) -> None:
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    shapes = "8,64,56,56;128,64,3,3;;;;;;;"
    types = ";".join([*BF16.split(";"), "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"])
    with Shaped(tmp_path / "a.db") as device:
        device.set_device_name("NVIDIA H100 80GB HBM3")
        for number, recorded in ((1, values), (2, None)):
            at = 1_000_000 * number
            device.operation(
                at, at + 9, "aten::convolution", shapes, types, launches=number, values=recorded
            )
            device.kernel(at + 10, at + 50_000, f"conv{number}", number)
    rows = [row for row in roofline(tmp_path / "a.db").rows if row.name == "aten::convolution"]
    flops = [row.cost.flops for row in rows if row.cost is not None]
    assert flops == [2 * 8 * 128 * 28 * 28 * 64 * 9]
    (doubt,) = (row.doubt for row in rows if row.cost is None)
    assert doubt == "the values of its arguments were not recorded"


def test_ascend_operators_use_their_recorded_shapes_and_formats(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.set_device_name("Ascend910B3")
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
    plain, padded = row_of(found, "MatMulV3"), row_of(found, "MatMulV2")
    assert plain.cost is not None
    assert plain.cost.flops == 2 * 1000 * 4096 * 2048
    assert plain.efficiency == pytest.approx(plain.cost.flops / (20 * 1800e6 * 8192) / 200e-6)
    assert plain.doubt is None
    # 63 blocks of 16 rows are 1,008; the framework operation has 1,000.
    assert padded.cost is not None
    assert padded.cost.flops == 2 * 1000 * 4096 * 2048
    assert padded.cost.moved_bytes == 2 * (4096 * 1008 + 4096 * 2048 + 1008 * 2048)
    add = row_of(found, "Add")
    assert add.cost is not None
    assert (add.cost.unit, add.cost.moved_bytes) == ("vector", 4 * (2 * 512 * 1024 + 1024))
    assert add.bound == "memory"
    assert add.uncertain
    odd = row_of(found, "Odd")
    assert odd.doubt == "its shapes were not known when it was launched"


def test_swapped_shape_and_type_columns_are_corrected(tmp_path: Path) -> None:
    # torch_npu wrote them this way in 2024 and 2025.
    with Shaped(tmp_path / "a.db") as device:
        device.operation(0, 90, "aten::mm", BF16, MM, launches=7)
        device.task(100, 90_000, connection=7, kernel=("gemm", "gemm"))
    found = row_of(roofline(tmp_path / "a.db"), "aten::mm")
    assert found.cost is not None
    assert found.cost.flops == 2 * 1024 * 4096 * 2048


def test_report_shows_the_roofline_breakdown_and_the_headline(tmp_path: Path) -> None:
    path = write_gpu_step(tmp_path / "a.db")
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


def test_headline_has_the_total_time_of_two_steps(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        for number, at in enumerate((0, 100_000), start=1):
            device.call(at, at + 100_000, f"ProfilerStep#{number}")
            device.operation(at + 20, at + 800, "aten::mm", MM, BF16, launches=number)
            device.kernel(at + 2000, at + 42_000, "gemm", number)
    result = CliRunner().invoke(app, ["report", str(tmp_path / "a.db")])
    assert "34.4 GFLOP in 2 steps, 200 µs in total: 172 TFLOP/s" in result.output


def test_roofline_of_a_recording_without_shapes_names_record_shapes(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        device.task(0, 100, kernel=("gemm", "gemm"))
    result = CliRunner().invoke(app, ["report", str(tmp_path / "a.db"), "--by", "roofline"])
    assert "record_shapes" in str(result.exception)


def test_long_recordings_have_a_roofline_only_if_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gpu_step(tmp_path / "a.db")
    monkeypatch.setattr(peaks, "QUICK_TASKS", 2)
    document = json.loads(CliRunner().invoke(app, ["report", str(path), "--format", "json"]).output)
    (report,) = document["reports"]
    assert "roofline" not in report["breakdowns"]
    assert report["model_use"] == []
    requested = CliRunner().invoke(app, ["report", str(path), "--by", "roofline"])
    assert "aten::mm [1024,4096]" in requested.output


def test_collectives_have_the_minimum_bytes_that_each_rank_sends(tmp_path: Path) -> None:
    with Shaped(tmp_path / "a.db") as device:
        device.operator(0, 50, "Add", ("8;8", "FLOAT;FLOAT", "ND;ND"), ("8", "FLOAT", "ND"))
        device.groups(g={"group_name": "dp", "global_ranks": [0, 1, 2, 3]})
        for number, (name, data_type) in enumerate(
            (("hcom_allReduce_", 4), ("hcom_allGather_", 11), ("hcom_odd_", 4)), start=1
        ):
            texts = {
                "opName": device.text(f"{name}_1_{number}"),
                "opType": device.text(name),
                "groupName": device.text("g"),
            }
            times = {"startNs": 1000 * number, "endNs": 1000 * number + 600}
            sizes = {"opId": number, "deviceId": 0, "dataType": data_type, "count": 1024}
            device.row("COMMUNICATION_OP", **texts, **times, **sizes)
    rows = {row.name: row for row in roofline(tmp_path / "a.db").rows}
    moved = {name: row.cost and row.cost.moved_bytes for name, row in rows.items() if name != "Add"}
    assert moved == {
        "hcom_allReduce_ (dp)": 2 * 4 * 1024 * 3 // 4,
        # HCCL records the elements of one rank.
        "hcom_allGather_ (dp)": 4 * 2 * 1024 * 3 // 4,
        "hcom_odd_ (dp)": None,
    }
    assert rows["hcom_allReduce_ (dp)"].shapes == "1,024 fp32 x 4 ranks"
    assert rows["hcom_allReduce_ (dp)"].total_ns == 600
