"""Classes of device tasks (matmul, normalization, cast...) by names of kernels and operations.

The same model runs different kernels on the devices of different vendors; classes make them
comparable. High-level operations such as attention keep all their kernels, so that a fused kernel
is compared with the unfused ones of the other device. Casts, layout changes and copies are always
separate, because devices differ in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.explain.operation_names import (
    ATTENTION,
    CAST,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    ELEMENT_WISE,
    EMBEDDING,
    MATMUL,
    NORMALISATION,
    OPTIMIZER,
    REDUCTION,
    REST,
    class_of_operation,
)
from unified_prof.recording.breakdowns import finish
from unified_prof.recording.calls import COMMUNICATION, COPY, UNKNOWN, Labels, sort_rows
from unified_prof.recording.framework import OTHER_PASS
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.recording import BreakdownSpec, Recording
from unified_prof.recording.task_order import TaskWindow

CLASSES: Final = (
    MATMUL,
    CONVOLUTION,
    ATTENTION,
    NORMALISATION,
    ELEMENT_WISE,
    REDUCTION,
    EMBEDDING,
    OPTIMIZER,
    CAST,
    COPIES,
    COLLECTIVES,
    REST,
)

# Operations of these classes include all kernels that they launch, except casts.
_KEEP_THEIR_KERNELS: Final = (CONVOLUTION, ATTENTION, NORMALISATION, EMBEDDING, OPTIMIZER)

# Kernels of these classes keep their class within any operation.
_KEEP_THEIR_NAMES: Final = (COLLECTIVES, CAST, COPIES)

_NOTHING: Final = frozenset({"", NOT_AVAILABLE, None})


def _any(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


# The first match decides; each entry precedes those whose words its names may contain as well.
_KERNELS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        COLLECTIVES,
        _any(
            r"nccl|rccl|hccl|hcom",
            r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce",
        ),
    ),
    (CAST, _any(r"reshape_and_cache|store_?kv|kv_?cache.*(?:store|write|copy)|page_indices")),
    (
        ATTENTION,
        _any(
            r"attention|attn|flash_(?:fwd|bwd)|fmha|\bmha_|\bmla_|bwd_kernel_d[qkv]|softmax.*bmm",
            r"flashinfer.*(?:prefill|decode)|kv_indices|reduce_segments",
        ),
    ),
    (
        OPTIMIZER,
        _any(
            r"adam(?:w|a|ax|math|functor|\b|_|v\d)|apply_?(?:adam|momentum|gradient|rms|lamb|sgd)",
            r"fused_?(?:sgd|lamb|adagrad|lion)|(?:sgd|lamb|adagrad|lion)(?:math)?functor",
        ),
    ),
    (
        NORMALISATION,
        _any(
            r"(?:batch|layer|group|instance|rms|renorm|sync_?bn)_?norm|\bln_(?:fwd|bwd)",
            r"cudnn::bn_|\bbn_[fb]w|bn_?training|bn_?infer|welford|gammabeta|rowwise_?moments",
            r"moments_?cuda|batch_?norm",
        ),
    ),
    (
        CAST,
        _any(
            r"nchw_?(?:to|2)_?nhwc|nhwc_?(?:to|2)_?nchw|cnhw|transpose|permute_?kernel|trans_?data",
            r"convert_?tensor|(?<!no)(?<!with)(?<!without)cast(?!_?[a-z]*gemm)|withcasttensor|[a-z\d]_copy_kernel|copyfunctor",
            r"direct_copy|triton_poi_fused__?to_copy_\d+$|quant(?:ize)?(?:_|d|kernel|$)|quantized",
            r"rowwise.*tofloat|floatto",
        ),
    ),
    (
        CONVOLUTION,
        _any(
            r"conv(?!ert)|fprop|dgrad|wgrad|igemm_(?:fwd|bwd|wrw)|winograd|im2col|col2im|scudnn",
            r"xdlops_bwd_weight|miopen.*(?:gemm|sp3)|vol2col|col2vol|fft2d",
            r"(?<!indices)offsets_?kernel",
        ),
    ),
    (
        MATMUL,
        _any(
            r"(?<!fb)gemm|gemv|nvjet|cijk_|mat_?mul|\bbmm|\bmm_|split_?k|stream_?k|xmma|cublas|tensorop_",
            r"dot_?kernel|grouped_mm|addmm|baddbmm|wvsplit|fused_moe|tensile",
        ),
    ),
    (ELEMENT_WISE, _any(r"rotary|rope(?:_|\b|kernel)")),
    (
        EMBEDDING,
        _any(
            r"embedding|gather(?!_?scatter)|scatter|index_?select|index_?put|indexing_backward",
            r"index_?(?:elementwise|kernel|add|copy|fill)|lookup|sparse_(?:data|features)",
        ),
    ),
    (
        CAST,
        _any(
            r"cat_?array|batched_?copy|concat|stack_?kernel|strided_?slice|tensor_?move|as_?strided",
            r"view_?copy|broadcast_?to|constant_pad|(?:^|_)pad(?:d|v\d)?$|unpack|split(?:v?d?)?$",
            r"(?:^|_)slice\w*$|(?:^|_)tile\w?$|identity|contiguous|reformat|(?:^|_)pack$|permute",
            r"copy_page|roll_cuda|flip_kernel|triu_?tril|repeat_interleave|memcpy|copy_kernel",
        ),
    ),
    (COPIES, _any(r"mem_?set")),
    (
        REDUCTION,
        _any(
            r"reduce|softmax|log_?sum_?exp|arg_?(?:max|min)|top_?k|sort|cum_?(?:sum|prod)|scan",
            r"\bcub::|rocprim|nll_?loss|cross_?entropy|pool(?!ed)|histogram|unique|non_?zero",
            r"triton_(?:red|per)_|sum_\w*rows|routing|l1_?norm|l2_?norm|lp_?norm|(?:^|_)sum\w?$|mean_kernel",
            r"bincount|searchsorted|multinomial|any_?kernel|all_?kernel|tensor_?equal",
        ),
    ),
    (
        ELEMENT_WISE,
        _any(
            r"element_?wise|pointwise|triton_poi|multi_tensor_apply|functor|foreach|drop_?out",
            r"gelu|relu|silu|sigmoid|tanh|swish|swi_?glu|act_and_mul|threshold|bias_?act|fill",
            r"add|mul|sub|div|axpy|ones_?like|zeros_?like|\bzeros?\b|where|select(?:v2)?$|clamp",
            r"clip|equal|less|greater|logical|bitwise|not_?equal|pow|sqrt|exp|log|neg|abs|sign",
            r"\bsin|\bcos|\berf|floor|ceil|round|dsa|distribution|random|philox|uniform|normal_",
            r"masked|range|arange|lerp|maximum|minimum|mse|scale|reciprocal|square|mod\b|tensor_?op",
            r"grad$|op_?tensor|assign",
        ),
    ),
)

# Operations of a fused Triton kernel that only move data; one other operation makes it compute.
_LAYOUT_WORDS = (
    "unsafe_view|view|reshape|permute|transpose|t|unsqueeze|squeeze|expand|as_strided|slice|select"
    "|split_with_sizes|split|unbind|clone|to_copy|copy|cat|stack|empty_like|constant_pad_nd|pad|flip"
)
# Kernels that only copy, cast or change the layout.
LAYOUT_KERNEL: Final = re.compile(
    rf"^triton_\w+?_fused(?:_+(?:{_LAYOUT_WORDS}))+(?:_\d+)?$"
    r"|^(?!triton_).*(?<![a-z\d])(?:direct_copy_kernel|(?:batched_)?transpose_(?!conv)\w"
    r"|(?:nchw_?to_?nhwc|nhwc_?to_?nchw|convert_?tensor)\w*_?kernel)",
    re.IGNORECASE,
)
# Framework operations that only copy, cast or change the layout.
LAYOUT_OPERATION: Final = re.compile(r"^aten::(?:to|_to_copy|copy_|contiguous|clone)$")
# Operators of NPUs that only cast or change the format.
NPU_FORMAT_OPERATOR: Final = re.compile(
    r"^(?:TransData|Cast|Transpose|TransposeD|StridedSlice\w*)$"
)
# Kernels of cuBLAS, cuDNN and CUTLASS that multiply in fp32 without tensor cores (nor TF32).
FULL_PRECISION_KERNEL: Final = re.compile(
    r"^(?!.*(?:tf32|fp16|bf16|h884|s884|s1688))"
    r".*(?<![a-z\d])(?:sgemm|scudnn|simt_sgemm|gemm_f32f32_f32f32|fprop_f32f32|dgrad_f32f32)",
    re.IGNORECASE,
)
# Kernels whose names contain the dtype of the product.
PRECISION_IN_NAME: Final = re.compile(
    r"(?<![a-z\d])(?:[hsdi]gemm|[hs]cudnn|[hsi]\d{3,}gemm|tf32|fp16|bf16|f16f16|bf16bf16|f32f32)",
    re.IGNORECASE,
)

_NUMBER: Final = re.compile(r"\d\d+")
# Maximum number of characters of a name to examine.
_MAX_NAME: Final = 4096
_NODE: Final = re.compile(r"Backward\d*$")


def class_of_kernel(name: str | None) -> str | None:
    """Return the class by the name of a kernel or a vendor's operator type, or None."""
    if name is None or name in _NOTHING:
        return None
    # Names that differ only in numbers (instances, tiles, sizes) have the same class.
    return _class_of_kernel(_NUMBER.sub("00", name[:_MAX_NAME]))


