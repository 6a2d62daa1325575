"""Cost of Ascend operators, by their types and the shapes and formats of their tensors.

Results are recorded as well, so bytes are those that the operator reads and writes in its own
layout. Private formats pad the sizes of matrix operations: unpadded sizes of the framework
operation are used if available, otherwise the cost is marked as padded. For fused attention, the
order of dimensions is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from msgspec import Struct

from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.explain.roofline.arguments import (
    Arguments,
    Shape,
    Tensor,
    UnknownCostError,
    dims,
    dtype_of,
    split,
)
from unified_prof.explain.roofline.costs import Attention, Cost
from unified_prof.explain.roofline.serving_formulas import formula_of

_UNKNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNDEFINED"})


class StoredTensor(Struct, frozen=True):
    """A tensor in its memory format."""

    tensor: Tensor
    layout: str

    @property
    def is_padded(self) -> bool:
        """True if the format rounds sizes up."""
        return self.layout.startswith("FRACTAL") or "C1" in self.layout

    @property
    def sizes(self) -> Shape:
        """Sizes as a batch of matrices, rounded up if the format does so."""
        shape = self.tensor.shape
        if self.layout == "FRACTAL_NZ" and len(shape) >= 4:
            return (*shape[:-4], shape[-3] * shape[-2], shape[-4] * shape[-1])
        return shape


class Framework(Struct, frozen=True):
    """The operation of the framework that launched an operator."""

    # Without its namespace.
    name: str
    arguments: Arguments


class Operator(Struct, frozen=True):
    """Type, tensors and launching operation of one operator."""

    op_type: str
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]
    framework: Framework | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written; every tensor counts once."""
        return sum(one.tensor.bytes for one in (*self.inputs, *self.outputs))

    def input(self, place: int) -> StoredTensor:
        """Return an input; raises UnknownCostError if it was not recorded."""
        if place >= len(self.inputs):
            raise UnknownCostError("the shapes of its inputs were not recorded")
        return self.inputs[place]

    def output(self) -> StoredTensor:
        """Return the first result; raises UnknownCostError if it was not recorded."""
        if not self.outputs:
            raise UnknownCostError("the shapes of its results were not recorded")
        return self.outputs[0]


def stored_tensors(
    shapes: str | None, types: str | None, formats: str | None
) -> tuple[StoredTensor, ...]:
    """Parse the tensors of an operator from the texts of COMPUTE_TASK_INFO.

    Raises:
        UnknownCostError: A shape or a dtype is unknown.
    """
    if (shapes or "").strip('" ') in _UNKNOWN and (types or "") in _UNKNOWN:
        return ()
    of_formats = split(formats)
    result = []
    for place, (shape, dtype) in enumerate(zip(split(shapes), split(types), strict=False)):
        if dtype in _UNKNOWN:
            continue
        layout = of_formats[place] if place < len(of_formats) else ""
        layout = layout.removeprefix("FORMAT_").partition(":")[0]
        result.append(StoredTensor(Tensor(dims(shape), dtype_of(dtype)), layout))
    return tuple(result)


def _attention_sizes(operator: Operator, others: Sequence[StoredTensor]) -> Attention:
    """Return the sizes of fused attention.

    The order of dimensions is not recorded. The maxima of its softmax have the shape B, N, S, 8,
    which distinguishes heads and sequence.
    """
    q, k, v = (operator.input(place).tensor for place in range(3))
    shapes = [one.tensor.shape for one in others if one.tensor.dtype == "fp32"]
    maxima = [shape for shape in shapes if shape[3:] == (8,)]
    if not maxima:
        return _inference_sizes(q, k, v)
    batch, heads, queries, _ = maxima[0]
    depth, rest = divmod(q.elements, batch * heads * queries)
    if rest or not depth or not q.elements:
        raise UnknownCostError("its queries and its softmax do not match")
    place = _sequence_dim(q.shape, batch, queries, heads)
    keys = k.shape[place]
    key_heads, rest = divmod(k.elements, batch * keys * depth)
    if rest or not key_heads:
        raise UnknownCostError("its queries and its keys do not match")
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


def _sequence_dim(shape: Shape, batch: int, queries: int, heads: int) -> int:
    """Return the index of the sequence dimension."""
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
    raise UnknownCostError("the order of its dimensions is unknown")


