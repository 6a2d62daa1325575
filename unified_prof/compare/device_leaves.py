"""Device time of one recording in comparable rows, and canonical names of operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.arrays.packed import Packed, Packing
from unified_prof.explain.kernel_classes import CLASSES, classes_of
from unified_prof.explain.roofline.arguments import dtype_of
from unified_prof.explain.roofline.peaks import RATES
from unified_prof.recording.calls import COMMUNICATION, COPY, UNKNOWN, Labels
from unified_prof.recording.collectives import canonical as kind_of_collective
from unified_prof.recording.framework import NONE, NOT_ATTRIBUTED, OTHER_PASS, Framework
from unified_prof.recording.recording import Recording
from unified_prof.recording.task_order import Captured, TaskWindow

_NODE: Final = re.compile(r"Backward\d*$")
_WORDS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Operator type of CANN: `MatMulV2`, `FlashAttentionScoreGrad`.
_TYPE: Final = re.compile(r"[A-Z][A-Za-z\d]{1,60}$")
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
    """Return the name of an operation without namespace, backend and version.

    `aten::linear` becomes `linear`, `npu::npu_fusion_attention` `scaled_dot_product_attention`,
    `MatMulV2` `matmul`. Unknown names are kept.
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
    result = _SAME.get(bare)
    if result is None:
        short = bare.lstrip("_")
        result = _SAME.get(short, short)
    return result or name


def _snake(name: str) -> str:
    return _WORDS.sub("_", name).lower()


@lru_cache(maxsize=1 << 16)
def shape(text: str | None) -> str | None:
    """Return recorded input shapes as `8x197x768, 768x768`; None if there are none."""
    if text is None:
        return None
    parts = ["x".join(part.split(",")) for part in re.split(r"[;\s\"]+", text) if part.strip(" |,")]
    return ", ".join(parts) or None


@lru_cache(maxsize=1 << 16)
def shape_of_inputs(text: str) -> str | None:
    """Return the shapes of inputs recorded as `float[8,768], long int[7]`; None if there are none.

    Inputs without dimensions are scalars or omitted arguments.
    """
    result = [dims.replace(",", "x") for dims in _DIMENSIONS.findall(text)]
    return ", ".join(result) or None


@lru_cache(maxsize=1 << 16)
def dtype_of_inputs(text: str) -> str | None:
    """Return the data type of an operation: that of the first input with a known peak."""
    recorded = (dtype_of(kind) for kind in _TYPES_OF_INPUTS.findall(text))
    return next((dtype for dtype in recorded if dtype in RATES), None)


# Columns that identify a row; each has numbers in the labels.
KEPT: Final = ("class", "operation", "shape", "module", "line", "kernel", "called", "dtype")

_UNKNOWN_KIND: Final = "collective of unknown kind"
NO_OPERATION: Final = "(kernels of no operation)"
# Largest combined key of `distinct`.
_MAX_KEY: Final = 1 << 62
_UNNAMED: Final = "(unnamed)"
_MAX_ROWS: Final = 1 << 20  # Number of rows above which parts are merged, to bound memory.


class Leaves(Struct, frozen=True, eq=False):
    """Device time, with one row per combination of the columns in KEPT.

    `calls` is the number of operations that launched tasks of a class, each counted in one row
    only; `runs` is the number of kernels, copies and collectives; `total_ns` is their duration.
    """

    columns: Mapping[str, Ints]
    calls: Ints
    runs: Ints
    total_ns: Ints

    def __len__(self) -> int:
        return len(self.total_ns)

    def same_figures(self, other: Leaves) -> bool:
        """Return True if both have the same rows; both must use the same labels."""
        columns = [(self.columns[name], other.columns[name]) for name in KEPT]
        columns += [(self.calls, other.calls), (self.runs, other.runs)]
        columns.append((self.total_ns, other.total_ns))
        return all(np.array_equal(left, right) for left, right in columns)


class Naming(Struct, frozen=True):
    """Rules for naming the operation of a device task, the same for both sides."""

    # True: use framework operations if known. False: use the operator type of the kernel.
    by_framework: bool
    # If neither is known, True: use the kernel's name. False: one row for all kernels of a class.
    by_kernel: bool