@lru_cache(maxsize=1 << 16)
def _class_of_kernel(name: str) -> str | None:
    return next((result for result, pattern in _KERNELS if pattern.search(name)), None)


def class_of(
    kind: int,
    kernel: str | None,
    operator: str | None = None,
    operation: str | None = None,
    *,
    in_optimizer: bool = False,
) -> str:
    """Return the class of a device task, one of CLASSES.

    Args:
        kind: Index in `calls.KINDS`.
        kernel: Name of the kernel.
        operator: Operator type of the vendor, or innermost framework operation.
        operation: Outermost framework operation.
        in_optimizer: True if an optimizer step launched it.
    """
    if kind == COMMUNICATION:
        return COLLECTIVES
    if kind == COPY:
        return COPIES
    of_framework = _is_of_framework(operator)
    # The vendor's type decides over the kernel's name.
    pattern = None if of_framework else class_of_kernel(operator)
    own = pattern or class_of_kernel(kernel)
    if own in _KEEP_THEIR_NAMES:
        return own
    if in_optimizer:
        return OPTIMIZER
    around = (class_of_operation(operator) if of_framework else None, class_of_operation(operation))
    for result in around:
        if result in _KEEP_THEIR_KERNELS:
            return result
    return own or around[0] or around[1] or REST