def _inference_sizes(q: Tensor, k: Tensor, v: Tensor) -> Attention:
    """Return the sizes of attention in inference, if they do not depend on the order."""
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise UnknownCostError("the order of its dimensions is unknown")
    if q.shape[-1] != k.shape[-1]:
        raise UnknownCostError("its queries and its keys do not match")
    if q.shape[2] == 1 and q.shape[1] != 1:
        heads_first = True
    elif q.shape[1] == 1 and q.shape[2] != 1:
        heads_first = False
    elif q.shape[1] == q.shape[2] and k.shape[1] == k.shape[2]:
        heads_first = True
    else:
        raise UnknownCostError("the order of its dimensions is unknown")
    return Attention.from_tensors(
        q, k, v, heads_first=heads_first, causal_known=q.shape[1 + heads_first] == 1
    )


_PADDED = "sizes include padding of the layout: FLOPs are an upper limit"


def matmul(operator: Operator) -> Cost:
    """Return the cost of a matrix product, by the result and the inner size of the left factor."""
    a, b, result = operator.input(0), operator.input(1), operator.output()
    sizes = result.sizes
    if len(sizes) < 2:
        raise UnknownCostError("its result is not a matrix")
    m, n = sizes[-2:]
    k = _inner(a, m)
    # A factor without batch dimensions is the same for the whole batch.
    if _inner(b, n) != k:
        raise UnknownCostError("the inner sizes of its operands differ")
    moved = operator.moved_bytes
    dtype = a.tensor.dtype
    flops = 2 * prod(sizes) * k
    if not (a.is_padded or b.is_padded or result.is_padded):
        inner = (*a.sizes[-1:], *b.sizes[-1:], n)
        return Cost("matrix", dtype, flops, moved, inner=inner)
    exact = _framework_flops(operator, _PRODUCTS)
    # If the framework operation launches several products, its sizes are not those of one.
    if exact is not None and flops / 4096 <= exact <= flops:
        return Cost("matrix", dtype, exact, moved)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


def _inner(factor: StoredTensor, other: int) -> int:
    sizes = factor.sizes
    if len(sizes) < 2 or not other:
        raise UnknownCostError("an operand is not a matrix")
    rows, columns = sizes[-2:]
    if rows == other:
        return columns
    if columns == other:
        return rows
    raise UnknownCostError("the shapes of its inputs and its result do not match")


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv"})


def _framework_flops(operator: Operator, names: frozenset[str]) -> int | None:
    """Return the FLOPs of the framework operation if it has one of the names."""
    framework = operator.framework
    if framework is None or framework.name not in names:
        return None
    formula = formula_of(framework.name)
    assert formula is not None, f"{framework.name} has a formula"
    try:
        return formula(framework.arguments).flops
    except UnknownCostError:
        return None


def grouped_matmul(operator: Operator) -> Cost:
    """Return the cost of products of groups of rows, each with its own factor."""
    x, result = operator.input(0), operator.output()
    if len(x.tensor.shape) < 2:
        raise UnknownCostError("an operand is not a matrix")
    flops = 2 * result.tensor.elements * x.sizes[-1]
    return Cost("matrix", x.tensor.dtype, flops, operator.moved_bytes)


def convolution_input(operator: Operator) -> Cost:
    """Return the cost of the gradient of the input."""
    *_, weight, dy = operator.inputs if len(operator.inputs) >= 2 else (operator.input(1),) * 2
    return _windows(operator, dy, weight, dy)


def convolution_weight(operator: Operator) -> Cost:
    """Return the cost of the gradient of the weight."""
    dy = operator.input(len(operator.inputs) - 1)
    return _windows(operator, operator.input(0), operator.output(), dy)


def _windows(operator: Operator, data: StoredTensor, weight: StoredTensor, y: StoredTensor) -> Cost:
    """Return the cost of a convolution or one of its gradients: a window for every result."""
    dtype = data.tensor.dtype
    moved = operator.moved_bytes
    if not (weight.is_padded or y.is_padded):
        flops = 2 * y.tensor.elements * prod(weight.tensor.shape[1:])
        return Cost("matrix", dtype, flops, moved)
    framework = operator.framework
    if framework is not None and (place := _WEIGHT_OF.get(framework.name)) is not None:
        given = framework.arguments.optional(place)
        if given is not None and len(given.shape) > 2:
            flops = 2 * _positions(y) * prod(given.shape)
            return Cost("matrix", dtype, flops, moved)
    shape = weight.tensor.shape
    if len(shape) != 4:
        raise UnknownCostError(f"the layout {weight.layout or 'of its weight'} is not known")
    # Window and input channels in the first and the last, output channels in the others.
    flops = 2 * _positions(y) * prod(shape)
    return Cost("matrix", dtype, flops, moved, doubt=_PADDED)


