"""Loops of small operations over parameters, zeroed gradients, and adding at sorted indices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.analysis.advice.faulty_runs import US, FaultyRun, findings_by_kind, saving_ns
from unified_prof.base.columns import API_PYTHON
from unified_prof.recording.model import Finding

ENGINE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


class Op(NamedTuple):
    """An operation with one kernel."""

    name: str
    shape: str = "64,64"
    kernel: str = "elementwise_kernel"
    around: str = ""  # Range around it.
    us: int = 2
    sequence: int = -1  # Number of the autograd node that it creates, or runs if it is one.


def findings_of(
    path: Path, operations: list[Op], *, frame: str = "", gpu: bool = False
) -> dict[str, Finding]:
    """Write five steps: a matmul of 50 µs, then operations of 10 µs each on the host."""
    with FaultyRun(path) as run:
        if gpu:
            columns = dict.fromkeys(("name", "operation", "gridDim", "blockDim"), run.text("gemm"))
            run.row("UPROF_GPU_TASKS", globalTaskId=0, **columns)
        host = device = 0
        for step in range(5):
            begin = host
            for op in [Op("aten::mm", kernel="gemm", us=50), *operations]:
                thread = 2 if op.around == ENGINE else 1
                if op.around:
                    run.call(host, host + 10 * US, op.around, thread=thread)
                inputs = op.shape, "float"
                number = op.sequence + 100 * step if op.sequence >= 0 else -1
                node = {"sequence": number, "forward_thread": int(op.name.endswith("0"))}
                run.call(host + US, host + 9 * US, op.name, inputs=inputs, thread=thread, **node)
                call = run.api(host + 2 * US, host + 4 * US, "cudaLaunchKernel", thread=thread)
                start = max(device, host + 4 * US)
                device, host = start + op.us * US, host + 10 * US
                run.task(start, device, connection=call, kernel=(op.kernel, op.name))
            if frame:
                run.call(begin + 10 * US, host, frame, kind=API_PYTHON)
            run.step(step, begin, host)
    return findings_by_kind(path)


WEIGHTS = ("64,64", "64", "256,64", "256")
AVERAGE = ("aten::mul_", "aten::add_")


def loop(
    *names: str, shapes: tuple[str, ...] = WEIGHTS, runs: int = 40, around: str = ""
) -> list[Op]:
    """Return operations for one tensor after the other."""
    return [
        Op(name, shapes[number % len(shapes)], around=around)
        for number in range(runs)
        for name in names
    ]


@pytest.mark.parametrize(
    "names",
    [
        AVERAGE,
        ("aten::lerp_",),
        ("aten::to", "aten::mul_", "aten::add_"),
        ("aten::linalg_vector_norm", "aten::pow", "aten::add"),
    ],
)
def test_parameter_loop_costs_time_between_kernels(tmp_path: Path, names: tuple[str, ...]) -> None:
    finding = findings_of(tmp_path / "run.db", loop(*names))["parameter_loop"]
    # The host is ahead during the matmul.
    assert saving_ns(finding) == pytest.approx((40 * len(names) * 10 - 40) * US, rel=0.02)
    assert f"{40 * len(names)} kernels per step, a few for each tensor" in finding.text
    assert "_foreach_lerp_" in finding.advice


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (("aten::to", "aten::mul_", "aten::add_"), 2),
        (("aten::mul_", "aten::add_", "aten::add_"), 1),
        (("aten::lerp_",), 0),
        (("aten::mul_",), 0),
        (("aten::linalg_vector_norm", "aten::mul_"), 0),
    ],
)
def test_updates_of_large_tensors_cost_their_scalings_and_casts(
    tmp_path: Path, names: tuple[str, ...], merged: int
) -> None:
    """The host is ahead of kernels of 100 µs."""
    operations = [one._replace(us=100) for one in loop(*names)]
    finding = findings_of(tmp_path / "run.db", operations).get("parameter_loop")
    assert (finding is not None) == (merged > 0)
    if finding is not None:
        assert saving_ns(finding) == pytest.approx(40 * merged * 100 * US, rel=0.05)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("frame", ["", "torch/nn/utils/clip_grad.py(198): clip_grad_norm_"])
def test_loop_that_clips_gradients_is_named(tmp_path: Path, gpu: bool, frame: str) -> None:
    """Without Python functions, norms and then in-place products are clipping."""
    clips = [*loop("aten::linalg_vector_norm"), *loop("aten::mul_" if not frame else "aten::div_")]
    finding = findings_of(tmp_path / "run.db", clips, frame=frame, gpu=gpu)["parameter_loop"]
    assert saving_ns(finding) == pytest.approx((80 * 10 - 40) * US, rel=0.02)
    assert finding.text.startswith("loop over tensors that clips gradients: ")
    assert finding.advice.startswith("pass foreach=True to clip_grad_norm_")
    assert ("clip_grad_norm_fused_" in finding.advice) == (not gpu)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param(loop(*AVERAGE, runs=8), id="few tensors"),
        pytest.param(loop(*AVERAGE, shapes=("64,64",)), id="a recurrence on one tensor"),
        pytest.param(loop("aten::mul", "aten::sigmoid"), id="layers that write new tensors"),
        pytest.param(
            [*loop("aten::mul_", runs=8), Op("aten::mm", kernel="gemm")] * 5,
            id="matmuls between them",
        ),
        pytest.param(
            [one._replace(kernel="multi_tensor_apply_kernel") for one in loop(*AVERAGE)],
            id="foreach",
        ),
        pytest.param(loop(*AVERAGE, around="Optimizer.step#SGD.step"), id="optimizer"),
    ],
)
def test_other_repetitions_are_no_parameter_loop(tmp_path: Path, operations: list[Op]) -> None:
    assert "parameter_loop" not in findings_of(tmp_path / "run.db", operations)


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    ("names", "runs", "around", "is_loop"),
    [
        (("aten::mul", "aten::sigmoid"), 80, "", True),
        (("aten::index", "aten::mm", "aten::add"), 80, "", True),
        # Many runs are also a loop of two or three times as many operations, which counts once.
        (("aten::mul", "aten::sigmoid"), 400, "", True),
        # Layers of a model, an optimizer and averages, which have other findings.
        (("aten::mul", "aten::sigmoid"), 40, "", False),
        (("aten::mul_", "aten::add_"), 80, "Optimizer.step#SGD.step", False),
        (AVERAGE, 80, "", False),
    ],
)
def test_host_bound_names_a_loop_over_rows(
    tmp_path: Path, names: tuple[str, ...], runs: int, around: str, is_loop: bool
) -> None:
    shapes = ("64",) if names != AVERAGE else WEIGHTS
    operations = loop(*names, shapes=shapes, runs=runs, around=around)
    finding = findings_of(tmp_path / "run.db", operations).get("host_bound")
    clause = f"in a loop that runs {', '.join(names)} {runs} times per step"
    assert (finding is not None and clause in finding.text) == is_loop
    assert (finding is not None and "all runs of the loop" in finding.advice) == is_loop


def test_host_bound_optimizer_is_no_loop_of_the_products_before_it(tmp_path: Path) -> None:
    """80 products that keep the device busy, then 200 short operations of an optimizer."""
    products = [Op("aten::mm", kernel="gemm", us=12)] * 80
    around, kernel = "Optimizer.step#NorMuon.step", "multi_tensor_apply_kernel"
    steps = [Op("aten::_foreach_mul_", kernel=kernel, around=around)] * 200
    finding = findings_of(tmp_path / "run.db", [*products, *steps])["host_bound"]
    assert "in a loop" not in finding.text
    assert re.search(r"; (?:9\d|100) % of it in steps of the optimizer", finding.text)
    assert finding.advice.startswith("pass fused=True to the optimizer")


ZERO = loop("aten::zero_", around="Optimizer.zero_grad#SGD.zero_grad")
ADD = [Op("aten::add_", "64", around=ENGINE) for _ in range(40)]


def test_zeroed_gradients_cost_the_fills_and_the_additions_to_them(tmp_path: Path) -> None:
    finding = findings_of(tmp_path / "run.db", [*ADD, *ZERO])["zeroed_gradients"]
    # The autograd engine and Python around the additions stay.
    assert saving_ns(finding) == pytest.approx((40 * 10 + 40 * 8) * US, rel=0.02)
    assert "40 kernels per step set gradients to zero" in finding.text
    assert "set_to_none=True" in finding.advice


@pytest.mark.parametrize("device_us", [2, 400])
def test_saving_above_the_named_share_has_a_reason(tmp_path: Path, device_us: int) -> None:
    """Behind a long kernel, the fills leave no idle time, but later launches wait for them."""
    later = [Op("aten::relu", "64") for _ in range(60)]
    operations = [
        Op("aten::mm", kernel="gemm", us=device_us),
        *ZERO,
        *(later if device_us > 2 else []),
    ]
    finding = findings_of(tmp_path / "run.db", operations)["zeroed_gradients"]
    clause = "saves up to 400 µs per step, as the host also launches later work earlier"
    assert (clause in finding.text) == (device_us > 2)
    assert finding.text.count("launches later work earlier") == (device_us > 2)


def test_gradients_that_a_model_sets_to_zero_are_found_by_their_loop(tmp_path: Path) -> None:
    findings = findings_of(tmp_path / "run.db", [*ADD, *loop("aten::zero_")])
    assert "zeroed_gradients" in findings
    assert "parameter_loop" not in findings
    assert "fills" not in findings


def test_gradients_that_are_freed_are_no_finding(tmp_path: Path) -> None:
    """Of two backward passes, the second adds to the gradients of the first."""
    assert "zeroed_gradients" not in findings_of(tmp_path / "run.db", ADD)


SORT, ADD_ROWS = "DeviceRadixSortOnesweepKernel", "indexing_backward_kernel<float, 4>"


@pytest.mark.parametrize("gather_us", [0, 40, 400])
def test_adding_at_sorted_indices_costs_its_kernels(tmp_path: Path, gather_us: int) -> None:
    """Adding without sorting takes 1.5 times as long as the forward pass, if that is known."""
    operations = [Op("aten::_index_put_impl_", kernel=ADD_ROWS, us=300) for _ in range(4)]
    if gather_us:
        operations = [
            op
            for number in range(4)
            for op in (
                Op("aten::index", us=gather_us, sequence=number),
                Op("IndexBackward0", kernel=ADD_ROWS, us=300, sequence=number),
            )
        ]
    finding = findings_of(tmp_path / "run.db", operations).get("costly_operation")
    if gather_us == 400:
        assert finding is None
        return
    assert finding is not None
    assert saving_ns(finding) == pytest.approx(4 * (300 - 1.5 * gather_us) * US)
    assert "indexing_backward: adding at sorted indices" in finding.text
    assert "torch.index_select" in finding.advice


def test_sorting_of_indices_belongs_to_adding_at_them(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for number in range(60):
            at, host = number * 100 * US, number * 20 * US
            run.call(host, host + 10 * US, "aten::_index_put_impl_")
            run.kernel(at, at + 40 * US, launched=host + US, name=SORT, op_type="aten::sort")
            run.kernel(at + 40 * US, at + 60 * US, launched=host + 4 * US, name=ADD_ROWS)
            run.kernel(at + 60 * US, at + 100 * US, launched=host + 12 * US, name="gemm")
    (finding,) = [
        one
        for one in findings_by_kind(tmp_path / "run.db").values()
        if one.kind == "costly_operation"
    ]
    assert saving_ns(finding) == pytest.approx(60 * 60 * US, rel=0.01)


def test_writing_at_indices_is_no_adding(tmp_path: Path) -> None:
    """As into a KV cache."""
    operations = [Op("aten::_index_put_impl_", kernel="index_put_kernel", us=300)] * 4
    assert "costly_operation" not in findings_of(tmp_path / "run.db", operations)
