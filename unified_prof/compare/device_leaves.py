"""One name for an operation, whichever backend's word a recording has for it.

The work of one recording, summed up as finely as it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.packed import Packed, Packing
from unified_prof.arrays.types import Ints
from unified_prof.explain.kernel_classes import CLASSES, classes_of
from unified_prof.explain.roofline.arguments import dtype_of
from unified_prof.explain.roofline.peaks import RATES
from unified_prof.recording.calls import COMMUNICATION, COPY, UNKNOWN, Labels
from unified_prof.recording.collectives import canonical as kind_of_collective
from unified_prof.recording.framework import NONE, NOT_ATTRIBUTED, OTHER_PASS, Framework
from unified_prof.recording.recording import Recording
from unified_prof.recording.replayed_graphs import Captured
from unified_prof.recording.task_order import Pieces

_NODE: Final = re.compile(r"Backward\d*$")
_WORDS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TYPE: Final = re.compile(r"[A-Z][A-Za-z\d]{1,60}$")
"""An operator type of CANN: `MatMulV2`, `FlashAttentionScoreGrad`."""
_VERSION: Final = re.compile(r"V\d+$|(?<=[a-z])D$")
_DIMENSIONS: Final = re.compile(r"\[(\d[\d,]*)\]")
_TYPES_OF_INPUTS: Final = re.compile(r"([A-Za-z][\w ]*)\[\d")
_OPTIMIZER: Final = "Optimizer.step#"
_BACKENDS: Final = ("_npu_", "npu_", "miopen_", "cudnn_", "native_", "mkldnn_", "hip_", "cuda_")

_SAME: Final = {
    name: one
    for one, names in {
        "scaled_dot_product_attention": (
            "scaled_dot_product_flash_attention scaled_dot_product_efficient_attention "
            "scaled_dot_product_cudnn_attention scaled_dot_product_attention_math "
            "scaled_dot_product_fused_attention_overrideable flash_attention_forward "
            "efficient_attention_forward fusion_attention fusion_attention_v2 "
            "prompt_flash_attention incre_flash_attention fused_infer_attention_score "
            "flash_attention_score unified_attention unified_attention_with_output flash_attention"
        ),
        "matmul": "mat_mul batch_mat_mul batch_matmul",
        "convolution": "cudnn_convolution miopen_convolution slow_conv2d_forward",
        "layer_norm": "native_layer_norm",
        "batch_norm": "native_batch_norm _batch_norm_impl_index",
        "rms_norm": "fused_rms_norm rms_norm_forward add_rms_norm",
        "softmax": "softmax_v2 _softmax",
        "log_softmax": "log_softmax_v2",
        "silu": "swish",
        "mul": "muls",
        "add": "adds",
        "div": "divs real_div",
        "rotary_embedding": "rotary_mul rotary_position_embedding apply_rotary_pos_emb rope",
        "to": "_to_copy to_copy",
        "fused_adamw": "fused_adamw_ apply_adam_w apply_adam_wv2 apply_adam_w_v2",
        "fused_adam": "fused_adam_ apply_adam apply_adam_v2",
    }.items()
    for name in names.split()
}


@lru_cache(maxsize=1 << 16)
def canonical(name: str) -> str:
    """Return the one name of an operation: without namespace, backend and version.

    `aten::linear` is linear, `npu::npu_fusion_attention` the attention that it stands for,
    `MatMulV2` matmul. What is not known keeps its name.
    """
    if "<" in name or len(name) > 200:
        return name
    if name.startswith(_OPTIMIZER):
        return name.removeprefix(_OPTIMIZER)
    bare = name.rpartition("::")[2] or name
    if _NODE.search(bare):
        return f"{canonical(_snake(_NODE.sub('', bare)))} backward"
    if bare == name and _TYPE.match(name):
        bare = _snake(_VERSION.sub("", name))
    for backend in _BACKENDS:
        if bare.startswith(backend):
            bare = bare.removeprefix(backend)
            break
    found = _SAME.get(bare)
    if found is None:
        short = bare.lstrip("_")
        found = _SAME.get(short, short)
    return found or name


def _snake(name: str) -> str:
    return _WORDS.sub("_", name).lower()


@lru_cache(maxsize=1 << 16)
def shape(text: str | None) -> str | None:
    """Return recorded input shapes as people read them: `8x197x768, 768x768`; None: none."""
    if text is None:
        return None
    parts = ["x".join(part.split(",")) for part in re.split(r"[;\s\"]+", text) if part.strip(" |,")]
    return ", ".join(parts) or None


@lru_cache(maxsize=1 << 16)
def shape_of_inputs(text: str) -> str | None:
    """Return the same of inputs with their types: `float[8,768], long int[7]`; None: none.

    What has no dimensions is a number, or an argument that was not given.
    """
    found = [dims.replace(",", "x") for dims in _DIMENSIONS.findall(text)]
    return ", ".join(found) or None


@lru_cache(maxsize=1 << 16)
def dtype_of_inputs(text: str) -> str | None:
    """Return the type that an operation calculates in: that of its first input with a peak."""
    told = (dtype_of(kind) for kind in _TYPES_OF_INPUTS.findall(text))
    return next((dtype for dtype in told if dtype in RATES), None)


def together(names: Iterable[str]) -> tuple[str, ...]:
    """Return distinct names in order of first use."""
    return tuple(dict.fromkeys(names))


KEPT: Final = ("class", "operation", "shape", "module", "line", "kernel", "called", "dtype")
"""What identifies work; each is a column of numbers in the labels."""

_UNKNOWN_KIND: Final = "collective of unknown kind"
NO_OPERATION: Final = "(kernels of no operation)"
_ROOM: Final = 1 << 62
_UNNAMED: Final = "(unnamed)"
_MANY: Final = 1 << 20
"""Rows that are put together before more are made."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """Device work summed up as finely as it is compared: one row for each combination of columns.

    `calls` counts the operations that launched work of a class, each in one row only; `runs` counts
    kernels, copies and collectives.
    """

    columns: Mapping[str, Ints]
    calls: Ints
    runs: Ints
    total_ns: Ints

    def __len__(self) -> int:
        return len(self.total_ns)

    def same_figures(self, other: Leaves) -> bool:
        """Tell whether both have the same rows; their numbers have to be of the same labels."""
        columns = [(self.columns[name], other.columns[name]) for name in KEPT]
        columns += [(self.calls, other.calls), (self.runs, other.runs)]
        columns.append((self.total_ns, other.total_ns))
        return all(np.array_equal(own, theirs) for own, theirs in columns)


@dataclass(frozen=True, slots=True)
class Naming:
    """What work counts for; both sides have to agree on it."""

    by_framework: bool = True
    """For the framework's operations, where they are known; else for the kind of kernel."""
    by_kernel: bool = True
    """Where neither is known, for the kernel by its name; else for the kernels of its class."""


