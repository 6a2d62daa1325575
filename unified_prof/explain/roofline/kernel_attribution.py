"""Attribution of kernels to operations, and the cost of each group of equal operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Ints, Runs, by_key
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import codes
from unified_prof.explain.roofline import ascend, serving_formulas
from unified_prof.explain.roofline.arguments import (
    Arguments,
    UnknownCostError,
    dtype_of,
    dtype_of_kernel,
    parsed,
    split_arguments,
)
from unified_prof.explain.roofline.aten_formulas import with_arguments_around
from unified_prof.explain.roofline.costs import Cost, times
from unified_prof.explain.roofline.serving_formulas import formula_of
from unified_prof.recording import names, operators
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import NONE, Framework
from unified_prof.recording.operators import numbered
from unified_prof.recording.recording import Recording

_COUNTED_BELOW = "counted for the operations within it that launched kernels"
_NO_SHAPES = "the shapes of its inputs were not recorded"


@dataclass(frozen=True, slots=True, eq=False)
class OperationGroup:
    """Operations with the same name, shapes and dtypes, and hence the same cost."""

    name: str
    shapes: str = ""
    _: KW_ONLY
    kind: str
    device: int
    count: int
    total_ns: int
    # Their indices among the attributed operations.
    members: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    kernel: str = ""
    cost: Cost | None  # Cost of all of them together.
    why: str | None  # Why the cost is unknown.
    on_device: bool = True  # False if the peaks of the device do not limit it.


class AttributedKernels:
    """Operations of the framework, operators, or single kernels, with the time of their kernels.

    Attributes:
        work: Rows of all kernels in `Recording.work`.
        number: Index of the operation of each kernel.
        total_ns: Kernel time of each operation.
        device: Device number of each.
        step: Step that launched each, -1 if none.
    """

    def __init__(self, recording: Recording) -> None:
        work = recording.work
        self.work = piece = np.flatnonzero(work.kind == KERNEL)
        self._recording = recording
        task = work.task[piece].astype(np.int64)
        duration = work.duration_ns[piece]
        own = self._own_shapes(task)
        self._call_sources = _call_sources(recording, piece)
        side, owner, key = _owners(self._call_sources, len(piece))
        # If operators have shapes of their own, operations of the framework do not count.
        alone = own | (owner == NONE) | own.any()
        key = np.where(alone, int(key.max(initial=NONE)) + 1 + np.arange(len(piece)), key)
        self.total_ns, chief = duration, np.arange(len(piece))
        self.number: Ints = chief
        if not alone.all():
            distinct, number = np.unique(key, return_inverse=True)
            self.total_ns = np.bincount(number, duration, len(distinct)).astype(np.int64)
            self.number = number
            # The longest kernel represents its operation: its name, device and step.
            order = np.lexsort((duration, number))
            chief = order[Runs(number[order]).last]
        self._side, self._owner, self._alone = side[chief], owner[chief], alone[chief]
        self._own = own[chief]
        self._task = task[chief]
        # Replays are launched in this recording, not in that of the capture.
        self._replayed_ns = (
            None if work.captured is None else work.captured.launched_ns[piece[chief]]
        )
        self._kernel = work.kernel[piece[chief]]
        self._operator = work.operator[piece[chief]]
        self.device = work.device[piece[chief]]
        steps = recording.task_steps.tasks if recording.steps else None
        self.step = np.full(len(chief), NONE, np.int64)
        if steps is not None:
            self.step = steps[self._task].astype(np.int64)

    def __len__(self) -> int:
        return len(self.total_ns)

    def _own_shapes(self, task: Ints) -> NDArray[np.bool_]:
        """Return a mask of the tasks that are Ascend operators with recorded shapes."""
        source = self._recording.source
        if "UPROF_GPU_TASKS" in source.tables:
            return np.zeros(len(task), bool)
        self._tensors = operators.tensors(source)
        row = self._recording.tasks.info[task].astype(np.int64)
        columns = [self._tensors[name] for name in ("inputs", "outputs")]
        known = np.zeros(len(task), bool)
        if not len(columns[0]):
            return known
        strings = self._recording.strings
        for column in columns:
            ids, number = codes(np.where(row >= 0, column[row], -1))
            known |= np.array([_has_sizes(strings.get(one)) for one in ids])[number]
        return known

    def groups(self) -> list[OperationGroup]:
        """Group the operations by everything that their cost depends on."""
        if not len(self):
            return []
        unknown = np.full(len(self), MISSING, np.int64)
        inputs = {name: unknown.copy() for name in ("shapes", "types", "strides", "values")}
        name_id = unknown.copy()
        for place, side in enumerate(self._call_sources):
            selected = np.flatnonzero(self._side == place)
            owner = self._owner[selected]
            described = _with_arguments(side.framework, owner)
            found = operators.input_ids(side.recording.source, side.framework, described)
            for name, values in found.items():
                inputs[name][selected] = values
            name_id[selected] = side.framework.name_ids(owner)
        around, doubled = self._around(), self._doubled()
        tensors = dict.fromkeys(operators.TENSORS, unknown)
        if self._own.any():
            row = self._recording.tasks.info[self._task].astype(np.int64)
            for name in tensors:
                values = self._tensors[name][row].astype(np.int64)
                tensors[name] = np.where(self._own, values, MISSING)
        columns = [
            name_id,
            *inputs.values(),
            *tensors.values(),
            self._kernel_variants(),
            np.where(self._own, self._operator, NONE),
            self.device,
            self._own,
            self._alone,
            self._side,
            doubled,
            around,
        ]
        number = numbered(*columns)
        texts = self._recording.work.labels.texts
        result = []
        nothing: dict[str, str | None] = dict.fromkeys(inputs)
        for _, members in by_key(number):
            first = members[0]
            strings = self._recording.strings
            tensor_texts = {
                name: strings.get(int(values[first])) for name, values in tensors.items()
            }
            given = nothing
            if (place := int(self._side[first])) != NONE:
                strings = self._call_sources[place].recording.strings
                given = {name: strings.get(int(values[first])) for name, values in inputs.items()}
            operation = strings.get(int(name_id[first])) or ""
            kernel = texts[int(self._kernel[first])]
            operator = texts[int(self._operator[first])]
            name, shapes, cost, why = operation, "", None, None
            try:
                if self._own[first]:
                    name = operator
                    shapes = format_shapes(tensor_texts["inputs"], tensor_texts["input_types"])
                    cost = _operator_cost(operator, tensor_texts, operation, given)
                elif not self._alone[first]:
                    given["around"] = self._recording.strings.get(int(around[first]))
                    shapes = format_shapes(given["shapes"], given["types"])
                    cost = _operation_cost(operation, given, kernel, doubled=bool(doubled[first]))
                else:
                    name, why = kernel, _NO_SHAPES
            except UnknownCostError as err:
                why = str(err)
            result.append(
                OperationGroup(
                    name,
                    shapes,
                    kind="kernel" if self._alone[first] and not self._own[first] else "operation",
                    device=int(self.device[first]),
                    count=len(members),
                    total_ns=int(self.total_ns[members].sum()),
                    members=members,
                    kernel=kernel,
                    cost=None if cost is None else times(cost, len(members)),
                    why=why,
                )
            )
        return result

    def _kernel_variants(self) -> Ints:
        """Return a number for each cost that kernel names distinguish."""
        labels, number = np.unique(self._kernel, return_inverse=True)
        texts = [self._recording.work.labels.texts[int(label)] for label in labels]
        variants: dict[tuple[str, bool, bool], int] = {}
        keys = [(dtype_of_kernel(text), names.TF32(text), names.NOT_TF32(text)) for text in texts]
        codes = [variants.setdefault(key, len(variants)) for key in keys]
        result: Ints = np.where(self._own, NONE, np.array(codes, np.int64)[number])
        # A single kernel has its own name.
        return np.where(self._alone & ~self._own, len(variants) + self._kernel, result)

    def _around(self) -> Ints:
        """Return the name of the range that describes the batch, if the cost depends on it."""
        result = np.full(len(self), MISSING, np.int64)
        for place, side in enumerate(self._call_sources):
            needed = _marked(side.framework, serving_formulas.needs_lengths)
            selected = np.flatnonzero(self._side == place)
            selected = selected[needed[self._owner[selected]]]
            if not len(selected):
                continue
            regions, strings = self._recording.regions, self._recording.strings
            names = np.unique(regions.name)
            describes = [
                bool(serving_formulas.Batch.parse(strings.get(name) or ""))
                for name in names.tolist()
            ]
            marks = np.flatnonzero(np.isin(regions.name, names[np.array(describes, bool)]))
            if not len(marks):
                continue
            marks = marks[np.argsort(regions.start_ns[marks], kind="stable")]
            at = side.framework.start_ns[self._owner[selected]]
            if side.recording is not self._recording and self._replayed_ns is not None:
                at = self._replayed_ns[selected]
            spans = IntervalSet(regions.start_ns[marks], regions.end_ns[marks])
            mark = intervals.holding(spans, at)
            result[selected[mark >= 0]] = regions.name[marks[mark[mark >= 0]]]
        return result

    def _doubled(self) -> NDArray[np.bool_]:
        """Return a mask of matrix operations that contain others; only the inner ones count."""
        result = np.zeros(len(self), bool)
        for place, side in enumerate(self._call_sources):
            # An operation that uses matrix units and has a formula.
            matrix = _marked(
                side.framework,
                lambda name: (
                    names.class_of_operation(name) in names.MATRIX and formula_of(name) is not None
                ),
            )
            inside = np.flatnonzero(~self._alone & (self._side == place))
            ranges = self._owner[inside]
            is_matrix = matrix[ranges]
            attributed = np.zeros(len(side.framework), bool)
            attributed[ranges[is_matrix]] = True
            outer = side.framework.around(ranges[is_matrix], attributed)
            result[inside] = np.isin(ranges, outer[outer != NONE])
        return result


class _CallSource(Struct, frozen=True, eq=False):
    """Recording whose operations launched kernels: the analyzed one or its graph capture."""

    recording: Recording
    framework: Framework
    owner: Ints  # Range to which each task is attributed, NONE if there is none.
    occasion: Ints  # Number of the replay of a captured operation.


def _call_sources(recording: Recording, piece: NDArray[np.intp]) -> list[_CallSource]:
    """Return the recordings with operations that launched tasks; the most specific comes last."""
    work, result = recording.work, []
    if (framework := recording.framework) is not None:
        owner = _innermost(framework, work.connection[piece])
        result.append(_CallSource(recording, framework, owner, np.zeros_like(owner)))
    captured, capture = work.captured, recording.captured_in
    if captured is not None and capture is not None:
        owner = _innermost(captured.framework, captured.connection[piece])
        result.append(_CallSource(capture, captured.framework, owner, captured.replay[piece]))
    return result


def _innermost(framework: Framework, connection: Ints) -> Ints:
    """Return the innermost operation with a formula that launched tasks, else the innermost."""
    formulas = _marked(framework, lambda text: formula_of(text) is not None)
    owner = framework.innermost(connection, formulas)
    return np.where(owner != NONE, owner, framework.innermost(connection))


def _with_arguments(framework: Framework, owner: Ints) -> Ints:
    """Return the operations whose arguments determine the costs of operations."""
    wanted = _marked(framework, lambda text: with_arguments_around(text) is not None)
    inner = np.flatnonzero(wanted[owner])
    texts, own = framework.names(owner[inner])
    outer = framework.parent[owner[inner]]
    _, around = framework.names(outer)
    matches = [
        parent != NONE and with_arguments_around(texts[name]) == texts[name_around]
        for name, name_around, parent in zip(
            own.tolist(), around.tolist(), outer.tolist(), strict=True
        )
    ]
    result = owner.copy()
    is_match = np.array(matches, bool)
    result[inner[is_match]] = outer[is_match]
    return result


def _owners(sides: list[_CallSource], pieces: int) -> tuple[Ints, Ints, Ints]:
    """Return the side and the range of each task, and a number for both."""
    side, owner, key = (np.full(pieces, NONE, np.int64) for _ in range(3))
    first = 0
    for place, one in enumerate(sides):
        selected = np.flatnonzero(one.owner != NONE)
        occasions, number = np.unique(one.occasion[selected], return_inverse=True)
        side[selected], owner[selected] = place, one.owner[selected]
        key[selected] = first + number * len(one.framework) + one.owner[selected]
        first += len(occasions) * len(one.framework)
    return side, owner, key


def _marked(framework: Framework, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    marked = np.zeros(len(framework), bool)
    marked[framework.matching(wanted)] = True
    return marked


def _has_sizes(text: str | None) -> bool:
    return text is not None and any(sign.isdigit() for sign in text)


def _operation_cost(name: str, given: dict[str, str | None], kernel: str, *, doubled: bool) -> Cost:
    """Return the cost of a framework operation; raises UnknownCostError if it is unknown."""
    formula = formula_of(name)
    if doubled:
        raise UnknownCostError(_COUNTED_BELOW)
    if formula is None:
        raise UnknownCostError("no FLOP formula")
    if given["types"] is None:
        raise UnknownCostError(_NO_SHAPES)
    arguments = parsed(given["shapes"], given["types"], given["strides"], given["values"], kernel)
    return formula(replace(arguments, around=given.get("around") or ""))


def _operator_cost(
    op_type: str, texts: dict[str, str | None], operation: str, given: dict[str, str | None]
) -> Cost:
    """Return the cost of an Ascend operator; raises UnknownCostError if it is unknown."""
    arguments = Arguments(())
    with suppress(UnknownCostError):
        # Unknown arguments of the framework operation are ignored.
        arguments = parsed(given["shapes"], given["types"], given["strides"], given["values"])
    return ascend.cost(
        ascend.Operator(
            op_type,
            ascend.stored_tensors(texts["inputs"], texts["input_types"], texts["input_formats"]),
            ascend.stored_tensors(texts["outputs"], texts["output_types"], texts["output_formats"]),
            ascend.Framework(operation.rpartition("::")[2], arguments),
        )
    )


_MAX_SHAPES = 4


def format_shapes(shapes: str | None, types: str | None) -> str:
    """Format shapes and dtypes: `[141,512] [512,2048] bf16`.

    A list without shapes is left out: old releases of torch record lists of numbers (the padding of
    a convolution) and of more than 30 tensors alike.
    """
    result, kinds = [], []
    for shape, kind in zip(*split_arguments(shapes, types), strict=False):
        dtype = dtype_of(kind)
        if dtype in ("tensorlist", "genericlist"):
            result += [f"{len(shape.split('|'))} tensors"] if shape else []
        elif shape:
            result.append(f"[{shape.replace(' ', '')}]")
            kinds.append(dtype)
    more = len(result) - _MAX_SHAPES
    if more > 0:
        result = [*result[:_MAX_SHAPES], f"and {more} more"]
    return " ".join([*result, *dict.fromkeys(kinds)])
