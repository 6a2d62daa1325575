"""Operations far from what the device can do, and matrix work in single precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.advice.plants import advice, cost_ns, found
from tests.analysis.explain.roofline.test_of_recording import Shaped

H100 = "NVIDIA H100 80GB HBM3"
BF16 = "c10::BFloat16;c10::BFloat16"
FP32 = "float;float"
FLOPS = 2 * 1024 * 4096 * 2048


def product(
    path: Path,
    *,
    length: int,
    types: str = BF16,
    name: str = H100,
    kernel: str = "gemm",
    columns: int = 2048,
) -> Path:
    """Write ten products, one after the other, that were launched long before."""
    with Shaped(path) as device:
        device.named(name)
        for at in range(10):
            shapes = f"1024,4096;4096,{columns}"
            device.operation(at * 10, at * 10 + 5, "aten::mm", shapes, types, launches=at + 1)
            begin = 1000 + at * length
            device.kernel(begin, begin + length, kernel, at + 1)
    return path


def test_an_operation_far_below_its_peak(tmp_path: Path) -> None:
    said = found(product(tmp_path / "run.db", length=100_000))["inefficient_operation"]
    target = FLOPS / (0.7 * 989e12) * 1e9
    assert cost_ns(said) == pytest.approx(10 * (100_000 - target), abs=2)
    assert said.evidence[0]["name"] == "aten::mm [1024,4096] [4096,2048] bf16"


def test_an_operation_near_its_peak_is_no_finding(tmp_path: Path) -> None:
    assert advice(product(tmp_path / "run.db", length=30_000)).findings == ()


def test_short_operations_are_not_judged_by_their_peak(tmp_path: Path) -> None:
    with Shaped(tmp_path / "run.db") as device:
        device.named(H100)
        for at in range(100):
            device.operation(at, at, "aten::mm", "16,16;16,16", BF16, launches=at + 1)
            device.kernel(1000 + at * 10_000, 11_000 + at * 10_000, "gemm", at + 1)
    assert "inefficient_operation" not in found(tmp_path / "run.db")


def test_a_size_that_tensor_cores_do_not_fit(tmp_path: Path) -> None:
    said = found(product(tmp_path / "run.db", length=100_000, columns=2047))
    assert said["inefficient_operation"].figures["misaligned"] == 1
    assert "multiple of 8" in said["inefficient_operation"].advice
    whole = found(product(tmp_path / "b.db", length=100_000))["inefficient_operation"]
    assert whole.figures["misaligned"] == 0


def test_products_in_single_precision(tmp_path: Path) -> None:
    path = product(tmp_path / "run.db", length=400_000, types=FP32, kernel="sgemm_128x64")
    said = found(path)["full_precision"]
    target = FLOPS / (0.7 * 989e12) * 1e9
    assert cost_ns(said) == pytest.approx(10 * (400_000 - target), abs=2)
    assert said.figures["type"] == "bf16"
    assert "TF32" in said.advice


def test_an_older_device_is_not_told_of_types_that_it_has_not(tmp_path: Path) -> None:
    path = product(
        tmp_path / "run.db",
        length=4_000_000,
        types=FP32,
        kernel="sgemm_128x64",
        name="Tesla V100-SXM2-32GB",
    )
    said = found(path)["full_precision"]
    assert said.figures["type"] == "fp16"
    assert "GradScaler" in said.advice
    assert "TF32" not in said.advice


def test_tf32_is_not_single_precision(tmp_path: Path) -> None:
    path = product(tmp_path / "run.db", length=60_000, types=FP32, kernel="tf32_s1688gemm")
    assert "full_precision" not in found(path)


def test_half_precision_is_not_either(tmp_path: Path) -> None:
    assert "full_precision" not in found(product(tmp_path / "run.db", length=100_000))


def test_of_an_unknown_device_neither_is_judged(tmp_path: Path) -> None:
    said = advice(product(tmp_path / "run.db", length=100_000, name="Some GPU"))
    missing = {one.kind: one.why for one in said.not_judged}
    assert "tool.uprof.devices" in missing["inefficient_operation"]
    assert "tool.uprof.devices" in missing["full_precision"]