def leaves_of(recording: Recording, labels: Labels, naming: Naming) -> tuple[Leaves, int]:
    """Return the work of the steps (all work, where there are none), and the time of the rest."""
    reader = _Reader(recording, labels, naming)
    parts = [joined([])]
    outside = 0
    for pieces in recording.work.windows():
        rows = reader.of_steps(pieces)
        outside += int(pieces.duration_ns.sum(dtype=np.int64))
        leaves = reader.leaves(pieces, rows)
        outside -= int(leaves.total_ns.sum())
        parts.append(leaves)
        if sum(map(len, parts)) > _MANY:
            parts = [joined(parts)]
    return joined(parts), outside


class _Reader:
    """Reads pieces of work, some at a time: what is of a call is looked up once for all of it."""

    def __init__(self, recording: Recording, labels: Labels, naming: Naming) -> None:
        self._recording, self._labels, self._naming = recording, labels, naming
        self._own = np.zeros(0, np.int64)
        self._shapes = _ShapesOfKernels(recording, labels)
        self._collectives = _collectives(recording, labels)
        framework = recording.framework
        self._launches = None if framework is None else recording.work.launches
        self._ranges = 0 if framework is None else len(framework)
        """How many ranges there are here; those of a capture come after them."""
        self._of_range, self._texts = self._calls()
        self._replays = _replays(recording.work.captured)
        """Of work of a capture the call in one replay, by number."""
        size = self._ranges + int(self._replays.max(initial=NONE)) + 1
        self._counted = np.zeros(size, np.uint16)
        """The classes that each call was counted for, one bit each."""

    def of_steps(self, pieces: Pieces) -> NDArray[np.intp]:
        """Return the rows that belong to steps; all of them where there are no steps."""
        if not self._recording.steps:
            return np.arange(len(pieces))
        of = self._recording.of_steps
        step = of.comms if pieces.tasks is None else of.of(pieces.tasks)
        return np.flatnonzero(step != UNKNOWN)

    def leaves(self, pieces: Pieces, rows: NDArray[np.intp]) -> Leaves:
        """Sum some pieces up."""
        kind = pieces.kind[rows].astype(np.int64)
        ranges, calls, in_optimizer = self._origin(pieces.first + rows)
        if pieces.tasks is None:
            operator, shape, kernel = (one[rows] for one in self._collectives)
        else:
            kernel, operator = (self._in_labels(one) for one in (pieces.kernel, pieces.operator))
            kernel, operator = kernel[rows], operator[rows]
            shape = self._shapes.of(pieces.tasks.info[rows])
        of_call = self._of_range[ranges]
        # All pieces that differ in nothing are one row; its class is told once.
        number, first = distinct(of_call, kernel, operator, kind, in_optimizer, shape)
        columns = {name: values[of_call[first]] for name, values in self._texts.items()}
        columns |= {
            "told": columns["shape"],
            "kernel": kernel[first],
            "operator": operator[first],
            "kind": kind[first],
            "in_optimizer": in_optimizer[first],
            "shape": shape[first],
        }
        columns = _classified(columns, self._labels, self._naming)
        size = len(first)
        return Leaves(
            columns,
            self._count(calls, number, columns["class"], size),
            np.bincount(number, minlength=size).astype(np.int64),
            _exact_sum(number, pieces.duration_ns[rows], size),
        )

    def _origin(self, at: NDArray[np.intp]) -> tuple[Ints, Ints, Ints]:
        """Return the range that pieces of work are of, the call, and whether of an optimizer.

        A range of a capture is as many calls as there are replays of it.
        """
        ranges = np.full(len(at), NONE, np.int64)
        in_optimizer = np.zeros(len(at), np.int64)
        if self._launches is not None:
            ranges = self._launches[0][at].astype(np.int64)
            in_optimizer = (self._launches[1][at] == OTHER_PASS).astype(np.int64)
        calls = ranges
        captured = self._recording.work.captured
        if captured is not None:
            replayed = captured.call[at] != NONE
            ranges = np.where(replayed, self._ranges + captured.call[at], ranges)
            calls = np.where(replayed, self._ranges + self._replays[at], calls)
            in_optimizer = np.where(replayed, captured.passes[at] == OTHER_PASS, in_optimizer)
        return ranges, calls, in_optimizer.astype(np.int64)

    def _in_labels(self, theirs: NDArray[np.integer]) -> Ints:
        """Return numbers of the work's own labels as numbers of ours."""
        texts = self._recording.work.labels.texts
        if len(texts) > len(self._own):
            more = self._labels.numbers(texts[len(self._own) :]).astype(np.int64)
            self._own = np.concatenate((self._own, more))
        numbers: Ints = np.append(self._own, UNKNOWN)[theirs]
        return numbers

    def _calls(self) -> tuple[NDArray[np.int32], dict[str, Ints]]:
        """Return the kind of each range that launched work, the last being none, and their texts.

        Ranges are of one kind that agree in all that identifies them.
        """
        wanted = ("operation", "called", "module", "line", "shape", "dtype")
        nothing = {name: np.full(1, UNKNOWN, np.int64) for name in wanted}
        used = self._used()
        if not used:
            return np.zeros(1, np.int32), nothing
        parts = [self._told(framework, calls) for framework, calls, _ in used]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        kind, first = distinct(*columns)
        size = max(before + len(framework) for framework, _, before in used)
        of_range = np.full(size + 1, len(first), np.int32)
        of_range[np.concatenate([before + calls for _, calls, before in used])] = kind
        return of_range, {
            name: np.append(column[first], UNKNOWN)
            for name, column in zip(wanted, columns, strict=True)
        }

    def _used(self) -> list[tuple[Framework, Ints, int]]:
        """Return the ranges that work belongs to, of the recording and of the capture.

        The last figure is how many ranges come before them.
        """
        framework, captured = self._recording.framework, self._recording.work.captured
        found: list[tuple[Framework, Ints, int]] = []
        if framework is not None and self._launches is not None:
            found.append((framework, _distinct_calls(framework, self._launches[0]), 0))
        if captured is not None:
            calls = _distinct_calls(captured.framework, captured.call)
            found.append((captured.framework, calls, self._ranges))
        return found

    def _told(self, framework: Framework, calls: Ints) -> list[Ints]:
        """Return what identifies ranges, as columns of numbers in the labels."""
        labels = self._labels
        texts, of_name = framework.names(calls)
        modules, of_module = framework.modules(calls)
        stacks, of_stack = framework.stacks(calls)
        inputs, of_input = framework.inputs(calls)
        return [
            labels.numbers(told)[which].astype(np.int64)
            for told, which in (
                ([canonical(text) for text in texts], of_name),
                (texts, of_name),
                ([None if path == NOT_ATTRIBUTED else path for path in modules], of_module),
                ([one and one.rpartition("\n")[2] for one in stacks], of_stack),
                ([shape_of_inputs(one) for one in inputs], of_input),
                ([dtype_of_inputs(one) for one in inputs], of_input),
            )
        ]

    def _count(self, call: Ints, number: Ints, classes: Ints, size: int) -> Ints:
        """Count each call once for every class of work that it launches; work of no call is one."""
        alone = call == NONE
        counted = np.bincount(number[alone], minlength=size)
        inside = np.flatnonzero(~alone)
        if len(inside):
            numbers = self._labels.numbers(CLASSES)
            place = np.zeros(int(numbers.max()) + 1, np.int64)
            place[numbers] = np.arange(len(CLASSES))
            bit = place[classes[number[inside]]]
            # A call's work may lie in several windows.
            key, first = np.unique(call[inside] * len(CLASSES) + bit, return_index=True)
            ranges, bits = key // len(CLASSES), (1 << (key % len(CLASSES))).astype(np.uint16)
            fresh = (self._counted[ranges] & bits) == 0
            np.bitwise_or.at(self._counted, ranges, bits)
            counted += np.bincount(number[inside[first[fresh]]], minlength=size)
        return counted.astype(np.int64)