def read_leaves(recording: Recording, labels: Labels, naming: Naming) -> tuple[Leaves, int]:
    """Return the tasks within steps (all without steps), and the time of other tasks."""
    reader = _Reader(recording, labels, naming)
    parts = [merge_leaves([])]
    outside = 0
    for window in recording.work.windows():
        rows = reader.of_steps(window)
        outside += int(window.duration_ns.sum(dtype=np.int64))
        leaves = reader.leaves(window, rows)
        outside -= int(leaves.total_ns.sum())
        parts.append(leaves)
        if sum(map(len, parts)) > _MAX_ROWS:
            parts = [merge_leaves(parts)]
    return merge_leaves(parts), outside


class _Reader:
    """Reads the tasks of one recording in windows; properties of calls are looked up only once."""

    def __init__(self, recording: Recording, labels: Labels, naming: Naming) -> None:
        self._recording, self._labels, self._naming = recording, labels, naming
        # Number in `labels` of each text in the recording's labels.
        self._label_numbers = np.zeros(0, np.int64)
        self._shapes = _ShapesOfKernels(recording, labels)
        self._collectives = _collectives(recording, labels)
        framework = recording.framework
        self._launches = None if framework is None else recording.work.launches
        # Number of ranges of the recording; those of a capture come after them.
        self._ranges = 0 if framework is None else len(framework)
        self._of_range, self._texts = self._calls()
        # Number of the (replay, captured call) of each task of a replayed graph.
        self._replays = _replay_calls(recording.work.captured)
        size = self._ranges + int(self._replays.max(initial=NONE)) + 1
        # Task classes for which each call was counted, one bit per class.
        self._counted = np.zeros(size, np.uint16)

    def of_steps(self, window: TaskWindow) -> NDArray[np.intp]:
        """Return the rows that belong to steps; all rows if there are no steps."""
        if not self._recording.steps:
            return np.arange(len(window))
        task_steps = self._recording.task_steps
        step = task_steps.comms if window.tasks is None else task_steps.steps_of(window.tasks)
        return np.flatnonzero(step != UNKNOWN)

    def leaves(self, window: TaskWindow, rows: NDArray[np.intp]) -> Leaves:
        """Return the sums over the given rows of a window."""
        kind = window.kind[rows].astype(np.int64)
        ranges, calls, in_optimizer = self._origin(window.first + rows)
        if window.tasks is None:
            operator, shape, kernel = (collective[rows] for collective in self._collectives)
        else:
            kernel, operator = (self._in_labels(one) for one in (window.kernel, window.operator))
            kernel, operator = kernel[rows], operator[rows]
            shape = self._shapes.by_row(window.tasks.info[rows])
        of_call = self._of_range[ranges]
        # Tasks that agree in all columns are one row, which is classified once.
        number, first = distinct(of_call, kernel, operator, kind, in_optimizer, shape)
        columns = {name: values[of_call[first]] for name, values in self._texts.items()}
        columns |= {
            "framework_shape": columns["shape"],
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
            _exact_sum(number, window.duration_ns[rows], size),
        )

    def _origin(self, at: NDArray[np.intp]) -> tuple[Ints, Ints, Ints]:
        """Return the range and the call that launched each task, and 1 if an optimizer launched it.

        A range of a capture counts as one call per replay.
        """
        ranges = np.full(len(at), NONE, np.int64)
        in_optimizer = np.zeros(len(at), np.int64)
        if self._launches is not None:
            ranges = self._launches.call[at].astype(np.int64)
            in_optimizer = (self._launches.passes[at] == OTHER_PASS).astype(np.int64)
        calls = ranges
        captured = self._recording.work.captured
        if captured is not None:
            replayed = captured.call[at] != NONE
            ranges = np.where(replayed, self._ranges + captured.call[at], ranges)
            calls = np.where(replayed, self._ranges + self._replays[at], calls)
            in_optimizer = np.where(replayed, captured.passes[at] == OTHER_PASS, in_optimizer)
        return ranges, calls, in_optimizer.astype(np.int64)

    def _in_labels(self, numbers: NDArray[np.integer]) -> Ints:
        """Convert numbers of the recording's labels to numbers of `labels`."""
        texts = self._recording.work.labels.texts
        if len(texts) > len(self._label_numbers):
            more = self._labels.numbers(texts[len(self._label_numbers) :]).astype(np.int64)
            self._label_numbers = np.concatenate((self._label_numbers, more))
        result: Ints = np.append(self._label_numbers, UNKNOWN)[numbers]
        return result

    def _calls(self) -> tuple[NDArray[np.int32], dict[str, Ints]]:
        """Return the kind of each range that launched tasks, and the columns of each kind.

        Ranges with equal columns are of one kind; the last kind is for tasks without a range.
        """
        names = ("operation", "called", "module", "line", "shape", "dtype")
        unknown = {name: np.full(1, UNKNOWN, np.int64) for name in names}
        used = self._used()
        if not used:
            return np.zeros(1, np.int32), unknown
        parts = [self._range_columns(framework, calls) for framework, calls, _ in used]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        kind, first = distinct(*columns)
        size = max(before + len(framework) for framework, _, before in used)
        of_range = np.full(size + 1, len(first), np.int32)
        of_range[np.concatenate([before + calls for _, calls, before in used])] = kind
        return of_range, {
            name: np.append(column[first], UNKNOWN)
            for name, column in zip(names, columns, strict=True)
        }

    def _used(self) -> list[tuple[Framework, Ints, int]]:
        """Return the ranges that launched tasks, in the recording and in the capture.

        Each entry is (framework, ranges, number of ranges before them).
        """
        framework, captured = self._recording.framework, self._recording.work.captured
        result: list[tuple[Framework, Ints, int]] = []
        if framework is not None and self._launches is not None:
            result.append((framework, _distinct_calls(framework, self._launches.call), 0))
        if captured is not None:
            calls = _distinct_calls(captured.framework, captured.call)
            result.append((captured.framework, calls, self._ranges))
        return result

    def _range_columns(self, framework: Framework, calls: Ints) -> list[Ints]:
        """Return the columns that identify ranges, as numbers in the labels."""
        labels = self._labels
        texts, of_name = framework.names(calls)
        modules, of_module = framework.modules(calls)
        stacks, of_stack = framework.stacks(calls)
        inputs, of_input = framework.inputs(calls)
        return [
            labels.numbers(values)[which].astype(np.int64)
            for values, which in (
                ([canonical(text) for text in texts], of_name),
                (texts, of_name),
                ([None if path == NOT_ATTRIBUTED else path for path in modules], of_module),
                ([stack and stack.rpartition("\n")[2] for stack in stacks], of_stack),
                ([shape_of_inputs(one) for one in inputs], of_input),
                ([dtype_of_inputs(one) for one in inputs], of_input),
            )
        ]

    def _count(self, call: Ints, number: Ints, classes: Ints, size: int) -> Ints:
        """Return calls per row; each call counts once per class of task that it launches.

        A task without a call counts as one call.
        """
        no_call = call == NONE
        counted = np.bincount(number[no_call], minlength=size)
        inside = np.flatnonzero(~no_call)
        if len(inside):
            numbers = self._labels.numbers(CLASSES)
            place = np.zeros(int(numbers.max()) + 1, np.int64)
            place[numbers] = np.arange(len(CLASSES))
            bit = place[classes[number[inside]]]
            # The tasks of a call may be in several windows.
            key, first = np.unique(call[inside] * len(CLASSES) + bit, return_index=True)
            ranges, bits = key // len(CLASSES), (1 << (key % len(CLASSES))).astype(np.uint16)
            fresh = (self._counted[ranges] & bits) == 0
            np.bitwise_or.at(self._counted, ranges, bits)
            counted += np.bincount(number[inside[first[fresh]]], minlength=size)
        return counted.astype(np.int64)


