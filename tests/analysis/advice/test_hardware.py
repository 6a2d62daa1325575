"""Operations far below the roofline, and matmuls in full precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.faulty_runs import US, FaultyRun, advice, findings_by_kind, saving_ns
from tests.analysis.explain.roofline.test_of_recording import Shaped

H100 = "NVIDIA H100 80GB HBM3"
BF16 = "c10::BFloat16;c10::BFloat16"
FP32 = "float;float"
FLOPS = 2 * 1024 * 4096 * 2048


def write_matmuls(
    path: Path,
    *,
    length: int,
    types: str = BF16,
    name: str = H100,
    kernel: str = "gemm",
    columns: int = 2048,
) -> Path:
    """Write ten consecutive matmuls that were launched long before they run."""
    with Shaped(path) as device:
        device.set_device_name(name)
        for at in range(10):
            shapes = f"1024,4096;4096,{columns}"
            device.operation(at * 10, at * 10 + 5, "aten::mm", shapes, types, launches=at + 1)
            begin = 1000 + at * length
            device.kernel(begin, begin + length, kernel, at + 1)
    return path


def test_operation_far_below_its_peak_costs_the_time_above_the_target(tmp_path: Path) -> None:
    finding = findings_by_kind(write_matmuls(tmp_path / "run.db", length=100_000))[
        "inefficient_operation"
    ]
    target = FLOPS / (0.7 * 989e12) * 1e9
    assert saving_ns(finding) == pytest.approx(10 * (100_000 - target), rel=1e-4)
    assert finding.evidence[0]["name"] == "aten::mm [1024,4096] [4096,2048] bf16"


def test_operation_near_its_peak_is_no_finding(tmp_path: Path) -> None:
    assert advice(write_matmuls(tmp_path / "run.db", length=30_000)).findings == ()


def test_short_operations_are_not_rated(tmp_path: Path) -> None:
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        for at in range(100):
            device.operation(at, at, "aten::mm", "16,16;16,16", BF16, launches=at + 1)
            device.kernel(1000 + at * 10_000, 11_000 + at * 10_000, "gemm", at + 1)
    assert "inefficient_operation" not in findings_by_kind(tmp_path / "run.db")


def test_size_that_does_not_fit_tensor_cores_is_reported(tmp_path: Path) -> None:
    findings = findings_by_kind(write_matmuls(tmp_path / "run.db", length=100_000, columns=2047))
    assert findings["inefficient_operation"].figures["misaligned"] == 1
    assert "multiple of 8" in findings["inefficient_operation"].advice
    whole = findings_by_kind(write_matmuls(tmp_path / "b.db", length=100_000))[
        "inefficient_operation"
    ]
    assert whole.figures["misaligned"] == 0
    assert whole.advice == "use a larger batch, fusion or another kernel (max-autotune)"


def test_fp32_matmul_costs_the_time_above_bf16(tmp_path: Path) -> None:
    path = write_matmuls(tmp_path / "run.db", length=400_000, types=FP32, kernel="sgemm_128x64")
    finding = findings_by_kind(path)["full_precision"]
    target = FLOPS / (0.7 * 989e12) * 1e9
    assert saving_ns(finding) == pytest.approx(10 * (400_000 - target), rel=1e-4)
    assert finding.figures["type"] == "bf16"
    assert "TF32" in finding.advice


@pytest.mark.parametrize(
    ("kind", "types", "kernel"),
    [("inefficient_operation", BF16, "gemm"), ("full_precision", FP32, "sgemm_128x64")],
)
@pytest.mark.parametrize("critical", [0, 4])
def test_only_matmuls_on_the_critical_path_cost_time(
    tmp_path: Path, kind: str, types: str, kernel: str, critical: int
) -> None:
    """Some of six products of 100 us run after each other; the others next to long kernels."""
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        begin = 1000
        for at in range(6):
            shapes = "1024,4096;4096,2048"
            device.operation(at * 10, at * 10 + 5, "aten::mm", shapes, types, launches=at + 1)
            hidden = at >= critical
            device.kernel(begin, begin + 100_000, kernel, at + 1, stream=9 if hidden else 7)
            begin += 0 if hidden else 100_000
            device.kernel(begin, begin + 150_000, "fft", stream=7)
            begin += 150_000
    findings = findings_by_kind(tmp_path / "run.db")
    target = FLOPS / (0.7 * 989e12) * 1e9
    if critical:
        saving = critical * (100_000 - target)
        assert saving_ns(findings[kind]) == pytest.approx(saving, rel=1e-4)
    else:
        assert kind not in findings


def test_full_precision_advice_names_only_types_that_the_device_has(tmp_path: Path) -> None:
    v100: dict[str, Any] = {"name": "Tesla V100-SXM2-32GB", "kernel": "sgemm_128x64"}
    path = write_matmuls(tmp_path / "run.db", length=4_000_000, types=FP32, **v100)
    finding = findings_by_kind(path)["full_precision"]
    assert finding.figures["type"] == "fp16"
    assert "GradScaler" in finding.advice
    assert "TF32" not in finding.advice


def test_tf32_matmul_is_not_full_precision(tmp_path: Path) -> None:
    path = write_matmuls(tmp_path / "run.db", length=60_000, types=FP32, kernel="tf32_s1688gemm")
    assert "full_precision" not in findings_by_kind(path)


def test_bf16_matmul_is_not_full_precision(tmp_path: Path) -> None:
    assert "full_precision" not in findings_by_kind(
        write_matmuls(tmp_path / "run.db", length=100_000)
    )


@pytest.mark.parametrize(("groups", "found"), [(1024, False), (1, True)])
def test_depthwise_convolutions_are_not_computed_by_matrix_units(
    tmp_path: Path, groups: int, found: bool
) -> None:
    shapes = f"8,1024,32,32;1024,{1024 // groups},3,3;;;;;;;"
    types = f"float;float;{';ScalarList' * 3};Scalar;ScalarList;Scalar"
    values = ["", "", "", *["[1, 1]"] * 3, "False", "[0, 0]", str(groups)]
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        for at in range(10):
            begin = 1000 + at * 4_000_000
            arguments = ("aten::convolution", shapes, types)
            device.operation(at * 10, at * 10 + 5, *arguments, launches=at + 1, values=values)
            device.kernel(begin, begin + 4_000_000, "conv2d_fwd", at + 1)
    findings = findings_by_kind(tmp_path / "run.db")
    assert ("full_precision" in findings) == found
    assert ("inefficient_operation" in findings) != found


@pytest.mark.parametrize(("size", "padded"), [(192, "a head size of 192 to 256"), (128, None)])
def test_advice_for_attention_names_its_kernels(
    tmp_path: Path, size: int, padded: str | None
) -> None:
    heads = ";".join([f"1,8,4096,{size}"] * 3)
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        name = "aten::_scaled_dot_product_flash_attention"
        types = "c10::BFloat16;" * 3 + "Scalar;Scalar;Scalar;"
        values = ["", "", "", "0.", "False", "False", ""]
        device.operation(0, 5, name, f"{heads};;;;", types, launches=1, values=values)
        device.kernel(1000, 5_001_000, "attn_fwd", 1)
    found = findings_by_kind(tmp_path / "run.db")["inefficient_operation"].advice
    assert "sdpa_kernel" in found
    assert "pad" not in found if padded is None else padded in found


@pytest.mark.parametrize(
    ("call", "grid", "clause"),
    [
        ("hipLaunchKernel", "4,2,1", "its kernels have 8 blocks for 304 compute units"),
        ("hipExtModuleLaunchKernel", "512,4,1", "its kernels have 8 blocks for 304 compute units"),
        ("hipLaunchKernel", "512,4,1", None),  # 2,048 blocks
        ("hipExtModuleLaunchKernel", "65536,1,1", None),  # 256 blocks
    ],
)
def test_few_blocks_of_a_slow_operation_are_named(
    tmp_path: Path, call: str, grid: str, clause: str | None
) -> None:
    """Tiles of 256 x 128 cover a result of 256 x 512 four times, twice if the sum is split."""
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name("AMD Instinct MI300X")
        for name, value in (("numSms", "304"), ("warpSize", "64")):
            device.row("UPROF_GPU_DEVICES", deviceId=0, name=name, value=value)
        for at in range(10):
            begin, start = at * 10, 1000 + at * 1_000_000
            shapes = "256,131072;131072,512"
            device.operation(begin, begin + 5, "aten::mm", shapes, BF16, launches=at + 1)
            device.runtime(begin + 1, begin + 3, call, at + 1)
            end, name = start + 1_000_000, "Cijk_Ailk_Bljk"
            device.kernel(start, end, name, at + 1, grid=grid, block="256,1,1")
    text = findings_by_kind(tmp_path / "run.db")["inefficient_operation"].text
    assert "blocks for" not in text if clause is None else clause in text


def test_hardware_rules_are_skipped_for_an_unknown_device(tmp_path: Path) -> None:
    result = advice(write_matmuls(tmp_path / "run.db", length=100_000, name="Some GPU"))
    missing = {one.kind: one.why for one in result.not_judged}
    assert "tool.uprof.devices" in missing["inefficient_operation"]
    assert "tool.uprof.devices" in missing["full_precision"]


def test_full_precision_of_an_unknown_device_has_an_upper_bound(tmp_path: Path) -> None:
    """One product of 100 us, of which all kernels have 20 %, because copies take the rest."""
    with FaultyRun(tmp_path / "run.db") as run:
        run.kernel(10 * US, 110 * US, launched=0, name="sgemm_128x64", op_type="aten::mm")
        run.task(110 * US, 510 * US, connection=-1, copy=1 << 20)
    text = findings_by_kind(tmp_path / "run.db")["full_precision"].text
    assert "take 100 % of kernel time and 20 % of the time" in text
    assert "only this upper bound of the saving is known" in text


def test_advice_to_pad_names_the_operations_that_it_is_for(tmp_path: Path) -> None:
    """Rows and a transposed factor need no padding: the elements between rows are what counts."""
    found = {}
    for columns in (2047, 2048):
        with Shaped(tmp_path / f"{columns}.db") as device:
            device.set_device_name(H100)
            for at in range(20):
                shapes = "1001,4096;4096,2048" if at % 2 else f"1024,4096;4096,{columns}"
                device.operation(at * 10, at * 10 + 5, "aten::mm", shapes, BF16, launches=at + 1)
                device.kernel(1000 + at * 100_000, 101_000 + at * 100_000, "gemm", at + 1)
        found[columns] = findings_by_kind(tmp_path / f"{columns}.db")["inefficient_operation"]
    other, pad = sorted(found[2047].advice.split("; "))
    assert pad.startswith("aten::mm [1024,4096] [4096,2047] bf16: pad inner")
    assert other.startswith("aten::mm [1001,4096] [4096,2048] bf16: use")
    assert "pad" not in found[2048].advice


@pytest.mark.parametrize(("length", "advised"), [(1009, "(1,009 to 1,024)"), (1024, None)])
def test_transforms_of_bad_length_are_named(
    tmp_path: Path, length: int, advised: str | None
) -> None:
    """Lengths without large prime factors take the time that memory needs."""
    moved = 16384 * (length * 4 + (length // 2 + 1) * 8)
    time_ns = int(moved / (0.7 * 3350e9) * 1e9) * (4 if advised else 1)
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        values = ["", "[1]", "0", "True"]
        for at in range(10):
            inputs = f"16384,{length};;;", "float;;;"
            device.operation(
                at * 10, at * 10 + 5, "aten::_fft_r2c", *inputs, launches=at + 1, values=values
            )
            begin = 1000 + at * time_ns
            device.kernel(begin, begin + time_ns, "vector_fft", at + 1)
    finding = findings_by_kind(tmp_path / "run.db").get("inefficient_operation")
    assert (finding is not None) == (advised is not None)
    if finding is not None:
        assert finding.advice.endswith(str(advised))
        assert saving_ns(finding) == pytest.approx(10 * time_ns * (1 - 0.7 / 0.8 / 4), rel=0.01)


@pytest.mark.parametrize("doubles", [0, 4, 10])
def test_fp64_and_fp32_are_priced_separately(tmp_path: Path, doubles: int) -> None:
    """Ten products, some in fp64 at half of its peak: in TF32 they reach half of that peak."""
    fp64_ns, fp32_ns = (round(FLOPS / rate * 2e9) for rate in (67e12, 60e12))
    begin = 1000
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        for at in range(10):
            types = "double;double" if at < doubles else FP32
            kernel, time_ns = ("d884gemm", fp64_ns) if at < doubles else ("sgemm_128x64", fp32_ns)
            shapes = "1024,4096;4096,2048"
            device.operation(at * 10, at * 10 + 5, "aten::mm", shapes, types, launches=at + 1)
            device.kernel(begin, begin + time_ns, kernel, at + 1)
            begin += time_ns
    findings = findings_by_kind(tmp_path / "run.db")
    expected = {"double_precision": doubles * fp64_ns * (1 - 67 / 495)}
    expected["full_precision"] = (10 - doubles) * (fp32_ns - FLOPS / (0.7 * 989e12) * 1e9)
    for kind, saved_ns in expected.items():
        assert (kind in findings) == (saved_ns > 0)
        if saved_ns:
            assert saving_ns(findings[kind]) == pytest.approx(saved_ns, rel=1e-3)
            dtype = "fp64" if kind == "double_precision" else "fp32"
            assert [row["name"] for row in findings[kind].evidence] == [
                f"aten::mm [1024,4096] [4096,2048] {dtype}"
            ]


@pytest.mark.parametrize(("share", "found"), [(0.6, False), (0.3, True)])
def test_gradients_of_batch_norm_read_their_tensors_twice(
    tmp_path: Path, share: float, found: bool
) -> None:
    """At 60 % of the bandwidth with five passes over a tensor, three would reach 36 %."""
    moved = 5 * 4 * 64 * 256 * 56 * 56
    time_ns = round(moved / share / 3350e9 * 1e9)
    with Shaped(tmp_path / "run.db") as device:
        device.set_device_name(H100)
        for at in range(10):
            shapes = "64,256,56,56;64,256,56,56;256"
            name, types = "aten::cudnn_batch_norm_backward", "float;float;float"
            device.operation(at * 10, at * 10 + 5, name, shapes, types, launches=at + 1)
            begin = 1000 + 2 * at * time_ns
            device.kernel(begin, begin + time_ns, "bn_bw", at + 1)
            device.kernel(begin + time_ns, begin + 2 * time_ns, "gemm")
    finding = findings_by_kind(tmp_path / "run.db").get("inefficient_operation")
    assert (finding is not None) == found
    if finding is not None:
        assert saving_ns(finding) == pytest.approx(10 * time_ns * (1 - share / 0.8), rel=0.001)
        assert "torch.compile" in finding.advice