def _distinct_calls(framework: Framework, calls: Packed | Ints) -> Ints:
    """Return the ranges that occur, NONE left out."""
    used = np.zeros(len(framework) + 1, bool)
    used[calls] = True  # NONE is the last
    return np.flatnonzero(used[:-1])


def _replays(captured: Captured | None) -> Ints:
    """Return of each piece of replayed work which call of which replay it is, NONE of others."""
    if captured is None:
        return np.zeros(0, np.int64)
    own = np.flatnonzero(captured.call != NONE)
    pairs = captured.replay[own] * len(captured.framework) + captured.call[own]
    result = np.full(len(captured.call), NONE, np.int64)
    result[own] = np.unique(pairs, return_inverse=True)[1]
    return result


class _ShapesOfKernels:
    """The input shapes that kernels' own records have, as numbers of labels."""

    def __init__(self, recording: Recording, labels: Labels) -> None:
        packing = Packing()
        column = {"shape": "coalesce(inputShapes, -1)"}
        for piece in recording.source.pieces("COMPUTE_TASK_INFO", column):
            packing.add(np.maximum(piece["shape"], UNKNOWN))
        self._column = packing.done()
        self._ids = self._column.distinct()
        texts = [shape(text) for text in recording.strings.texts(self._ids.tolist())]
        self._numbers = labels.numbers(texts).astype(np.int64)

    def of(self, info: NDArray[np.integer]) -> Ints:
        """Return those of tasks by their rows in COMPUTE_TASK_INFO, UNKNOWN where there is none."""
        result = np.full(len(info), UNKNOWN, np.int64)
        known = np.flatnonzero(info >= 0)
        if len(known):
            ids = self._column.at(info[known])
            result[known] = self._numbers[np.searchsorted(self._ids, ids)]
        return result


