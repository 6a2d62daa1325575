"""Operators of an Ascend as recorded: type, tensors in their layouts, what launched it.

What fused attention of an Ascend costs: which dimension is which is not recorded.

What matrix products and convolutions of an Ascend cost.

Private formats pad the sizes of matrix operations; where the framework's operation says the sizes
without padding, those count, else the cost says that it is padded.

What the operators of an Ascend cost, by their types and the shapes and formats of their tensors.

Results are recorded as well, so bytes are what the operator reads and writes in its own layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from unified_prof.base.vocabulary import NOT_AVAILABLE
from unified_prof.explain.roofline.arguments import (
    Arguments,
    Shape,
    Tensor,
    UntoldError,
    dims,
    dtype_of,
    split,
)
from unified_prof.explain.roofline.costs import Attention, Cost
from unified_prof.explain.roofline.serving_formulas import formula_of

_UNKNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNDEFINED"})


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor as it lies in memory, in a format."""

    tensor: Tensor
    layout: str

    @property
    def is_padded(self) -> bool:
        """Whether its format rounds sizes up."""
        return self.layout.startswith("FRACTAL") or "C1" in self.layout

    @property
    def sizes(self) -> Shape:
        """Its sizes as a batch of matrices, rounded up where the format does."""
        shape = self.tensor.shape
        if self.layout == "FRACTAL_NZ" and len(shape) >= 4:
            return (*shape[:-4], shape[-3] * shape[-2], shape[-4] * shape[-1])
        return shape


@dataclass(frozen=True, slots=True)
class Framework:
    """The operation of the framework that launched an operator."""

    name: str
    """Without its namespace."""
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Operator:
    """What was recorded of one operator."""

    op_type: str
    inputs: tuple[Laid, ...]
    outputs: tuple[Laid, ...]
    framework: Framework | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes, every tensor once."""
        return sum(one.tensor.bytes for one in (*self.inputs, *self.outputs))

    def input(self, place: int) -> Laid:
        """Return an input.

        Raises:
            UntoldError: there are not as many.
        """
        if place >= len(self.inputs):
            raise UntoldError("the shapes of its inputs were not recorded")
        return self.inputs[place]

    def output(self) -> Laid:
        """Return the first result.

        Raises:
            UntoldError: there is none.
        """
        if not self.outputs:
            raise UntoldError("the shapes of its results were not recorded")
        return self.outputs[0]


def laid(shapes: str | None, types: str | None, formats: str | None) -> tuple[Laid, ...]:
    """Read the tensors of an operator from the texts of COMPUTE_TASK_INFO.

    Raises:
        UntoldError: shapes are not known, or a type is not.
    """
    if (shapes or "").strip('" ') in _UNKNOWN and (types or "") in _UNKNOWN:
        return ()
    of_formats = split(formats)
    found = []
    for place, (shape, dtype) in enumerate(zip(split(shapes), split(types), strict=False)):
        if dtype in _UNKNOWN:
            continue
        layout = of_formats[place] if place < len(of_formats) else ""
        layout = layout.removeprefix("FORMAT_").partition(":")[0]
        found.append(Laid(Tensor(dims(shape), dtype_of(dtype)), layout))
    return tuple(found)


# Attention


def attention(operator: Operator) -> Cost:
    """Return what fused attention costs."""
    return _attention_sizes(operator, operator.outputs).forward()


def attention_backward(operator: Operator) -> Cost:
    """Return what the gradients of fused attention cost."""
    return _attention_sizes(operator, operator.inputs[3:]).backward()


def _attention_sizes(operator: Operator, others: Sequence[Laid]) -> Attention:
    """Return the sizes of fused attention.

    Which dimension is which is not recorded. The maxima of its softmax are B, N, S and 8 times the
    same: they tell the heads from the sequence.
    """
    q, k, v = (operator.input(place).tensor for place in range(3))
    maxima = next(
        (
            one.tensor.shape
            for one in others
            if len(one.tensor.shape) == 4
            and one.tensor.shape[-1] == 8
            and one.tensor.dtype == "fp32"
        ),
        None,
    )
    if maxima is None:
        return _without_maxima(q, k, v)
    batch, heads, queries, _ = maxima
    depth, rest = divmod(q.elements, batch * heads * queries)
    if rest or not depth or not q.elements:
        raise UntoldError("its queries and its softmax do not go together")
    place = _sequence(q.shape, batch, queries, heads)
    keys = k.shape[place]
    key_heads, rest = divmod(k.elements, batch * keys * depth)
    if rest or not key_heads:
        raise UntoldError("its queries and its keys do not go together")
    return Attention(
        batch=batch,
        heads=heads,
        key_heads=key_heads,
        queries=queries,
        keys=keys,
        depth=depth,
        value_depth=v.elements // (batch * keys * key_heads),
        dtype=q.dtype,
        causal_known=False,
    )


def _sequence(shape: Shape, batch: int, queries: int, heads: int) -> int:
    """Return the dimension that is the sequence."""
    if len(shape) == 4:  # B, N, S, D or B, S, N, D
        if shape[2] == queries and shape[1] == heads:
            return 2
        if shape[1] == queries and shape[2] == heads:
            return 1
    if len(shape) == 3:  # B, S, H or S, B, H
        if shape[1] == queries and shape[0] == batch:
            return 1
        if shape[0] == queries and shape[1] == batch:
            return 0
    raise UntoldError("the order of its dimensions cannot be told")


def _without_maxima(q: Tensor, k: Tensor, v: Tensor) -> Attention:
    """Return the sizes of attention of inference, where they do not depend on the order."""
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise UntoldError("the order of its dimensions cannot be told")
    if q.shape[-1] != k.shape[-1]:
        raise UntoldError("its queries and its keys do not go together")
    if q.shape[2] == 1 and q.shape[1] != 1:
        heads_first = True
    elif q.shape[1] == 1 and q.shape[2] != 1:
        heads_first = False
    elif q.shape[1] == q.shape[2] and k.shape[1] == k.shape[2]:
        heads_first = True
    else:
        raise UntoldError("the order of its dimensions cannot be told")
    return Attention.of(
        q, k, v, heads_first=heads_first, causal_known=q.shape[1 + heads_first] == 1
    )


_PADDED = "sizes are padded by the layout: FLOPs are at most these"


# Matrix products


def matmul(operator: Operator) -> Cost:
    """Return what a product costs: rows and columns of the result, the rest of the left factor."""
    a, b, result = operator.input(0), operator.input(1), operator.output()
    sizes = result.sizes
    if len(sizes) < 2:
        raise UntoldError("its result is no matrix")
    m, n = sizes[-2:]
    k = _inner(a, m)
    # A factor without the batch is one for all of it.
    if _inner(b, n) != k:
        raise UntoldError("the inner sizes of its factors differ")
    moved = operator.moved_bytes
    dtype = a.tensor.dtype
    flops = 2 * prod(sizes) * k
    if not (a.is_padded or b.is_padded or result.is_padded):
        return Cost("matrix", dtype, flops, moved)
    exact = _of_framework(operator, _PRODUCTS)
    # The sizes of an operation that launches several products are not those of one.
    if exact is not None and flops / 4096 <= exact <= flops:
        return Cost("matrix", dtype, exact, moved)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


def _inner(factor: Laid, other: int) -> int:
    sizes = factor.sizes
    if len(sizes) < 2 or not other:
        raise UntoldError("a factor is no matrix")
    rows, columns = sizes[-2:]
    if rows == other:
        return columns
    if columns == other:
        return rows
    raise UntoldError("its factors and its result do not go together")


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv"})


def _of_framework(operator: Operator, names: frozenset[str]) -> int | None:
    """Return the FLOPs of the framework's operation if it is one of these."""
    around = operator.framework
    if around is None or around.name not in names:
        return None
    formula = formula_of(around.name)
    assert formula is not None, f"{around.name} has a formula"
    try:
        return formula(around.arguments).flops
    except UntoldError:
        return None


