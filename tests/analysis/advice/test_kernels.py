"""Copies and casts by kernels, unfused attention, optimizers and element-wise chains."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns


def mixed(path: Path, *, name: str, op_type: str, copies: int = 50, hidden: bool = False) -> Path:
    """Write 100 matmuls of 10 µs with `copies` kernels of 2 µs between them, without gaps."""
    with FaultyRun(path) as run:
        at = 0
        for number in range(100):
            run.kernel(at, at + 10 * US, name="gemm", op_type="aten::mm")
            if hidden:
                run.kernel(at + US, at + 3 * US, name=name, op_type=op_type, stream=9)
            elif number < copies:
                run.kernel(at + 10 * US, at + 12 * US, name=name, op_type=op_type)
                at += 2 * US
            at += 10 * US
    return path


DIRECT_COPY = "elementwise_kernel<direct_copy_kernel_cuda>"


def test_copies_by_kernels_cost_their_time(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_")
    finding = findings_by_kind(path)["casts_and_copies"]
    assert saving_ns(finding) == 50 * 2 * US
    assert finding.evidence[0]["count"] == 50


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (["to 12"] * 7 + ["contiguous 12"] * 3, "; mostly aten::to at train.py:12; saves"),
        (["to 12"] * 5 + ["to 13"] * 5, "; mostly aten::to; saves"),
        (["to 12"] * 5 + ["contiguous 12"] * 5, "; mostly at train.py:12; saves"),
        (["to 12"] * 5 + ["contiguous 13"] * 5, " of kernel time; saves"),
    ],
)
def test_operation_and_line_of_most_time_named(calls: list[str], says: str, tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for number, call in enumerate(calls):
            begin, (name, line) = number * 100 * US, call.split()
            run.chain(number, f"/w/train.py({line}): step")
            run.call(begin, begin + 5 * US, f"aten::{name}", chain=number, launches=number + 1)
            run.api(begin + US, begin + 2 * US, "cudaLaunchKernel", connection=number + 1)
            run.task(begin, begin + 100 * US, connection=number + 1, kernel=(DIRECT_COPY, ""))
    assert says in findings_by_kind(tmp_path / "run.db")["casts_and_copies"].text


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
def test_generated_copy_has_only_copies(name: str, only_moves_data: bool, tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=name, op_type="")
    assert ("casts_and_copies" in findings_by_kind(path)) is only_moves_data


def test_fills_cost_their_time(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name="elementwise_kernel<FillFunctor>", op_type="aten::zero_")
    finding = findings_by_kind(path)["fills"]
    assert saving_ns(finding) == 50 * 2 * US
    assert "zero_grad(set_to_none=True)" in finding.advice


@pytest.mark.parametrize("op_type", ["aten::masked_fill_", "aten::fill_diagonal_", "aten::eq"])
def test_operations_that_read_what_they_write_are_no_fills(op_type: str, tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name="elementwise_kernel", op_type=op_type)
    assert "fills" not in findings_by_kind(path)


def test_few_copies_are_no_finding(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_", copies=10)
    assert advice(path).findings == ()


def test_overlapped_copies_are_no_finding(tmp_path: Path) -> None:
    path = mixed(tmp_path / "run.db", name=DIRECT_COPY, op_type="aten::copy_", hidden=True)
    assert advice(path).findings == ()


def test_copies_of_an_optimizer_are_no_finding(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.call(0, 5 * US, "Optimizer.step#SGD.step")
        run.call(US, 4 * US, "aten::copy_", launches=77)
        run.task(10 * US, 40 * US, connection=77, kernel=(DIRECT_COPY, "aten::copy_"))
        run.task(40 * US, 100 * US, kernel=("gemm", "aten::mm"))
    assert "casts_and_copies" not in findings_by_kind(tmp_path / "run.db")


@pytest.mark.parametrize(
    ("operator", "title", "advice"),
    [
        ("TransData", "format conversions", "keep one format (torch.npu.config"),
        ("Cast", "dtype casts", "keep one dtype (autocast"),
        ("StridedSlice", "format conversions", "keep one layout (no transpose"),
        ("ViewCopy", "format conversions", "keep one layout (no transpose"),
    ],
)
def test_format_conversions_are_a_finding_of_their_own_kind(
    tmp_path: Path, operator: str, title: str, advice: str
) -> None:
    path = mixed(tmp_path / "run.db", name="kernel_1", op_type=operator)
    findings = findings_by_kind(path)
    assert saving_ns(findings["format_conversions"]) == 50 * 2 * US
    assert findings["format_conversions"].text.startswith(title)
    assert findings["format_conversions"].advice.startswith(advice)
    assert "casts_and_copies" not in findings


def attention(path: Path, *kernels: tuple[str, int], layers: int = 12) -> Path:
    """Write layers of kernels (operation, µs), each followed by a matmul of 100 µs."""
    with FaultyRun(path) as run:
        at = 0
        for _ in range(layers):
            for operation, length in (*kernels, ("aten::mm", 100)):
                end = at + length * US
                run.kernel(at, end, name=f"{operation[6:]}_kernel", op_type=operation)
                at = end
    return path


KINDS = {"m": "bmm", "s": "_softmax", ".": "mul", "t": "topk", "c": "copy_"}


@pytest.mark.parametrize("seed", range(6))
def test_unfused_attention_costs_the_kernels_between_its_matmuls(tmp_path: Path, seed: int) -> None:
    kernels, between, patterns = "".join(Random(seed).choices("mms...ct", k=70)), set[int](), 0
    path = attention(
        tmp_path / "run.db", *[(f"aten::{KINDS[kind]}", 10) for kind in kernels], layers=1
    )
    for at in (place for place, kind in enumerate(f"{kernels}m") if kind == "s"):
        first, last = kernels.rfind("m", 0, at), f"{kernels}m".find("m", at)
        is_near = first >= 0 and max(at - first, last - at) <= 5
        if is_near and "t" not in kernels[first:last]:
            patterns, between = patterns + 1, between | {*range(first + 1, last)}
    findings = findings_by_kind(path)
    assert saving_ns(findings["unfused_attention"]) == len(between) * 10 * US
    assert findings["unfused_attention"].figures["patterns"] == patterns
    # Copies between the matmuls are part of it, others are not.
    copies = {place for place, kind in enumerate(kernels) if kind == "c"}
    assert f"casts: {len(copies - between)} kernels, " in findings["casts_and_copies"].text


def test_fused_attention_is_no_finding(tmp_path: Path) -> None:
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
def test_softmax_of_a_loss_is_no_attention(tmp_path: Path, loss: str) -> None:
    """It lies between the matmul of the logits and the first matmul of backward."""
    path = attention(tmp_path / "run.db", ("aten::matmul", 20), (loss, 10), ("aten::matmul", 20))
    assert advice(path).findings == ()


SHORT_ROWS = "void softmax_warp_{}<c10::BFloat16, c10::BFloat16, float, 9, {}, false>(int)"


@pytest.mark.parametrize(("logarithm", "expected"), [("true", False), ("false", True)])
def test_template_argument_tells_softmax(tmp_path: Path, logarithm: str, expected: bool) -> None:
    """A classifier with 1,000 classes: logits, loss, and the first matmul of backward."""
    with FaultyRun(tmp_path / "run.db") as run:
        at = 0
        for _ in range(12):
            for name, length in (
                ("gemm", 40),
                (SHORT_ROWS.format("forward", logarithm), 10),
                (SHORT_ROWS.format("backward", logarithm), 10),
                ("gemm", 40),
            ):
                run.kernel(at, at + length * US, name=name, op_type=name)
                at += length * US
    assert ("unfused_attention" in findings_by_kind(tmp_path / "run.db")) == expected


@pytest.mark.parametrize(
    "between", [("aten::nll_loss_forward",), ("aten::topk", "aten::div"), ("aten::multinomial",)]
)
def test_softmax_of_classes_is_no_attention(tmp_path: Path, between: tuple[str, ...]) -> None:
    after = tuple((name, 2) for name in between)
    pieces = (("aten::mm", 20), ("aten::_softmax", 10), *after, ("aten::bmm", 20))
    assert advice(attention(tmp_path / "run.db", *pieces)).findings == ()


def write_optimizer(path: Path, *, name: str, kernels: int = 120) -> Path:
    """Write five 2 ms steps: a 1 ms kernel, then 2 µs updates that are launched one by one."""
    with FaultyRun(path) as run:
        for begin in run.steps(5, 2 * MS):
            run.kernel(begin + US, begin + MS, launched=begin)
            run.call(begin + MS, begin + 2 * MS, "Optimizer.step#SGD.step")
            for number in range(kernels):
                at = begin + MS + number * 8 * US
                run.call(at, at + 3 * US, "aten::add_")
                run.kernel(at + 3 * US, at + 5 * US, launched=at + US, name=name)
    return path


def test_unfused_optimizer_costs_the_gaps_between_updates(tmp_path: Path) -> None:
    finding = findings_by_kind(write_optimizer(tmp_path / "run.db", name="add_kernel"))[
        "unfused_optimizer"
    ]
    # The kernels (too short to fill the device), the Python between them, and the latency of each
    # launch; not the usual gap of 1 µs between two kernels of a host that is ahead.
    assert saving_ns(finding) == pytest.approx((119 * 8 + 5 - 120) * US, rel=0.06)
    assert finding.figures["kernels"] == 4 * 120
    assert " kernels per step; 36 % of the time is host-bound idle time before them" in finding.text


def test_multi_tensor_optimizer_is_no_finding(tmp_path: Path) -> None:
    findings = findings_by_kind(
        write_optimizer(tmp_path / "run.db", name="multi_tensor_apply_kernel")
    )
    assert "unfused_optimizer" not in findings


def test_host_only_optimizer_costs_the_time_between_updates(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 2 * MS
            run.call(begin, begin + 2 * MS, f"ProfilerStep#{step}")
            run.call(begin + US, begin + MS, "aten::linear")
            run.call(begin + MS, begin + MS + 800 * US, "Optimizer.step#Adam.step")
            for number in range(100):
                at = begin + MS + number * 8 * US
                run.call(at, at + 3 * US, "aten::add_")
    finding = findings_by_kind(tmp_path / "run.db")["unfused_optimizer"]
    assert saving_ns(finding) == 100 * 5 * US


@pytest.mark.parametrize(("name", "cost_ms"), [("aten::sort", 3), ("aten::topk", None)])
def test_operation_with_a_cheaper_choice(tmp_path: Path, name: str, cost_ms: int | None) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step in range(5):
            begin = step * 10 * MS
            run.call(begin, begin + 10 * MS, f"ProfilerStep#{step}")
            run.call(begin + US, begin + US + 3 * MS, name)
            run.call(begin + 3 * MS + 2 * US, begin + 10 * MS, "aten::linear")
    found = findings_by_kind(tmp_path / "run.db")
    assert found.keys() == ({"costly_operation"} if cost_ms else set())
    if cost_ms:
        assert saving_ns(found["costly_operation"]) == cost_ms * MS


def write_queued_optimizer(
    path: Path, *, name: str, kernels: int = 800, operation: str = "aten::mul_"
) -> Path:
    """Write five 6 ms steps whose launches are all queued before the device starts them."""
    with FaultyRun(path) as run:
        for begin in run.steps(5, 6 * MS):
            run.kernel(begin + 10 * US, begin + 3 * MS, launched=begin, name="gemm")
            run.call(begin + 100 * US, begin + 2 * MS, "Optimizer.step#AdamW.step")
            for number in range(kernels):
                launched = begin + 100 * US + number * 2 * US
                run.call(launched, launched + 2 * US, operation)
                at = begin + 3 * MS + number * 3 * US
                kernel: dict[str, Any] = {"name": name, "op_type": operation}
                run.kernel(at + US, at + 3 * US, launched=launched + 500, takes=US, **kernel)
            run.api(begin + 2 * MS, begin + 6 * MS - 10 * US, "cudaDeviceSynchronize")
    return path


def test_unfused_optimizer_costs_its_kernels_if_the_host_is_ahead(tmp_path: Path) -> None:
    finding = findings_by_kind(write_queued_optimizer(tmp_path / "run.db", name="add_kernel"))[
        "unfused_optimizer"
    ]
    # Each 2 µs kernel is too short to fill the device, and 1 µs passes from one to the next.
    assert saving_ns(finding) == pytest.approx(800 * 3 * US, rel=0.01)
    assert finding.sure == "likely"
    assert "host-bound" not in finding.text


@pytest.mark.slow
def test_fused_optimizer_is_no_finding_if_the_host_is_ahead(tmp_path: Path) -> None:
    path = write_queued_optimizer(tmp_path / "run.db", name="multi_tensor_apply_kernel")
    assert "unfused_optimizer" not in findings_by_kind(path)


@pytest.mark.slow
def test_fills_of_zero_grad_are_no_unfused_optimizer(tmp_path: Path) -> None:
    path = write_queued_optimizer(tmp_path / "run.db", name="FillFunctor", operation="aten::zero_")
    assert "unfused_optimizer" not in findings_by_kind(path)
    assert "fills" in findings_by_kind(path)


@pytest.mark.parametrize("trains", [False, True])
def test_costly_operations_cost_their_time_on_a_device(tmp_path: Path, trains: bool) -> None:
    """Attention with a cache that `cat` copies for each token, or a model that joins features."""
    with FaultyRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(5, 10 * MS)):
            run.call(begin, begin + 20 * US, "aten::cat", sequence=step)
            run.kernel(begin + 10 * US, begin + 3 * MS, launched=begin + US, op_type="aten::cat")
            name = "CatBackward0" if trains else "aten::mm"
            sequence = step if trains else -1
            run.call(begin + 30 * US, begin + 50 * US, name, sequence=sequence, forward_thread=1)
            times = begin + 3 * MS, begin + 9 * MS
            run.kernel(*times, launched=begin + 35 * US, takes=US, op_type="aten::mm")
            run.api(begin + 60 * US, begin + 10 * MS, "cudaDeviceSynchronize")
    found = findings_by_kind(tmp_path / "run.db")
    assert ("costly_operation" in found) != trains
    if not trains:
        assert saving_ns(found["costly_operation"]) == pytest.approx(3 * MS, rel=0.02)
        assert "static cache" in found["costly_operation"].advice


@pytest.mark.parametrize("passes", [7, 2])
def test_optimizer_that_reads_parameters_often_costs_half(tmp_path: Path, passes: int) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, 10 * MS):
            run.kernel(begin + 10 * US, begin + 3 * MS, launched=begin, op_type="aten::mm")
            run.call(begin + 100 * US, begin + 2 * MS, "Optimizer.step#AdamW.step")
            for number in range(passes):
                launched = begin + 100 * US + number * 2 * US
                name = f"aten::_foreach_{number}"
                run.call(launched, launched + 2 * US, name)
                kernel: dict[str, Any] = {"name": "multi_tensor_apply_kernel", "op_type": name}
                at, takes = begin + 3 * MS, 7 * MS // passes
                times = (at + number * takes, at + (number + 1) * takes)
                run.kernel(*times, launched=launched + 500, takes=US, **kernel)
            run.api(begin + 2 * MS, begin + 10 * MS, "cudaDeviceSynchronize")
    finding = findings_by_kind(tmp_path / "run.db").get("unfused_optimizer")
    assert (finding is not None) == (passes > 2)
    if finding is not None:
        assert saving_ns(finding) == pytest.approx(3.5 * MS, rel=0.01)


@pytest.mark.parametrize("rows_ns", [200 * US, 2 * MS])
def test_dense_gradients_of_embeddings_cost_all_rows(tmp_path: Path, rows_ns: int) -> None:
    """Fused Adam moves seven times the bytes of a gradient."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, 20 * MS):
            run.call(begin, begin + 90 * US, "aten::embedding_dense_backward")
            run.call(begin + 10 * US, begin + 20 * US, "aten::fill_")
            run.call(begin + 100 * US, begin + 200 * US, "Optimizer.step#AdamW.step")
            run.call(begin + 120 * US, begin + 190 * US, "aten::_fused_adamw_")
            fused: dict[str, Any] = {
                "name": "FusedAdamMathFunctor",
                "op_type": "aten::_fused_adamw_",
            }
            gradient: dict[str, Any] = {"op_type": "aten::embedding_dense_backward"}
            at = begin + MS
            for launched, takes, kernel in (
                (15 * US, MS, {**gradient, "op_type": "aten::fill_"}),
                (50 * US, rows_ns, gradient),
                (150 * US, 10 * MS, fused),
            ):
                run.kernel(at, at + takes, launched=begin + launched, takes=US, **kernel)
                at += takes
            run.api(begin + 300 * US, begin + 20 * MS, "cudaDeviceSynchronize")
    finding = findings_by_kind(tmp_path / "run.db").get("dense_embedding")
    assert (finding is not None) == (rows_ns < MS)
    if finding is not None:
        assert saving_ns(finding) == pytest.approx((1 + 7) * MS, rel=0.01)


