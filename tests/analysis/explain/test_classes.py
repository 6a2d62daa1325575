"""Kernels and operations of one kind have one class, whichever library provides them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.explain.test_names import corpus
from unified_prof.explain.api import open_analyses
from unified_prof.explain.kernel_classes import CLASSES, class_of, classes_of
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.pipeline.convert import convert
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, OTHER, Labels
from unified_prof.recording.names import (
    ATTENTION,
    CAST,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    ELEMENT_WISE,
    MATMUL,
    OPTIMIZER,
    REDUCTION,
    REST,
    class_of_kernel,
)

NATIVE = "void at::native::"
SDPA = "aten::scaled_dot_product_attention"
MULTI_TENSOR = f"{NATIVE}multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor>"
SUM = f"{NATIVE}reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor<float> > >"


@pytest.mark.parametrize("name", ["", "N/A", "hip_opaque_4711", "x" * 100_000])
def test_opaque_name_has_class_other(name: str) -> None:
    assert class_of(KERNEL, name, name, name) == REST


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        (COPIES, (COPY, "memcpy host to device", None, "aten::linear")),
        (COLLECTIVES, (COMMUNICATION, "N/A__N/A_4_1")),
        # All kernels of an attention operation, fused or not, are attention.
        (ATTENTION, (KERNEL, "attn_fwd", "aten::_flash_attention_forward", SDPA)),
        (ATTENTION, (KERNEL, "ampere_sgemm_32x128_nn", "aten::bmm", SDPA)),
        (ATTENTION, (KERNEL, "softmax_warp_forward<float>", "aten::_softmax", SDPA)),
        (ATTENTION, (KERNEL, "BatchMatMulV2", "BatchMatMulV2", SDPA)),
        # Casts keep their class in any operation.
        (CAST, (KERNEL, "trans_TransData_12", "TransData", "aten::linear")),
        (CAST, (KERNEL, "aclnnCast_CastAiCore_Cast", "Cast", "aten::layer_norm")),
        (CAST, (KERNEL, "x_copy_kernel_cuda", "aten::copy_", "Optimizer.step#SGD.step")),
        # The vendor's operator type has priority over the kernel name.
        (COPIES, (KERNEL, "Conv2DBackpropFilter6_MemSet", "MemSet", "aten::conv2d")),
        (MATMUL, (KERNEL, "AdaptiveAvgPool2d24LeftBatchMatMulV2", "BatchMatMulV2")),
        (CONVOLUTION, (KERNEL, "volta_sgemm_64x64_nn", "aten::cudnn_convolution")),
        (ELEMENT_WISE, (KERNEL, MULTI_TENSOR, "aten::_foreach_add_")),
        # The gradient of a bias is a reduction.
        (REDUCTION, (KERNEL, SUM, "aten::sum", "aten::linear")),
    ],
)
def test_class_depends_on_kind_and_names(expected: str, arguments: tuple[Any, ...]) -> None:
    assert class_of(*arguments) == expected


def test_kernels_launched_by_an_optimizer_are_optimizer_kernels() -> None:
    kernel = (KERNEL, MULTI_TENSOR, "aten::_foreach_add_")
    assert class_of(*kernel, in_optimizer=True) == OPTIMIZER


def test_every_class_has_an_example() -> None:
    examples = {*corpus("kernel").values(), *corpus("operation").values()}
    assert examples == set(CLASSES) - {REST}
    assert len(set(CLASSES)) == len(CLASSES)


def test_vectorized_classification_equals_that_of_single_tasks() -> None:
    texts = [*corpus("kernel"), *corpus("operation")]
    labels = Labels(texts)
    generator = np.random.default_rng(0)
    kernel, operator, operation = generator.integers(-1, len(texts), (3, 3000))
    kind = generator.choice([KERNEL, KERNEL, COPY, COMMUNICATION, OTHER], 3000)
    in_optimizer = generator.integers(0, 2, 3000)
    found = classes_of(labels, kind, kernel, operator, operation, in_optimizer)
    for at, place in enumerate(found.tolist()):
        names = (labels.text(int(one[at])) for one in (kernel, operator, operation))
        expected = class_of(int(kind[at]), *names, in_optimizer=bool(in_optimizer[at]))
        assert CLASSES[place] == expected


def test_numbers_in_kernel_names_do_not_change_the_class() -> None:
    assert class_of_kernel("Add116") == class_of_kernel("Add29") == ELEMENT_WISE
    assert class_of_kernel("trans_TransData_12") == CAST
    assert class_of_kernel("im2col_kernel") == CONVOLUTION
    assert class_of_kernel("gemm" + "x" * 1_000_000) == MATMUL


@pytest.mark.slow
def test_class_other_is_at_most_2_percent_of_real_kernel_time(shared: Path, tmp_path: Path) -> None:
    for trace in sorted((shared / "samples" / "kineto").glob("*.json.gz")):
        if "capture" in trace.name or "non_gpu" in trace.name:
            continue
        file = tmp_path / f"{trace.name}.db"
        convert(trace, file)
        with open_analyses(file) as (analysis,):
            assert isinstance(analysis, MsprofAnalysis)
            work = analysis.recording.work
            texts = work.labels
            classified = [
                (class_of(kind, texts.text(kernel), texts.text(operator)), time)
                for kind, kernel, operator, time in zip(
                    work.kind.tolist(),
                    work.kernel.tolist(),
                    work.operator.tolist(),
                    work.duration_ns.tolist(),
                    strict=True,
                )
            ]
            other = sum(time for found, time in classified if found == REST)
            assert other <= 0.02 * sum(time for _, time in classified), trace.name
