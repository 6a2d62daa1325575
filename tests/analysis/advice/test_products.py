"""Matrix products that compute more than is needed, by the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.analysis.advice.faulty_runs import US, FaultyRun, findings_by_kind, saving_ns
from unified_prof.explain.advice import product_rules
from unified_prof.recording.model import Finding

Op = tuple[str, str, int]
"""Name, shapes of inputs, and µs of the kernel; `name <` is backward of the operation before."""


KERNELS = {"mine::dequantize": "kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>"}


def findings_of(path: Path, *steps: list[Op]) -> dict[str, Finding]:
    """Write steps of operations that the host launches early; return findings by kind."""
    with FaultyRun(path) as run:
        host = device = 0
        for number, operations in enumerate(steps):
            begin = host
            for name, shapes, us in operations:
                sizes, _, types = shapes.partition(" ")
                inputs = sizes, types or ";".join(["float"] * len(sizes.split(";")))
                run.call(host, host + 4 * US, name, inputs=inputs)
                call = run.api(host + US, host + 2 * US, "cudaLaunchKernel")
                kernel = "gemm" if "mm" in name else KERNELS.get(name, "elementwise_kernel")
                device = max(device, host + 4 * US)
                run.task(device, device + us * US, connection=call, kernel=(kernel, name))
                device, host = device + us * US, host + 5 * US
            run.step(number, begin, host)
    return findings_by_kind(path)


REST = ("aten::mm", "512,512;512,512", 1000)
ADAPTER = ("aten::mm", "4096,16;16,4096", 100)


@pytest.mark.parametrize(
    "operations",
    [
        [ADAPTER, ("aten::mm", "2048,4096;4096,4096", 400)],
        [ADAPTER, ("aten::mul", "4096,4096", 40), ("aten::mm", "2048,4096;4096,4096", 400)],
        [("aten::mm", "4096,16;16,2048", 100), ("aten::addmm", "4096;64,2048;2048,4096", 400)],
        [ADAPTER, ("aten::mm", "4096,4096;4096,2048", 400)],
        [("aten::bmm", "8,4096,16;8,16,4096", 100), ("aten::bmm", "8,512,4096;8,4096,4096", 400)],
    ],
)
def test_products_cost_what_another_order_saves(tmp_path: Path, operations: list[Op]) -> None:
    finding = findings_of(tmp_path / "run.db", *[[REST, *operations]] * 6)["product_order"]
    # The other order moves mostly the inputs and the result.
    assert 250 * US < saving_ns(finding) < 500 * US
    assert "torch.linalg.multi_dot" in finding.advice


def time_of(batch: int, rows: int, inner: int, columns: int) -> float:
    """Return the time of a product: 120 multiply-adds, or an element that memory moves."""
    moved = rows * inner + inner * columns + rows * columns
    return batch * max(rows * inner * columns / 120, moved)


def test_products_have_a_cheaper_order_if_the_small_factor_comes_first() -> None:
    random, found = Random(0), 0
    for _ in range(1500):
        batch, m, n = random.choice((1, 2)), *random.choices((32, 128, 480), k=2)
        r = random.choice((4, 8, 9, 32, 33))
        other, size = random.choice((1, 2)), random.choice((32, 128, 480))
        sizes = random.choice(
            ((size, m, n), (size, n, m), (m, n, size), (m, size, n), (n, m, size))
        )
        kinds = ("mul", "to", "div", "tanh", "relu", "add", "_softmax")
        between = [f"aten::{random.choice(kinds)}" for _ in range(random.randrange(4))]
        last = len(between) + 1
        second = product_rules._Product(other, *sizes)
        products = [product_rules._Product(batch, m, r, n), *[None] * len(between), second]
        names = ["aten::bmm", *between, "aten::bmm"]
        rest: Any = SimpleNamespace(products=products, names=names)
        before = time_of(batch, m, r, n) + time_of(other, *sizes)
        after = before
        if sizes[1:] in ((m, n), (n, m)) or sizes[:2] == (m, n):
            free = sizes[0] if sizes[1:] in ((m, n), (n, m)) else sizes[2]
            after = time_of(batch, free, m, r) + time_of(batch, free, r, n)
        scales = not {"aten::relu", "aten::add", "aten::_softmax"} & set(between)
        is_found = 4 * r <= min(m, n) and scales and len(between) < 3 and batch == other
        expected = {0: after / before, last: after / before}
        expected = expected if is_found and after <= before / 2 else {}
        found += bool(expected)
        assert product_rules._orders(rest) == pytest.approx(expected)
    assert found > 50


LOGITS = ("aten::mm", "2048,1024;1024,50304", 800)
CAST = ("aten::_to_copy", "2,1024,50304", 200)


@pytest.mark.parametrize(
    ("operations", "lost_us"),
    [
        ([LOGITS, ("aten::argmax", "2,50304", 5)], 750),
        ([LOGITS, CAST, ("aten::div", "2,50304", 5), ("aten::_softmax", "2,50304", 5)], 950),
        (
            [LOGITS, ("aten::index", "2048,50304;300", 40), ("aten::_log_softmax", "300,50304", 5)],
            680,
        ),
    ],
)
def test_unused_logits_cost_their_share(tmp_path: Path, operations: list[Op], lost_us: int) -> None:
    finding = findings_of(tmp_path / "run.db", *[[REST, *operations]] * 6)["unused_rows"]
    assert saving_ns(finding) == pytest.approx(lost_us * US, rel=0.02)
    assert "logits_to_keep" in finding.advice


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([LOGITS, ("aten::_log_softmax", "2048,50304", 100)], id="loss"),
        pytest.param(
            [LOGITS, ("aten::argmax", "2,50304", 5), ("aten::_log_softmax", "2048,50304", 9)],
            id="a sample, and a loss",
        ),
        pytest.param(
            [LOGITS, ("aten::add", "2048,1024", 9), ("aten::argmax", "2,50304", 5)], id="other"
        ),
        pytest.param(
            [("aten::mm", "2,1024;1024,50304", 800), ("aten::argmax", "2,50304", 5)], id="decode"
        ),
        pytest.param([LOGITS, ("aten::_log_softmax", "2046,50304", 100)], id="shifted labels"),
    ],
)
def test_logits_that_are_used_are_no_finding(tmp_path: Path, operations: list[Op]) -> None:
    assert "unused_rows" not in findings_of(tmp_path / "run.db", *[[REST, *operations]] * 6)


def generation(lengths: list[int], layers: int = 4) -> list[list[Op]]:
    """Return a step per forward pass of two sequences of given lengths."""
    return [
        [("aten::mm", f"{2 * one},1024;1024,1024", 100), ("aten::add", f"2,{one},1024", 50)]
        * layers
        for one in lengths
    ]


def host_findings(path: Path, *steps: list[Op]) -> dict[str, Finding]:
    """Write steps of operations that the host runs, in the time of their kernels."""
    with FaultyRun(path) as run:
        end = 0
        for number, operations in enumerate(steps):
            length = sum(us for _, _, us in operations) * US
            run.call(end, end + length, f"ProfilerStep#{number}")
            for name, shapes, us in operations:
                inputs = shapes, ";".join(["float"] * len(shapes.split(";")))
                run.call(end, end + us * US, name, inputs=inputs)
                end += us * US
    return findings_by_kind(path)


@pytest.mark.parametrize("write", [findings_of, host_findings])
def test_sequences_that_grow_by_one_position_are_computed_again(
    tmp_path: Path, write: Callable[..., dict[str, Finding]]
) -> None:
    finding = write(tmp_path / "run.db", *generation([*range(1000, 1012)]))["no_kv_cache"]
    # Reading the weights stays.
    assert 4 * (75 + 45) * US < saving_ns(finding) < 4 * (100 + 50) * US
    assert "use_cache=True" in finding.advice


def test_each_of_several_generations_is_computed_again(tmp_path: Path) -> None:
    steps = generation([*range(1000, 1012)] * 2)
    finding = findings_of(tmp_path / "run.db", *steps)["no_kv_cache"]
    # The first pass of a generation is needed.
    assert saving_ns(finding) == pytest.approx(4 * (85 + 49) * US * 22 / 23, rel=0.15)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([1000] + [1] * 12, id="cache"),
        pytest.param(
            [1000, 1003, 1001, 1010, 1004, 1002, 1005, 1006, 1009, 1007, 1008], id="batches"
        ),
        pytest.param(
            [500, 501, 502, 502, 503, 504, 505, 505, 505, 506, 507, 508], id="sorted batches"
        ),
        pytest.param([*range(1000, 1006)], id="few"),
    ],
)
def test_other_sequences_are_not_computed_again(tmp_path: Path, lengths: list[int]) -> None:
    for write in (findings_of, host_findings):
        found = write(tmp_path / f"{write.__name__}.db", *generation(lengths))
        assert "no_kv_cache" not in found


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [  # batch, rows, inner, columns
        ("aten::mm", [(3, 4), (4, 5)], (1, 3, 4, 5)),
        ("aten::addmm", [(5,), (3, 4), (4, 5)], (1, 3, 4, 5)),
        ("aten::linear", [(2, 3, 4), (5, 4), (5,)], (1, 6, 4, 5)),
        ("aten::matmul", [(2, 3, 4), (4, 5)], (1, 6, 4, 5)),
        ("aten::matmul", [(7, 2, 3, 4), (7, 2, 4, 5)], (14, 3, 4, 5)),
        ("aten::bmm", [(2, 3, 4), (2, 4, 5)], (2, 3, 4, 5)),
        ("aten::mm", [(3, 4), (5, 4)], None),  # inner sizes differ
        ("aten::mv", [(3, 4), (4,)], None),
        ("aten::add", [(3, 4), (4, 5)], None),
    ],
)
def test_products_have_the_sizes_of_their_last_two_matrices(
    name: str, shapes: list[tuple[int, ...]], expected: tuple[int, ...] | None
) -> None:
    assert product_rules._Product.from_shapes(name, shapes) == expected


@pytest.mark.parametrize(
    ("sizes", "work"),
    [
        ((1, 240, 240, 240), 3 * 240 * 240),  # two factors and the result
        ((2, 1200, 1200, 1200), 2 * 10 * 1200 * 1200),
        ((1, 10, 1, 20), 10 + 20 + 200),
    ],
)
def test_work_of_a_product_is_flops_or_bytes(sizes: tuple[int, int, int, int], work: float) -> None:
    assert product_rules._Product(*sizes).work == work


LINEAR: Op = ("aten::mm", "64,4096;4096,4096", 50)
SCALED: Op = ("aten::mul", "4096,4096;4096,1 c10::BFloat16;c10::BFloat16", 30)
COPY = "aten::copy_"
TO_FP8 = "c10::Float8_e4m3fn;c10::BFloat16"


@pytest.mark.parametrize(
    ("layer", "saved_us"),
    [
        (
            [
                (COPY, "4096,4096;4096,4096 c10::BFloat16;c10::Float8_e4m3fn", 20),
                SCALED,
                LINEAR,
            ],
            50,
        ),
        ([(COPY, "4096,4096;4096,4096 c10::Half;signed char", 20), LINEAR], 20),
        ([("mine::dequantize", "4096,4096 unsigned char", 30), LINEAR], 30),
        # Activations are quantized, images are inputs of convolutions, or no product follows.
        ([(COPY, f"4096,4096;4096,4096 {TO_FP8}", 20), LINEAR], None),
        ([(COPY, "8,3,64,64;8,3,64,64 c10::Half;unsigned char", 20), LINEAR], None),
        (
            [LINEAR, *[SCALED] * 6, (COPY, "9,9;9,9 float;signed char", 20), *[SCALED] * 6],
            None,
        ),
    ],
)
def test_dequantization_costs_the_kernels_before_products(
    tmp_path: Path, layer: list[Op], saved_us: int | None
) -> None:
    findings = findings_of(tmp_path / "run.db", *[[REST, *layer * 10]] * 6)
    assert ("dequantization" in findings) == (saved_us is not None)
    if saved_us is not None:
        assert saving_ns(findings["dequantization"]) == 10 * saved_us * US
        assert "casts_and_copies" not in findings


def test_one_8_bit_input_per_step_is_no_dequantization(tmp_path: Path) -> None:
    image: Op = (COPY, "64,784;64,784 float;unsigned char", 500)
    findings = findings_of(tmp_path / "run.db", *[[image, *[LINEAR] * 10]] * 6)
    assert "dequantization" not in findings
    assert "casts_and_copies" in findings


def cross_entropy(rows: int, columns: int, *, cast: bool = True) -> list[Op]:
    """Return the operations of a step with a loss, by the time that its logits take."""
    logits, us = f"{rows},{columns}", max(rows * columns // 100_000, 1)
    head: Op = ("aten::mm", f"{rows},4096;4096,{columns} c10::BFloat16;c10::BFloat16", 4000)
    casts: list[Op] = [(COPY, f"{logits};{logits} float;c10::BFloat16", us)] if cast else []
    return [
        head,
        *casts,
        ("aten::_log_softmax", f"{logits}; float;Scalar", us),
        ("aten::nll_loss_forward", f"{logits};{rows} float;long int", us // 10),
        ("aten::zero_", f"{logits} float", us // 2),
        ("aten::nll_loss_backward", f";{logits};{rows} float;float;long int", us // 10),
        ("aten::_log_softmax_backward_data", f"{logits};{logits} float;float", us),
        *casts,
        head,
    ]


def test_cross_entropy_costs_all_kernels_of_logits_but_one_pass(tmp_path: Path) -> None:
    found = findings_of(tmp_path / "run.db", *[[REST, *cross_entropy(16_384, 32_768)]] * 6)
    finding, us = found["unfused_cross_entropy"], 16_384 * 32_768 // 100_000
    assert saving_ns(finding) == pytest.approx((3 + 0.5 + 2 * 0.1) * us * US, rel=0.01)
    assert "logits of 32,768 columns in fp32" in finding.text
    assert "Liger" in finding.advice
    assert not found.keys() & {"casts_and_copies", "fills", "unfused_elementwise"}, "named once"


@pytest.mark.parametrize(
    ("rows", "columns", "dropped"),
    [
        pytest.param(1 << 19, 1000, "", id="small vocabulary"),
        pytest.param(512, 32_768, "", id="chunks of positions"),
        pytest.param(16_384, 32_768, "nll_loss", id="probabilities of a sampler"),
    ],
)
def test_other_losses_are_no_unfused_cross_entropy(
    tmp_path: Path, rows: int, columns: int, dropped: str
) -> None:
    step = [op for op in cross_entropy(rows, columns) if not dropped or dropped not in op[0]]
    assert "unfused_cross_entropy" not in findings_of(tmp_path / "run.db", *[[REST, *step]] * 6)