def _distinct_calls(framework: Framework, calls: Packed | Ints) -> Ints:
    """Return the distinct ranges in `calls`, without NONE."""
    used = np.zeros(len(framework) + 1, bool)
    used[calls] = True  # NONE is -1: the last one.
    return np.flatnonzero(used[:-1])


def _replay_calls(captured: Captured | None) -> Ints:
    """Return a number per (replay, captured call) of each task; NONE if it is not replayed."""
    if captured is None:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(captured.call != NONE)
    pairs = captured.replay[rows] * len(captured.framework) + captured.call[rows]
    result = np.full(len(captured.call), NONE, np.int64)
    result[rows] = np.unique(pairs, return_inverse=True)[1]
    return result


class _ShapesOfKernels:
    """Input shapes recorded with kernels, as numbers of labels."""

    def __init__(self, recording: Recording, labels: Labels) -> None:
        packing = Packing()
        column = {"shape": "coalesce(inputShapes, -1)"}
        for piece in recording.source.batches("COMPUTE_TASK_INFO", column):
            packing.add(np.maximum(piece["shape"], UNKNOWN))
        self._column = packing.done()
        self._ids = self._column.distinct()
        texts = [shape(text) for text in recording.strings.texts(self._ids.tolist())]
        self._numbers = labels.numbers(texts).astype(np.int64)

    def by_row(self, info: NDArray[np.integer]) -> Ints:
        """Return the shapes of rows of COMPUTE_TASK_INFO, UNKNOWN for a negative row."""
        result = np.full(len(info), UNKNOWN, np.int64)
        known = np.flatnonzero(info >= 0)
        if len(known):
            ids = self._column.at(info[known])
            result[known] = self._numbers[np.searchsorted(self._ids, ids)]
        return result


