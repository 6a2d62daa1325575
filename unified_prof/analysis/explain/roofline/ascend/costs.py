"""What the operators of an Ascend cost, by their types and the shapes and formats of their tensors.

Results are recorded as well, so bytes are what the operator reads and writes in its own layout.
"""

from __future__ import annotations

from collections.abc import Callable

from unified_prof.analysis.explain.roofline.ascend.attention import attention, attention_backward
from unified_prof.analysis.explain.roofline.ascend.matrices import (
    convolution,
    convolution_input,
    convolution_weight,
    grouped_matmul,
    matmul,
)
from unified_prof.analysis.explain.roofline.ascend.recorded import Operator
from unified_prof.analysis.explain.roofline.costs.cost import Cost
from unified_prof.analysis.explain.roofline.tensors import UntoldError


def cost(operator: Operator) -> Cost:
    """Return what an operator costs.

    Raises:
        UntoldError: that cannot be told of what was recorded.
    """
    if not operator.inputs and not operator.outputs:
        raise UntoldError("the shapes of its tensors were not recorded (msprof records them)")
    name = operator.op_type
    for start, formula in _BY_START:
        if name.startswith(start):
            return formula(operator)
    if (operations := _OPERATIONS.get(name)) is not None:
        return _vector(operator, operations)
    if name.startswith(_COPIES):
        return Cost("copy", _main(operator), 0, operator.moved_bytes)
    doubt = "what it calculates is not known, only what it moves"
    return Cost("copy", _main(operator), 0, operator.moved_bytes, doubt=doubt)


def _main(operator: Operator) -> str:
    """Return the type that an operator works in."""
    every = (*operator.inputs, *operator.outputs)
    largest = max(every, key=lambda one: one.tensor.elements)
    return largest.tensor.dtype


def _vector(operator: Operator, operations: int) -> Cost:
    """Return the cost of so many operations for each element of the largest tensor."""
    elements = max(one.tensor.elements for one in (*operator.inputs, *operator.outputs))
    return Cost("vector", _main(operator), operations * elements, operator.moved_bytes)


def _foreach(operator: Operator) -> Cost:
    elements = sum(one.tensor.elements for one in operator.outputs)
    return Cost("vector", _main(operator), elements, operator.moved_bytes)


def _gather(operator: Operator) -> Cost:
    result, index = operator.output().tensor, operator.input(1).tensor
    return Cost("copy", result.dtype, 0, 2 * result.bytes + index.bytes)


Formula = Callable[[Operator], Cost]

_BY_START: tuple[tuple[str, Formula], ...] = (
    ("QuantBatchMatmul", matmul),
    ("WeightQuantBatchMatmul", matmul),
    ("BatchMatMul", matmul),
    ("BatchMatmul", matmul),
    ("GroupedMatmul", grouped_matmul),
    ("MatMul", matmul),
    ("Matmul", matmul),
    ("Gemm", matmul),
    ("Conv2DBackpropInput", convolution_input),
    ("Conv3DBackpropInput", convolution_input),
    ("Conv2DBackpropFilter", convolution_weight),
    ("Conv3DBackpropFilter", convolution_weight),
    ("Conv2DTranspose", convolution_input),
    ("Conv2D", convolution),
    ("Conv3D", convolution),
    ("FlashAttentionScoreGrad", attention_backward),
    ("FlashAttentionScore", attention),
    ("PromptFlashAttention", attention),
    ("IncreFlashAttention", attention),
    ("FusedInferAttentionScore", attention),
    ("Foreach", _foreach),
    ("Gather", _gather),
    ("EmbeddingDenseGrad", lambda operator: _vector(operator, 1)),
    ("Embedding", _gather),
)
_COPIES = (
    "Cast",
    "TransData",
    "Transpose",
    "TensorMove",
    "MemSet",
    "Slice",
    "StridedSlice",
    "Concat",
    "Split",
    "BroadcastTo",
    "Tile",
    "Fill",
    "ZerosLike",
    "OnesLike",
    "Pad",
    "Pack",
    "Identity",
    "ViewCopy",
    "AsStrided",
)
_OPERATIONS = {
    **dict.fromkeys(
        "Add AddV2 Adds Sub Mul Muls Div RealDiv Maximum Minimum Pow Neg Abs Exp Log Sqrt Rsqrt"
        " Tanh Erf Relu ReluGrad ReluV2 Sign Floor Ceil Equal NotEqual Less LessEqual Greater"
        " GreaterEqual LogicalAnd LogicalOr LogicalNot Select SelectV2 ReduceSum ReduceSumD"
        " ReduceMean ReduceMeanD ReduceMax ReduceMaxD ReduceMin ReduceMinD Cumsum Square"
        " Reciprocal DropOutDoMask DropOutDoMaskV3".split(),
        1,
    ),
    **dict.fromkeys("Axpy AxpyV2 ClipByValue ClipByValueV2".split(), 2),
    **dict.fromkeys("TanhGrad SigmoidGrad Lerp Addcmul Addcdiv".split(), 3),
    **dict.fromkeys("Sigmoid SoftmaxGrad LogSoftmaxGrad".split(), 4),
    **dict.fromkeys("Gelu FastGelu Swish Silu SwiGlu SoftmaxV2 LogSoftmaxV2 RmsNorm".split(), 5),
    **dict.fromkeys("AddRmsNorm".split(), 6),
    **dict.fromkeys("BNTrainingUpdate SwishGrad SiluGrad SwiGluGrad BatchNormV3".split(), 7),
    **dict.fromkeys("LayerNorm LayerNormV3 LayerNormV4 GroupNorm GroupNormSilu".split(), 8),
    **dict.fromkeys("GeluGrad FastGeluGrad RmsNormGrad".split(), 10),
    **dict.fromkeys("ApplyAdam ApplyAdamW ApplyAdamWV2 ApplyAdamD ApplyAdamWD".split(), 12),
    **dict.fromkeys("LayerNormGrad LayerNormGradV3 LayerNormBetaGammaBackpropV2".split(), 14),
}
"""Floating-point operations for each element of the largest tensor of an operator."""