def test_recomputed_kernels_cost_their_time(tmp_path: Path) -> None:
    """The checkpoint's own backward pass is no recomputation; repeated operations are named."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, 10 * MS):
            run.kernel(begin + 20 * US, begin + 6 * MS, launched=begin + 2 * US)
            run.call(begin + 10 * US, begin + 90 * US, "CheckpointFunctionBackward")
            backward = "autograd::engine::evaluate_function: MmBackward0"
            run.call(begin + 50 * US, begin + 80 * US, backward)
            run.call(begin + 20 * US, begin + 30 * US, "aten::linear")
            for at, until, launched in ((6, 8, 22), (8, 10, 62)):
                start = begin + launched * US
                connection = run.api(start, start + 2 * US, "cudaLaunchKernel")
                run.call(start - US, start + 3 * US, "aten::mm", launches=connection)
                times = (begin + at * MS, begin + until * MS)
                run.task(*times, connection=connection, kernel=("gemm", "aten::mm"), stream=7)
            run.api(begin + 100 * US, begin + 10 * MS, "cudaDeviceSynchronize")
    finding = findings_by_kind(tmp_path / "run.db")["recomputation"]
    assert saving_ns(finding) == pytest.approx(2 * MS, rel=0.01)
    assert "runs 4 kernels again, 20 % of the time; mostly aten::linear;" in finding.text
    assert [row["operation"] for row in finding.evidence] == ["aten::linear"]


ROTARY = ("vectorized_elementwise_kernel<mul>", "vectorized_elementwise_kernel<neg>")


def chains(
    path: Path, *names: str, gpu: bool = True, framework: str = "aten::mul", length: int = 10
) -> Path:
    """Write layers of a 20 µs matmul and kernels of `length` µs on a busy device."""
    with FaultyRun(path) as run:
        at = 1000 * US
        run.call(0, 900 * US, framework)
        run.call(0, 800 * US, "aten::mul")
        for layer in range(60):
            for name, takes in (("gemm", 20), *((name, length) for name in names)):
                task = run.kernel(at, at + takes * US, launched=layer, name=name, op_type=name)
                at += takes * US
                if gpu:
                    texts = {"name": run.text(name), "operation": run.text("N/A")}
                    row = {"globalTaskId": task, "gridDim": 0, "blockDim": 0}
                    run.row("UPROF_GPU_TASKS", **row, **texts)
    return path


@pytest.mark.parametrize("gpu", [True, False])
def test_chain_of_element_wise_kernels_costs_all_but_the_longest(tmp_path: Path, gpu: bool) -> None:
    path = chains(tmp_path / "run.db", *ROTARY, *ROTARY, gpu=gpu)
    finding = findings_by_kind(path)["unfused_elementwise"]
    assert saving_ns(finding) == 60 * 3 * 10 * US
    assert "240 memory-bound kernels" in finding.text


@pytest.mark.parametrize(
    ("framework", "removed"),
    [("aten::mul", 2), ("autograd::engine::evaluate_function: NativeLayerNormBackward0", 1)],
)
def test_sums_of_gradients_are_no_chains(tmp_path: Path, framework: str, removed: int) -> None:
    names = ROTARY[0], "GammaBetaBackwardCUDAKernelTemplate", ROTARY[1]
    path = chains(tmp_path / "run.db", *names, framework=framework)
    finding = findings_by_kind(path)["unfused_elementwise"]
    assert saving_ns(finding) == 60 * removed * 10 * US


@pytest.mark.parametrize(("runs", "is_chain"), [(7, True), (8, False)])
def test_the_same_operation_again_and_again_is_a_loop(
    tmp_path: Path, runs: int, is_chain: bool
) -> None:
    path = chains(tmp_path / "run.db", *ROTARY[:1] * runs)
    assert ("unfused_elementwise" in findings_by_kind(path)) is is_chain


@pytest.mark.parametrize("name", ["multi_tensor_apply_kernel<LpNormFunctor>", "gemm"])
def test_kernels_of_many_tensors_are_not_part_of_chains(tmp_path: Path, name: str) -> None:
    path = chains(tmp_path / "run.db", ROTARY[0], name)
    assert "unfused_elementwise" not in findings_by_kind(path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"names": (*ROTARY, *ROTARY), "framework": "Torch-Compiled Region: 0/0"},
        {"names": ROTARY[:1]},  # a single kernel has nothing to be fused with
        {"names": ROTARY, "length": 2},
    ],
)
def test_compiled_or_short_kernels_no_chains(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = chains(tmp_path / "run.db", *arguments.pop("names"), **arguments)
    assert "unfused_elementwise" not in findings_by_kind(path)


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
def test_kernel_name_identifies_full_precision(tmp_path: Path, name: str, is_full: bool) -> None:
    findings = findings_by_kind(
        mixed(tmp_path / "run.db", name=name, op_type="aten::mm", copies=100)
    )
    assert ("full_precision" in findings) == is_full
    if finding := findings.get("full_precision"):
        assert (finding.sure, saving_ns(finding)) == ("possible", 0)


@pytest.mark.parametrize(("idle_us", "found"), [(90, True), (2000, False)])
def test_full_precision_of_rare_kernels_is_no_finding(
    tmp_path: Path, idle_us: int, found: bool
) -> None:
    with FaultyRun(path := tmp_path / "run.db") as run:
        for at in range(60):
            end = at * (idle_us + 10) * US
            run.kernel(end - 10 * US, end, name="volta_sgemm_128x64_nn", op_type="aten::mm")
    assert ("full_precision" in findings_by_kind(path)) == found


def ten_steps(path: Path, factors: list[float], *, memory_bound: float = 1.0) -> Path:
    """Write 1 ms steps: a product of 600 µs times its factor, 100 µs of other kernels."""
    rng = np.random.default_rng(0)
    with FaultyRun(path) as run:
        at = 0
        for step, factor in enumerate(factors):
            begin = at
            for _ in range(10):
                noise = rng.normal(1, 0.01)
                long = round(60 * US * factor * noise)
                short = round(10 * US * (factor if memory_bound == 1.0 else memory_bound))
                run.kernel(at, at + long, name="gemm", op_type="aten::mm")
                run.kernel(at + long, at + long + short, name="norm", op_type="aten::norm")
                at += long + short
            run.step(step, begin, at)
            at += 300 * US
    return path


@pytest.mark.parametrize("memory_bound", [1.0, 0.9])
def test_step_from_which_kernels_are_slower(tmp_path: Path, memory_bound: float) -> None:
    path = ten_steps(tmp_path / "run.db", [1.0] * 5 + [1.5] * 5, memory_bound=memory_bound)
    finding = findings_by_kind(path)["kernels_slow_down"]
    assert "from step 5 on, the same kernels take 1.50 times as long" in finding.text
    # Five of nine analyzed steps are 300 µs longer; the norms too if the clock of all falls.
    longer_us = 300 + (50 if memory_bound == 1.0 else 0)
    assert saving_ns(finding) == pytest.approx(longer_us * US * 5 / 9, rel=0.03)


@pytest.mark.parametrize(
    "factors",
    [
        [1.0] * 10,
        [1.0, 1.5] * 5,  # every second step is larger
        [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],  # inputs grow
        [1.0] * 8 + [1.5] * 2,  # too few to tell
        [1.5] * 5 + [1.0] * 5,  # faster
        [1.0] * 5 + [1.03] * 5,
    ],
)
def test_steps_that_vary_are_not_slower_kernels(tmp_path: Path, factors: list[float]) -> None:
    assert "kernels_slow_down" not in findings_by_kind(ten_steps(tmp_path / "run.db", factors))


@pytest.mark.parametrize(
    ("kind", "op_type", "name"),
    [
        ("casts_and_copies", "aten::copy_", DIRECT_COPY),
        ("fills", "aten::zero_", "elementwise_kernel<FillFunctor>"),
    ],
)
@pytest.mark.parametrize(("copies", "found"), [(15, False), (16, True)])
def test_copies_and_fills_are_findings_from_three_percent(
    tmp_path: Path, kind: str, op_type: str, name: str, copies: int, found: bool
) -> None:
    path = mixed(tmp_path / "run.db", name=name, op_type=op_type, copies=copies)
    assert (kind in findings_by_kind(path)) is found


@pytest.mark.parametrize(
    ("count", "kind", "saved_us"), [(1, "casts_and_copies", 5 + 5), (3, "unfused_elementwise", 30)]
)
def test_chain_behind_a_cast_to_fp32_moves_twice_the_bytes(
    tmp_path: Path, count: int, kind: str, saved_us: int
) -> None:
    """A cast of 5 us precedes operations of 10 us in fp32: a chain of several is fused with it."""
    names = ["gemm", "aten::copy_", *["aten::mul"] * count]
    types = {"aten::copy_": "float;c10::BFloat16", "aten::mul": "float;float"}
    with FaultyRun(tmp_path / "run.db") as run:
        device_us = 1000
        for number, name in enumerate(names * 50):
            begin, takes = number * 3 * US, {"gemm": 40, "aten::copy_": 5, "aten::mul": 10}[name]
            call = run.api(begin + US, begin + 2 * US, "cudaLaunchKernel")
            inputs = ("64,64;64,64", types[name]) if name in types else None
            run.call(begin, begin + 3 * US, name, inputs=inputs)
            at, end = device_us * US, (device_us + takes) * US
            kernel = (name.removeprefix("aten::"), name)
            run.task(at, end, connection=call, kernel=kernel, stream=7)
            device_us += takes
    finding = findings_by_kind(tmp_path / "run.db")[kind]
    # The longest kernel of a chain stays, with half of its bytes.
    assert saving_ns(finding) == pytest.approx(50 * saved_us * US, rel=0.01)


def test_chains_end_with_the_step(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        run.call(0, US, "aten::mul")
        for begin in run.steps(6, MS):
            run.kernel(begin, begin + MS, name=ROTARY[0], op_type=ROTARY[0])
    assert "unfused_elementwise" not in findings_by_kind(tmp_path / "run.db")
