"""Kernels that compute nothing, attention in pieces, optimizers in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice, cost_ns, found


def mixed(path: Path, *, name: str, op_type: str, copies: int = 50, hidden: bool = False) -> Path:
    """Write 100 products of 10 µs and `copies` of 2 µs among them, without a gap."""
    with Plant(path) as plant:
        at = 0
        for number in range(100):
            plant.kernel(at, at + 10 * US, name="gemm", op_type="aten::mm")
            if hidden:
                plant.kernel(at + US, at + 3 * US, name=name, op_type=op_type, stream=9)
            elif number < copies:
                plant.kernel(at + 10 * US, at + 12 * US, name=name, op_type=op_type)
                at += 2 * US
            at += 10 * US
    return path


DIRECT_COPY = "elementwise_kernel<direct_copy_kernel_cuda>"


def test_copies_by_kernels_are_what_could_go(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_")
    said = found(path)["casts_and_copies"]
    assert cost_ns(said) == 50 * 2 * US
    assert said.evidence[0]["count"] == 50


@pytest.mark.parametrize(
    ("name", "only_moves_data"),
    [
        ("triton_poi_fused__to_copy_7", True),
        ("triton_poi_fused_clone_transpose_view_3", True),
        ("triton_poi_fused_transpose", True),
        ("triton_red_fused_add_mean_mul_native_layer_norm_transpose_view_7", False),
        ("triton_poi_fused__unsafe_view_addmm_cat_clone_gelu_transpose_view_34", False),
        ("triton_red_fused_abs_amax_transpose_view_32", False),
    ],
)
def test_a_generated_kernel_is_a_copy_if_all_its_operations_are(
    name: str, only_moves_data: bool, tmp_path: Path
) -> None:
    path = mixed(tmp_path / "run.db", name=name, op_type="")
    assert ("casts_and_copies" in found(path)) is only_moves_data


def test_few_copies_are_no_finding(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_", copies=10)
    assert advice(path).findings == ()


def test_copies_beside_other_kernels_cost_nothing(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_", hidden=True)
    assert advice(path).findings == ()


def test_an_optimizers_own_copies_are_not_meant(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        plant.call(0, 5 * US, "Optimizer.step#SGD.step")
        plant.call(US, 4 * US, "aten::copy_", launches=77)
        plant.task(10 * US, 40 * US, connection=77, kernel=(DIRECT_COPY, "aten::copy_"))
        plant.task(40 * US, 100 * US, kernel=("gemm", "aten::mm"))
    assert "casts_and_copies" not in found(tmp_path / "run.db")


def test_conversions_of_format_are_told_apart(tmp_path: Path) -> None:
    said = found(mixed(tmp_path / "run.db", name="trans_data_1", op_type="TransData"))
    assert cost_ns(said["format_conversions"]) == 50 * 2 * US
    assert "casts_and_copies" not in said


def attention(path: Path, *kernels: tuple[str, int], layers: int = 12) -> Path:
    """Write layers of kernels (operation, length in µs) and a product of 100 µs behind each."""
    with Plant(path) as plant:
        at = 0
        for _ in range(layers):
            for operation, length in (*kernels, ("aten::mm", 100)):
                end = at + length * US
                plant.kernel(at, end, name=f"{operation[6:]}_kernel", op_type=operation)
                at = end
    return path


PIECES = (
    ("aten::bmm", 20),
    ("aten::mul", 5),
    ("aten::add", 5),
    ("aten::_softmax", 10),
    ("aten::bmm", 20),
)


def test_what_stands_between_the_products_of_attention_could_go(tmp_path: Path) -> None:
    said = found(attention(tmp_path / "run.db", *PIECES))["unfused_attention"]
    assert cost_ns(said) == 12 * 20 * US
    assert said.figures["patterns"] == 12


def test_fused_attention_is_fused(tmp_path: Path) -> None:
    path = attention(tmp_path / "run.db", ("aten::_flash_attention_forward", 60))
    assert advice(path).findings == ()


@pytest.mark.parametrize(
    "loss",
    [
        "aten::_log_softmax",
        "triton_red_fused__log_softmax__to_copy_prepare_softmax_online_17",
        "cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>",
        "triton_red_fused_nll_loss_forward_softmax_0",
        "softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int)",
    ],
)
def test_the_softmax_of_a_loss_is_no_attention(tmp_path: Path, loss: str) -> None:
    """Between the product of the logits and the first of the backward pass: seen on an H100."""
    path = attention(tmp_path / "run.db", ("aten::matmul", 20), (loss, 10), ("aten::matmul", 20))
    assert advice(path).findings == ()


SHORT_ROWS = "void softmax_warp_{}<c10::BFloat16, c10::BFloat16, float, 9, {}, false>(int)"


@pytest.mark.parametrize(("logarithm", "told"), [("true", False), ("false", True)])
def test_a_kernel_for_short_rows_says_whether_it_is_of_a_loss(
    tmp_path: Path, logarithm: str, told: bool
) -> None:
    """A classifier of a thousand classes: logits, loss, and the first product of backward."""
    with Plant(tmp_path / "run.db") as plant:
        at = 0
        for _ in range(12):
            for name, length in (
                ("gemm", 40),
                (SHORT_ROWS.format("forward", logarithm), 10),
                (SHORT_ROWS.format("backward", logarithm), 10),
                ("gemm", 40),
            ):
                plant.kernel(at, at + length * US, name=name, op_type=name)
                at += length * US
    assert ("unfused_attention" in found(tmp_path / "run.db")) == told


@pytest.mark.parametrize(
    "between", [("aten::nll_loss_forward",), ("aten::topk", "aten::div"), ("aten::multinomial",)]
)
def test_probabilities_of_classes_experts_and_words_are_no_attention(
    tmp_path: Path, between: tuple[str, ...]
) -> None:
    after = tuple((name, 2) for name in between)
    pieces = (("aten::mm", 20), ("aten::_softmax", 10), *after, ("aten::bmm", 20))
    assert advice(attention(tmp_path / "run.db", *pieces)).findings == ()


def optimizer(path: Path, *, name: str, kernels: int = 120) -> Path:
    """Write five steps of 2 ms: a kernel of 1 ms, then updates of 2 µs, each launched as late."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * 2 * MS
            plant.step(step, begin, begin + 2 * MS)
            plant.kernel(begin + US, begin + MS, launched=begin)
            plant.call(begin + MS, begin + 2 * MS, "Optimizer.step#SGD.step")
            for number in range(kernels):
                at = begin + MS + number * 8 * US
                plant.call(at, at + 3 * US, "aten::add_")
                plant.kernel(at + 3 * US, at + 5 * US, launched=at + US, name=name)
    return path