def classes_of(
    labels: Labels, kind: Ints, kernel: Ints, operator: Ints, operation: Ints, in_optimizer: Ints
) -> NDArray[np.int64]:
    """Return `class_of` for many tasks, as indices in CLASSES; names are numbers in `labels`."""
    cache = _class_caches.setdefault(labels, _ClassCache(labels))
    of_framework = cache.lookup(operator, _is_of_framework) == 1
    kernels = cache.lookup(kernel, _place_of_kernel)
    types = cache.lookup(operator, _place_of_kernel)
    inner = cache.lookup(operator, _place_of_operation)
    inner[~of_framework] = UNKNOWN
    outer = cache.lookup(operation, _place_of_operation)
    own = np.where(of_framework | (types == UNKNOWN), kernels, types)
    result = np.full(len(kind), CLASSES.index(REST), np.int64)
    # From the weakest evidence to the strongest.
    for found in (outer, inner, own):
        result = np.where(found != UNKNOWN, found, result)
    keeping = [CLASSES.index(one) for one in _KEEP_THEIR_KERNELS]
    for found in (outer, inner):
        result = np.where(np.isin(found, keeping), found, result)
    result[in_optimizer != 0] = CLASSES.index(OPTIMIZER)
    named = np.isin(own, [CLASSES.index(one) for one in _KEEP_THEIR_NAMES])
    result = np.where(named, own, result)
    result[kind == COPY] = CLASSES.index(COPIES)
    result[kind == COMMUNICATION] = CLASSES.index(COLLECTIVES)
    return result