def _collectives(recording: Recording, labels: Labels) -> tuple[Ints, Ints, Ints]:
    """Return of each collective what it does in which kind of group, its size, and its name."""
    if not len(recording.comms):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    said = Labels()
    collective_names = recording.collective_names
    kinds = collective_names.plain_types(said)
    groups, group = collective_names.kinds()
    pairs, of_pair = np.unique(kinds * len(groups) + group, return_inverse=True)
    called, plain = [], []
    for pair in pairs.tolist():
        kind, where = said.texts[pair // len(groups)], groups[pair % len(groups)]
        does = kind_of_collective(kind)
        does = _UNKNOWN_KIND if does == "unknown" else does
        called.append(does if where is None else f"{does} ({where})")
        plain.append(kind)
    sizes, of_size = np.unique(collective_names.size_bytes, return_inverse=True)
    shown = [None if size == UNKNOWN else f"{size} B" for size in sizes.tolist()]
    return (
        labels.numbers(called).astype(np.int64)[of_pair],
        labels.numbers(shown).astype(np.int64)[of_size],
        labels.numbers(plain).astype(np.int64)[of_pair],
    )


def _classified(columns: dict[str, Ints], labels: Labels, naming: Naming) -> dict[str, Ints]:
    """Return rows of work with their class, and with the operation that they count for."""
    kind, kernel, operator = columns["kind"], columns["kernel"], columns["operator"]
    places = classes_of(labels, kind, kernel, operator, columns["called"], columns["in_optimizer"])
    operation, shape = columns["operation"].copy(), columns["shape"].copy()
    collective, copy = kind == COMMUNICATION, kind == COPY
    operation[collective] = operator[collective]
    rows = np.flatnonzero(copy)
    operation[rows] = _mapped(
        operator[rows], labels, lambda text: (text or _UNNAMED).lower().replace("_async", "")
    )
    shape[rows] = UNKNOWN
    alone = ~collective & ~copy
    if naming.by_framework:
        # What the framework gave the operation; kernels inside of it have other shapes.
        owned = np.flatnonzero(alone & (operation != UNKNOWN))
        shape[owned] = columns["told"][owned]
        alone &= operation == UNKNOWN
    rows = np.flatnonzero(alone)
    told = (operator[rows] != UNKNOWN) & (operator[rows] != kernel[rows])
    operation[rows[told]] = _mapped(
        operator[rows[told]], labels, lambda text: canonical(text or _UNNAMED)
    )
    rest = rows[~told]
    if naming.by_kernel:
        operation[rest] = _mapped(kernel[rest], labels, lambda text: text or _UNNAMED)
    else:
        operation[rest] = labels.number(NO_OPERATION)
    return {
        "class": labels.numbers(CLASSES).astype(np.int64)[places],
        "operation": operation,
        "shape": shape,
        "module": columns["module"],
        "line": columns["line"],
        "kernel": kernel,
        "called": columns["called"],
        "dtype": columns["dtype"],
    }


def _mapped(numbers: Ints, labels: Labels, said: Callable[[str | None], str]) -> Ints:
    """Return the numbers of what is said instead of each text."""
    values, code = np.unique(numbers, return_inverse=True)
    return labels.numbers([said(labels.text(one)) for one in values.tolist()]).astype(np.int64)[
        code
    ]


def _exact_sum(number: Ints, values: NDArray[np.integer], groups: int) -> Ints:
    """Return the sums by group in whole numbers."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, number, values.astype(np.int64))
    return total


def distinct(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Number the distinct rows of columns that are at least UNKNOWN; return numbers and firsts."""
    key, room = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        width = int(column.max(initial=UNKNOWN)) + 2
        if room > _ROOM // width:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            room = int(key.max(initial=0)) + 1
        key = key * width + (column + 1)
        room *= width
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.astype(np.int64), first.astype(np.int64)


def joined(parts: Sequence[Leaves]) -> Leaves:
    """Return the rows of some leaves together, equal ones as one."""
    if len(parts) == 1:
        return parts[0]
    nothing = np.zeros(0, np.int64)
    columns = {
        name: np.concatenate([nothing, *(part.columns[name] for part in parts)]) for name in KEPT
    }
    number, first = distinct(*columns.values())
    size = len(first)
    return Leaves(
        {name: values[first] for name, values in columns.items()},
        *(
            _exact_sum(
                number, np.concatenate([nothing, *(getattr(part, name) for part in parts)]), size
            )
            for name in ("calls", "runs", "total_ns")
        ),
    )