def test_the_device_waits_between_the_updates_of_an_optimizer(tmp_path: Path) -> None:
    said = found(optimizer(tmp_path / "run.db", name="add_kernel"))["unfused_optimizer"]
    # 1 µs before the first launch, from an update's end to the next one's launch 4 µs, 119 times;
    # and 2 µs until each launch arrives.
    assert cost_ns(said) == US + 119 * 4 * US + 120 * 2 * US
    assert said.figures["kernels"] == 4 * 120


def test_an_optimizer_that_updates_many_at_once_is_no_finding(tmp_path: Path) -> None:
    said = found(optimizer(tmp_path / "run.db", name="multi_tensor_apply_kernel"))
    assert "unfused_optimizer" not in said


def test_without_a_device_python_between_updates_is_the_cost(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(5):
            begin = step * 2 * MS
            plant.call(begin, begin + 2 * MS, f"ProfilerStep#{step}")
            plant.call(begin + US, begin + MS, "aten::linear")
            plant.call(begin + MS, begin + MS + 800 * US, "Optimizer.step#Adam.step")
            for number in range(100):
                at = begin + MS + number * 8 * US
                plant.call(at, at + 3 * US, "aten::add_")
    said = found(tmp_path / "run.db")["unfused_optimizer"]
    assert cost_ns(said) == 100 * 5 * US


def optimizer_behind(path: Path, *, name: str, kernels: int = 800) -> Path:
    """Write five steps of 6 ms whose launches are all queued before the device gets to them."""
    with Plant(path) as plant:
        for step in range(5):
            begin = step * 6 * MS
            plant.step(step, begin, begin + 6 * MS)
            plant.kernel(begin + 10 * US, begin + 3 * MS, launched=begin, name="gemm")
            plant.call(begin + 100 * US, begin + 2 * MS, "Optimizer.step#AdamW.step")
            for number in range(kernels):
                launched = begin + 100 * US + number * 2 * US
                plant.call(launched, launched + 2 * US, "aten::mul_")
                at = begin + 3 * MS + number * 3 * US
                plant.kernel(at + US, at + 3 * US, launched=launched + 500, takes=US, name=name)
            plant.api(begin + 2 * MS, begin + 6 * MS - 10 * US, "cudaDeviceSynchronize")
    return path


def test_an_unfused_optimizer_costs_its_kernels_if_the_host_is_ahead(tmp_path: Path) -> None:
    finding = found(optimizer_behind(tmp_path / "run.db", name="add_kernel"))["unfused_optimizer"]
    # Kernels of 2 µs are all tail, and the device needs 1 µs from one to the next.
    assert cost_ns(finding) == pytest.approx(800 * 3 * US, rel=0.01)
    assert finding.sure == "likely"


def test_a_fused_optimizer_is_no_finding_if_the_host_is_ahead(tmp_path: Path) -> None:
    path = optimizer_behind(tmp_path / "run.db", name="multi_tensor_apply_kernel")
    assert "unfused_optimizer" not in found(path)


ROTARY = ("vectorized_elementwise_kernel<mul>", "vectorized_elementwise_kernel<neg>")


def chains(
    path: Path, *names: str, gpu: bool = True, framework: str = "aten::mul", length: int = 10
) -> Path:
    """Write layers of a product of 20 µs and kernels of `length` µs on a busy device."""
    with Plant(path) as plant:
        at = 1000 * US
        plant.call(0, 900 * US, framework)
        for layer in range(60):
            for name, takes in (("gemm", 20), *((name, length) for name in names)):
                task = plant.kernel(at, at + takes * US, launched=layer, name=name, op_type=name)
                at += takes * US
                if gpu:
                    row = {"globalTaskId": [task], "name": [plant.text(name)], "gridDim": [0]}
                    row |= {"operation": [plant.text("N/A")], "blockDim": [0]}
                    plant.writer.write("UPROF_GPU_TASKS", row)
    return path


def test_chains_of_element_wise_kernels_cost_all_but_the_longest(tmp_path: Path) -> None:
    finding = found(chains(tmp_path / "run.db", *ROTARY, *ROTARY))["unfused_elementwise"]
    assert cost_ns(finding) == 60 * 3 * 10 * US
    assert "240 memory-bound kernels" in finding.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"names": (*ROTARY, *ROTARY), "framework": "Torch-Compiled Region: 0/0"},
        {"names": (*ROTARY, *ROTARY), "gpu": False},
        {"names": ROTARY[:1]},  # nothing to fuse it with
        {"names": ROTARY, "length": 2},
    ],
)
def test_compiled_programs_and_single_kernels_have_no_chains(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    path = chains(tmp_path / "run.db", *arguments.pop("names"), **arguments)
    assert "unfused_elementwise" not in found(path)


@pytest.mark.parametrize(
    ("name", "is_full"),
    [
        ("volta_sgemm_128x64_nn", True),
        ("volta_scudnn_128x64_relu_medium_nn_v1", True),
        ("cutlass_80_simt_sgemm_256x128_8x4_nn_align1", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x16", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", False),
        ("volta_fp16_sgemm_fp16_128x32_tn", False),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn", False),
        ("cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4", False),
    ],
)
def test_kernel_names_tell_full_precision_without_shapes(
    tmp_path: Path, name: str, is_full: bool
) -> None:
    findings = found(mixed(tmp_path / "run.db", name=name, op_type="aten::mm", copies=100))
    assert ("full_precision" in findings) == is_full
    if is_full:
        finding = findings["full_precision"]
        assert (finding.sure, cost_ns(finding)) == ("possible", 0)