class _ClassCache:
    """Classes of names, each determined once."""

    def __init__(self, labels: Labels) -> None:
        self._texts = labels.texts
        self._found: dict[Callable[[str], int | None], NDArray[np.int8]] = {}

    def lookup(self, numbers: Ints, classify: Callable[[str], int | None]) -> NDArray[np.int8]:
        """Return the class of each name by a function of its text; UNKNOWN if there is none."""
        result = self._found.get(classify, np.full(1, UNKNOWN, np.int8))
        if len(result) <= len(self._texts):
            # The value for UNKNOWN is last, as for an index of -1.
            more = np.full(len(self._texts) + 1 - len(result), _NOT_CACHED, np.int8)
            result = np.concatenate((result[:-1], more, result[-1:]))
            self._found[classify] = result
        missing = np.unique(numbers[result[numbers] == _NOT_CACHED])
        for number in missing.tolist():
            place = classify(self._texts[number])
            result[number] = UNKNOWN if place is None else place
        return result[numbers]


_NOT_CACHED: Final = -2
_class_caches: WeakKeyDictionary[Labels, _ClassCache] = WeakKeyDictionary()


def _place_of_kernel(name: str) -> int | None:
    result = class_of_kernel(name)
    return None if result is None else CLASSES.index(result)


def _place_of_operation(name: str) -> int | None:
    result = class_of_operation(name)
    return None if result is None else CLASSES.index(result)


def _is_of_framework(operator: str | None) -> bool:
    """Return True if an operator type is a framework operation, as in recordings of GPUs."""
    return operator is not None and bool("::" in operator or _NODE.search(operator))


def _is_available(recording: Recording) -> bool:
    return recording.clock == "device"


def _breakdown(recording: Recording) -> Breakdown:
    work = recording.work
    _ = work.kernel_numbers, work.operator_numbers
    count, total = np.zeros(len(CLASSES), np.int64), np.zeros(len(CLASSES), np.int64)
    time_of: dict[tuple[int, int], int] = {}
    for window in work.windows():
        called, duration = work.called(window), window.duration_ns.astype(np.int64)
        found = classes_of(
            work.labels,
            window.kind.astype(np.int64),
            window.kernel.astype(np.int64),
            window.operator.astype(np.int64),
            called,
            _in_optimizer(recording, window),
        )
        np.add.at(count, found, 1)
        np.add.at(total, found, duration)
        # The longest operation of a class, or its kernel if unknown, is shown as detail.
        pattern = np.where(called != UNKNOWN, called, window.kernel)
        size = len(work.labels.texts)
        pairs, number = np.unique(found * size + pattern, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, number, duration)
        for pair, time in zip(pairs.tolist(), sums.tolist(), strict=True):
            key = divmod(pair, size)
            time_of[key] = time_of.get(key, 0) + time
    texts = work.labels.texts
    most: dict[int, tuple[int, str]] = {}
    for (place, label), time in time_of.items():
        most[place] = max(most.get(place, (-1, "")), (time, texts[label]))
    rows = [
        Row(
            name=CLASSES[place],
            kind="class",
            count=int(count[place]),
            total_ns=int(total[place]),
            detail=most[place][1],
        )
        for place in np.flatnonzero(count).tolist()
    ]
    return finish("class", sort_rows(rows))


def _in_optimizer(recording: Recording, some: TaskWindow) -> Ints:
    """Return 1 for tasks that an optimizer step launched."""
    if recording.framework is None:
        return np.zeros(len(some), np.int64)
    result: Ints = (recording.work.launches.passes[some.rows] == OTHER_PASS).astype(np.int64)
    return result


BREAKDOWNS = {"class": BreakdownSpec(_is_available, _breakdown)}