_WEIGHT_OF = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "npu_conv2d"), 1),
    "convolution_backward": 2,
    "npu_convolution_backward": 2,
}


def _positions(y: StoredTensor) -> int:
    """Return the number of results of a convolution per channel."""
    shape = y.tensor.shape
    if y.layout == "NC1HWC0" and len(shape) == 5:
        return shape[0] * shape[2] * shape[3]
    if y.layout == "NDC1HWC0" and len(shape) == 6:
        return shape[0] * shape[1] * shape[3] * shape[4]
    if y.layout in ("NHWC", "NDHWC"):
        return prod(shape[:-1])
    if y.is_padded or len(shape) < 3:
        raise UnknownCostError(f"the layout {y.layout or 'of its result'} is not known")
    return shape[0] * prod(shape[2:])


def cost(operator: Operator) -> Cost:
    """Return the cost of an operator.

    Raises:
        UnknownCostError: The cost is unknown.
    """
    if not operator.inputs and not operator.outputs:
        raise UnknownCostError("the shapes of its tensors were not recorded (msprof records them)")
    name = operator.op_type
    for prefix, formula in _BY_PREFIX.items():
        if name.startswith(prefix):
            return formula(operator)
    if (operations := _OPERATIONS.get(name)) is not None:
        return _vector(operator, operations)
    if name.startswith(_COPIES):
        return Cost("copy", _main(operator), 0, operator.moved_bytes)
    doubt = "no formula for its FLOPs, only its bytes are known"
    return Cost("copy", _main(operator), 0, operator.moved_bytes, doubt=doubt)


def _main(operator: Operator) -> str:
    """Return the dtype of an operator's largest tensor."""
    every = (*operator.inputs, *operator.outputs)
    largest = max(every, key=lambda one: one.tensor.elements)
    return largest.tensor.dtype


def _vector(operator: Operator, operations: int) -> Cost:
    """Return the cost of some operations for each element of the largest tensor."""
    elements = max(one.tensor.elements for one in (*operator.inputs, *operator.outputs))
    return Cost("vector", _main(operator), operations * elements, operator.moved_bytes)


def _foreach(operator: Operator) -> Cost:
    elements = sum(output.tensor.elements for output in operator.outputs)
    return Cost("vector", _main(operator), elements, operator.moved_bytes)


def _gather(operator: Operator) -> Cost:
    result, index = operator.output().tensor, operator.input(1).tensor
    return Cost("copy", result.dtype, 0, 2 * result.bytes + index.bytes)


Formula = Callable[[Operator], Cost]

# The first prefix of an operator type that matches decides.
_BY_PREFIX: dict[str, Formula] = {
    **dict.fromkeys(
        "QuantBatchMatmul WeightQuantBatchMatmul BatchMatMul BatchMatmul MatMul Matmul"
        " Gemm".split(),
        matmul,
    ),
    "GroupedMatmul": grouped_matmul,
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInput", "Conv2DTranspose"), convolution_input
    ),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilter"), convolution_weight),
    **dict.fromkeys(
        ("Conv2D", "Conv3D"), lambda one: _windows(one, one.input(0), one.input(1), one.output())
    ),
    "FlashAttentionScoreGrad": lambda one: _attention_sizes(one, one.inputs[3:]).cost(
        backward=True
    ),
    **dict.fromkeys(
        "FlashAttentionScore PromptFlashAttention IncreFlashAttention"
        " FusedInferAttentionScore".split(),
        lambda one: _attention_sizes(one, one.outputs).cost(),
    ),
    "Foreach": _foreach,
    "Gather": _gather,
    "EmbeddingDenseGrad": lambda operator: _vector(operator, 1),
    "Embedding": _gather,
}
_COPIES = tuple(
    "Cast TransData Transpose TensorMove MemSet Slice StridedSlice Concat Split BroadcastTo Tile"
    " Fill ZerosLike OnesLike Pad Pack Identity ViewCopy AsStrided".split()
)
# Floating-point operations for each element of the largest tensor of an operator.
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