def _collectives(recording: Recording, labels: Labels) -> tuple[Ints, Ints, Ints]:
    """Return each collective's canonical name with the kind of group, its size, and its name."""
    if not len(recording.comms):
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    types = Labels()
    collective_names = recording.collective_names
    kinds = collective_names.plain_types(types)
    groups, group = collective_names.kinds()
    pairs, of_pair = np.unique(kinds * len(groups) + group, return_inverse=True)
    called, plain = [], []
    for pair in pairs.tolist():
        kind, where = types.texts[pair // len(groups)], groups[pair % len(groups)]
        name = kind_of_collective(kind)
        name = _UNKNOWN_KIND if name == "unknown" else name
        called.append(name if where is None else f"{name} ({where})")
        plain.append(kind)
    sizes, of_size = np.unique(collective_names.size_bytes, return_inverse=True)
    shown = [None if size == UNKNOWN else f"{size} B" for size in sizes.tolist()]
    return (
        labels.numbers(called).astype(np.int64)[of_pair],
        labels.numbers(shown).astype(np.int64)[of_size],
        labels.numbers(plain).astype(np.int64)[of_pair],
    )


def _classified(columns: dict[str, Ints], labels: Labels, naming: Naming) -> dict[str, Ints]:
    """Return the columns in KEPT for rows of tasks, including their class and operation."""
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
    unnamed = ~collective & ~copy
    if naming.by_framework:
        # Shapes of the framework operation; its kernels have other shapes.
        has_operation = np.flatnonzero(unnamed & (operation != UNKNOWN))
        shape[has_operation] = columns["framework_shape"][has_operation]
        unnamed &= operation == UNKNOWN
    rows = np.flatnonzero(unnamed)
    has_type = (operator[rows] != UNKNOWN) & (operator[rows] != kernel[rows])
    operation[rows[has_type]] = _mapped(
        operator[rows[has_type]], labels, lambda text: canonical(text or _UNNAMED)
    )
    rest = rows[~has_type]
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


def _mapped(numbers: Ints, labels: Labels, convert: Callable[[str | None], str]) -> Ints:
    """Return the numbers of the texts after conversion."""
    values, code = np.unique(numbers, return_inverse=True)
    texts = [convert(labels.text(value)) for value in values.tolist()]
    return labels.numbers(texts).astype(np.int64)[code]


def _exact_sum(number: Ints, values: NDArray[np.integer], groups: int) -> Ints:
    """Return integer sums by group."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, number, values.astype(np.int64))
    return total


def distinct(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Number the distinct combinations of values; return each row's number and all first rows.

    Values must be at least UNKNOWN (-1).
    """
    key, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        width = int(column.max(initial=UNKNOWN)) + 2
        if size > _MAX_KEY // width:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            size = int(key.max(initial=0)) + 1
        key = key * width + (column + 1)
        size *= width
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return number.astype(np.int64), first.astype(np.int64)


def merge_leaves(parts: Sequence[Leaves]) -> Leaves:
    """Return the rows of all parts; rows with equal columns are summed."""
    if len(parts) == 1:
        return parts[0]
    empty = np.zeros(0, np.int64)
    columns = {
        name: np.concatenate([empty, *(part.columns[name] for part in parts)]) for name in KEPT
    }
    number, first = distinct(*columns.values())
    size = len(first)
    return Leaves(
        {name: values[first] for name, values in columns.items()},
        *(
            _exact_sum(
                number, np.concatenate([empty, *(getattr(part, name) for part in parts)]), size
            )
            for name in ("calls", "runs", "total_ns")
        ),
    )