def grouped_matmul(operator: Operator) -> Cost:
    """Return what the products of groups of rows cost, each with a factor of its own."""
    x, result = operator.input(0), operator.output()
    if len(x.tensor.shape) < 2:
        raise UntoldError("a factor is no matrix")
    flops = 2 * result.tensor.elements * x.sizes[-1]
    return Cost("matrix", x.tensor.dtype, flops, operator.moved_bytes)


# Convolutions


def convolution(operator: Operator) -> Cost:
    """Return what a convolution costs."""
    return _windows(operator, operator.input(0), operator.input(1), operator.output())


def convolution_input(operator: Operator) -> Cost:
    """Return what the gradient of its input costs."""
    *_, weight, dy = operator.inputs if len(operator.inputs) >= 2 else (operator.input(1),) * 2
    return _windows(operator, dy, weight, dy)


def convolution_weight(operator: Operator) -> Cost:
    """Return what the gradient of its weight costs."""
    dy = operator.input(len(operator.inputs) - 1)
    return _windows(operator, operator.input(0), operator.output(), dy)


def _windows(operator: Operator, data: Laid, weight: Laid, y: Laid) -> Cost:
    """Return what a convolution or one of its gradients costs: a window for every result."""
    dtype = data.tensor.dtype
    moved = operator.moved_bytes
    if not (weight.is_padded or y.is_padded):
        flops = 2 * y.tensor.elements * prod(weight.tensor.shape[1:])
        return Cost("matrix", dtype, flops, moved)
    around = operator.framework
    if around is not None and (place := _WEIGHT_OF.get(around.name)) is not None:
        given = around.arguments.optional(place)
        if given is not None and len(given.shape) > 2:
            positions = _positions(y)
            flops = 2 * positions * prod(given.shape)
            return Cost("matrix", dtype, flops, moved)
    shape = weight.tensor.shape
    if len(shape) != 4:
        raise UntoldError(f"the layout {weight.layout or 'of its weight'} is not known")
    # Window and input channels in the first and the last, output channels in the others.
    flops = 2 * _positions(y) * prod(shape)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


_WEIGHT_OF = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "npu_conv2d"), 1),
    "convolution_backward": 2,
    "npu_convolution_backward": 2,
}


def _positions(y: Laid) -> int:
    """Return the results of a convolution without their channels."""
    shape = y.tensor.shape
    if y.layout == "NC1HWC0" and len(shape) == 5:
        return shape[0] * shape[2] * shape[3]
    if y.layout == "NDC1HWC0" and len(shape) == 6:
        return shape[0] * shape[1] * shape[3] * shape[4]
    if y.layout in ("NHWC", "NDHWC"):
        return prod(shape[:-1])
    if y.is_padded or len(shape) < 3:
        raise UntoldError(f"the layout {y.layout or 'of its result'} is not known")
    return shape[0] * prod(shape[2:])


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
