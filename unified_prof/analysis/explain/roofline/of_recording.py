"""How close the operations of a recording came to what their device can do.

On a GPU, the innermost operation of the framework that launched kernels is charged with them all;
on an Ascend each operator is, for its own shapes and formats were recorded. Classes are operations
of one name, shapes and types. `of(recording)` is the answer for whoever judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, Labels
from unified_prof.analysis.collective_kinds import PARTED, canonical
from unified_prof.analysis.explain.roofline import ascend, aten, flops, peaks
from unified_prof.analysis.explain.roofline.arguments import (
    Arguments,
    dtype_of_kernel,
    parsed,
    told,
)
from unified_prof.analysis.explain.roofline.flops import Cost
from unified_prof.analysis.explain.roofline.peaks import Device, Peak
from unified_prof.analysis.explain.roofline.tensors import UntoldError, dtype_of, item_size
from unified_prof.analysis.model import ModelUse
from unified_prof.analysis.read import operation_inputs, operators
from unified_prof.analysis.read.framework import NONE, Framework
from unified_prof.analysis.read.operation_inputs import numbered
from unified_prof.analysis.read.tasks import codes
from unified_prof.analysis.recording import Recording
from unified_prof.store.integers import MISSING

Ints = NDArray[np.int64]

MATRIX_TARGET, MEMORY_TARGET = 0.7, 0.8
"""Shares of a peak that large operations reach: what savings are told against, not the peak."""

_ENOUGH_TOLD, _ENOUGH_PEAKS = 0.5, 0.95
"""Of the time of kernels, and of the FLOPs: what has to be known to tell an MFU at all."""

_TF32 = re.compile(r"tf32|s1688|xf32", re.IGNORECASE)
_NOT_TF32 = re.compile(r"sgemm|f32f32_f32f32|scudnn|ffma", re.IGNORECASE)
_TF32_ASSUMED = "faster than fp32 allows, so TF32 was assumed; its kernels do not say"
_FASTER_THAN_COMPUTE = "faster than the peak allows: its shapes or the peak are in doubt"
_SAVES_WORK = ", or its algorithm multiplies less (Winograd)"
_FASTER_THAN_MEMORY = "faster than memory allows: its data were in a cache, or shapes are in doubt"
_COUNTED_BELOW = "counted where operations within it launched kernels"
_NO_SIZE = "how much it moves was not recorded"
_ON_THE_WIRE = "what each rank sends at least; waiting for other ranks is in the time"
_WITHIN = re.compile(r"D(?:to|2)D|device to device", re.IGNORECASE)
_NO_SHAPES = "the shapes of its inputs were not recorded"


@dataclass(frozen=True, slots=True)
class Placed:
    """The operations of one class on one device, and how close they came to the device's limits."""

    name: str
    shapes: str
    """Shapes and types of their inputs, in words."""
    kind: str
    """`operation`, `kernel`, `copy` or `communication`."""
    device: str
    count: int
    total_ns: int
    cost: Cost | None
    """Of all of them together; None: it cannot be told, and `doubt` says why."""
    peak: Peak | None = None
    """Of calculating; None: not known, or nothing is calculated."""
    memory: Peak | None = None
    bound_ns: float | None = None
    """Time that they would take at the peaks; None: not known."""
    target_ns: float | None = None
    """Time that they would take at what large operations reach of the peaks."""
    doubt: str | None = None

    @property
    def bound(self) -> str | None:
        """What limits them: `compute` or `memory`; None: not known."""
        if self.bound_ns is None or self.cost is None or self.memory is None:
            return None
        moving_ns = self.cost.moved_bytes / self.memory.rate * 1e9
        # A sum of such times may differ from the time of the sum in its last digits.
        return "memory" if moving_ns >= 0.999 * self.bound_ns else "compute"

    @property
    def efficiency(self) -> float | None:
        """How much of their time they would take at the peaks; None: not known, or above 1."""
        if self.bound_ns is None or not self.total_ns or self.bound_ns > self.total_ns:
            return None
        return self.bound_ns / self.total_ns

    @property
    def uncertain(self) -> bool:
        """Whether the figure of the device that limits them is."""
        limit = self.memory if self.bound == "memory" else self.peak
        return limit is not None and limit.uncertain

    @property
    def above_target_ns(self) -> float | None:
        """Time that they take beyond what large operations would; None: not known."""
        return None if self.target_ns is None else max(0.0, self.total_ns - self.target_ns)

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte."""
        if self.cost is None or not self.cost.moved_bytes:
            return None
        return self.cost.flops / self.cost.moved_bytes


@dataclass(frozen=True, slots=True)
class Roofline:
    """The operations of a recording under the limits of its devices."""

    rows: tuple[Placed, ...]
    """The longest first."""
    devices: dict[str, Device | None]
    """What each device can do; None: nobody says."""
    use: tuple[ModelUse, ...]


def offered(recording: Recording) -> bool:
    """Tell whether the shapes of what a device ran were recorded."""
    return recording.clock == "device" and operators.shapes_recorded(recording.source)


_found: WeakKeyDictionary[Recording, Roofline] = WeakKeyDictionary()


QUICK_TASKS = 500_000
"""Tasks up to which it takes a moment only: of more, a report has it where it is asked for."""


def quick(recording: Recording) -> bool:
    """Tell whether it takes so little that every report may have it."""
    return len(recording.tasks) <= QUICK_TASKS


def of(recording: Recording) -> Roofline:
    """Return the operations of a recording under the limits of its devices."""
    if recording not in _found:
        _found[recording] = _of(recording)
    return _found[recording]


def _of(recording: Recording) -> Roofline:
    devices = known_devices(recording)
    by_number = {number: (name, devices[name]) for name, number in recording.device_numbers.items()}
    charged = _Charged(recording)
    rows: list[Placed] = []
    calculated = np.zeros(len(charged), np.float64)
    ideal_ns = np.zeros(len(charged), np.float64)
    told = np.zeros(len(charged), bool)
    classes = charged.classes()
    placed = []
    for one in classes:
        name, device = by_number.get(one.device, by_number.get(None, ("", None)))
        placed.append(_placed(one, name, device))
    for one, found in zip(classes, placed, strict=True):
        if found.cost is None:
            continue
        told[one.members] = True
        if found.cost.unit == "matrix" and one.count:
            calculated[one.members] = found.cost.flops / one.count
            peak = found.peak
            if peak is not None:
                ideal_ns[one.members] = found.cost.flops / one.count / peak.rate * 1e9
    rows = _merged(placed)
    rows += _copies(recording, by_number) + _collectives(recording, by_number)
    use = _use(recording, devices, charged, calculated, ideal_ns, told, placed)
    rows.sort(key=lambda one: (-one.total_ns, one.name, one.shapes))
    return Roofline(tuple(rows), devices, use)


def known_devices(recording: Recording) -> dict[str, Device | None]:
    """Return what each device of a recording can do."""
    source = recording.source
    names = {
        int(number): str(name)
        for number, name in source.rows("SELECT id, name FROM NPU_INFO")
        if number is not None and name not in (None, "", "UNKNOWN")
    }
    properties = operators.gpu_properties(source)
    clocks = operators.highest_clock_mhz(source)
    # ROCm numbers the devices that a process sees anew: where all are alike, any was meant.
    first = next(iter(properties.values()), {})
    common = first if all(one == first for one in properties.values()) else {}
    result: dict[str, Device | None] = {}
    for label, number in recording.device_numbers.items():
        here = _number(recording, number)
        about = properties.get(here, common)
        result[label] = peaks.find(
            about.get("name") or names.get(here),
            units=_integer(about.get("numSms")),
            memory_bytes=_integer(about.get("totalGlobalMem")),
            capability=_capability(about),
            warp=_integer(about.get("warpSize")),
            mhz=clocks.get(here),
        )
    return result


def _number(recording: Recording, number: int | None) -> int:
    """Return the number of a device, of the only one too."""
    if number is not None:
        return number
    device = recording.tasks.device
    if len(device):
        return int(device[0])
    return int(recording.comms.device[0]) if len(recording.comms) else -1


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _capability(about: dict[str, str]) -> tuple[int, int] | None:
    major, minor = _integer(about.get("computeMajor")), _integer(about.get("computeMinor"))
    return None if major is None or minor is None else (major, minor)


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """Pieces of device work that one calculation is the same for."""

    name: str
    shapes: str
    kind: str
    device: int
    count: int
    total_ns: int
    members: Ints
    """Their numbers among what is charged."""
    kernel: str
    cost: Cost | None
    why: str | None


class _Charged:
    """What is charged with kernels: operations of the framework, operators, kernels of neither.

    Attributes:
        total_ns: time of the kernels of each.
        device: number of the device of each.
        step: the step that launched each, -1 where none did.
    """

    def __init__(self, recording: Recording) -> None:
        work = recording.work
        piece = np.flatnonzero(work.kind == KERNEL)
        self._recording = recording
        task = work.task[piece].astype(np.int64)
        duration = work.duration_ns[piece]
        framework = recording.framework
        own = self._own_shapes(task)
        owner = np.full(len(piece), NONE, np.int64)
        self._framework = framework
        self._formulas: NDArray[np.bool_] | None = None
        if framework is not None:
            self._formulas = _marked(framework, lambda text: aten.formula_of(text) is not None)
            connection = work.connection[piece]
            owner = framework.innermost(connection, self._formulas)
            plain = framework.innermost(connection)
            owner = np.where(owner != NONE, owner, plain)
        # One number for what is charged: an operation's range, else the piece by itself.
        ranges = 0 if framework is None else len(framework)
        # Where operators tell their own shapes, others are not charged with what launched both.
        alone = own | (owner == NONE) | own.any()
        key = np.where(alone, ranges + np.arange(len(piece)), owner)
        self.total_ns, chief = duration, np.arange(len(piece))
        if not alone.all():
            distinct, number = np.unique(key, return_inverse=True)
            self.total_ns = np.bincount(number, duration, len(distinct)).astype(np.int64)
            # The longest kernel stands for its operation: its name, its device, its step.
            order = np.lexsort((duration, number))
            last = np.append(number[order][1:] != number[order][:-1], True)
            chief = order[last]
        self._owner, self._alone = owner[chief], alone[chief]
        self._own = own[chief]
        self._task = task[chief]
        self._kernel = work.kernel[piece[chief]]
        self._operator = work.operator[piece[chief]]
        self.device = work.device[piece[chief]]
        steps = recording.of_steps.tasks if recording.steps else None
        self.step = np.full(len(chief), NONE, np.int64)
        if steps is not None:
            self.step = steps[self._task].astype(np.int64)

    def __len__(self) -> int:
        return len(self.total_ns)

    def _own_shapes(self, task: Ints) -> NDArray[np.bool_]:
        """Tell which tasks have shapes of their own: operators of an Ascend."""
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

    def classes(self) -> list[_Class]:
        """Return what is charged by what its cost is calculated of."""
        if not len(self):
            return []
        framework, strings = self._framework, self._recording.strings
        inputs = {
            name: np.full(len(self), MISSING, np.int64)
            for name in ("shapes", "types", "strides", "values")
        }
        name_id = np.full(len(self), MISSING, np.int64)
        if framework is not None:
            in_framework = np.flatnonzero(self._owner != NONE)
            owner = self._owner[in_framework]
            found = operation_inputs.of_ranges(self._recording.source, framework, owner)
            for name, values in found.items():
                inputs[name][in_framework] = values
            name_id[in_framework] = framework.name_id[owner]
        doubled = self._doubled()
        tensors = {name: np.full(len(self), MISSING, np.int64) for name in operators.TENSORS}
        if self._own.any():
            row = self._recording.tasks.info[self._task].astype(np.int64)
            for name in operators.TENSORS:
                tensors[name] = np.where(self._own, self._tensors[name][row], MISSING)
        columns = [
            name_id,
            *inputs.values(),
            *tensors.values(),
            self._telling_kernels(),
            np.where(self._own, self._operator, NONE),
            self.device,
            self._own,
            self._alone,
            doubled,
        ]
        number = numbered(*columns)
        texts = self._recording.work.labels.texts
        result = []
        for members in _groups(number):
            first = members[0]
            given = {name: strings.get(int(values[first])) for name, values in inputs.items()}
            laid = {name: strings.get(int(values[first])) for name, values in tensors.items()}
            named = strings.get(int(name_id[first])) or ""
            kernel = texts[int(self._kernel[first])]
            operator = texts[int(self._operator[first])]
            if self._own[first]:
                described = _of_operator(operator, laid, named, given)
            elif not self._alone[first]:
                described = _of_operation(named, given, kernel, doubled=bool(doubled[first]))
            else:
                described = (kernel, "", "kernel", None, _NO_SHAPES)
            result.append(
                _Class(
                    *described[:3],
                    device=int(self.device[first]),
                    count=len(members),
                    total_ns=int(self.total_ns[members].sum()),
                    members=members,
                    kernel=kernel,
                    cost=described[3],
                    why=described[4],
                )
            )
        return result

    def _telling_kernels(self) -> Ints:
        """Return what kernels' names say that a cost depends on, where that has a say at all."""
        labels, number = np.unique(self._kernel, return_inverse=True)
        texts = [self._recording.work.labels.texts[int(label)] for label in labels]
        ways: dict[tuple[str, bool, bool], int] = {}
        codes = [
            ways.setdefault(
                (dtype_of_kernel(text), bool(_TF32.search(text)), bool(_NOT_TF32.search(text))),
                len(ways),
            )
            for text in texts
        ]
        result: Ints = np.where(self._own, NONE, np.array(codes, np.int64)[number])
        # A kernel by itself is called by its name.
        return np.where(self._alone & ~self._own, len(ways) + self._kernel, result)

    def _doubled(self) -> NDArray[np.bool_]:
        """Tell which matrix operations hold others that are charged: these count, not they."""
        result = np.zeros(len(self), bool)
        framework = self._framework
        if framework is None:
            return result
        matrix = _marked(framework, _is_matrix)
        inside = np.flatnonzero(~self._alone)
        ranges = self._owner[inside]
        is_matrix = matrix[ranges]
        charged = np.zeros(len(framework), bool)
        charged[ranges[is_matrix]] = True
        outer = framework.around(ranges[is_matrix], charged)
        result[inside] = np.isin(ranges, outer[outer != NONE])
        return result


def _marked(framework: Framework, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    marked = np.zeros(len(framework), bool)
    marked[framework.matching(wanted)] = True
    return marked


def _groups(number: Ints) -> Iterator[Ints]:
    """Yield the places of each number 0, 1, ..."""
    order = np.argsort(number, kind="stable")
    borders = np.flatnonzero(np.diff(number[order])) + 1
    yield from (part for part in np.split(order, borders) if len(part))


def _has_sizes(text: str | None) -> bool:
    return text is not None and any(sign.isdigit() for sign in text)


_MATRIX = re.compile(
    r"mm$|mm_|matmul|linear|conv|attention|attn|FlashAttn|^aten::(?:dot|vdot|mv|addmv)$"
)


def _is_matrix(name: str) -> bool:
    """Tell whether an operation that has a formula works on matrix units."""
    return bool(_MATRIX.search(name)) and aten.formula_of(name) is not None


Described = tuple[str, str, str, Cost | None, str | None]
"""Name, shapes in words, kind, cost of one, and why there is none."""


def _of_operation(
    name: str, given: dict[str, str | None], kernel: str, *, doubled: bool
) -> Described:
    """Describe an operation of the framework."""
    shapes = in_words(given["shapes"], given["types"])
    formula = aten.formula_of(name)
    if doubled:
        return name, shapes, "operation", None, _COUNTED_BELOW
    if formula is None:
        return name, shapes, "operation", None, "no formula for it"
    if given["types"] is None:
        return name, shapes, "operation", None, _NO_SHAPES
    try:
        arguments = parsed(
            given["shapes"], given["types"], given["strides"], given["values"], kernel
        )
        return name, shapes, "operation", formula(arguments), None
    except UntoldError as err:
        return name, shapes, "operation", None, str(err)


def _of_operator(
    op_type: str, laid: dict[str, str | None], named: str, given: dict[str, str | None]
) -> Described:
    """Describe an operator of an Ascend."""
    shapes = in_words(laid["inputs"], laid["input_types"])
    try:
        arguments = Arguments(())
        with suppress(UntoldError):
            # What the framework says is of help only where it is known.
            arguments = parsed(given["shapes"], given["types"], given["strides"], given["values"])
        around = ascend.Framework(named.rpartition("::")[2], arguments)
        operator = ascend.Operator(
            op_type,
            ascend.laid(laid["inputs"], laid["input_types"], laid["input_formats"]),
            ascend.laid(laid["outputs"], laid["output_types"], laid["output_formats"]),
            around,
        )
        return op_type, shapes, "operation", ascend.cost(operator), None
    except UntoldError as err:
        return op_type, shapes, "operation", None, str(err)


_MOST_SHAPES = 4


def in_words(shapes: str | None, types: str | None) -> str:
    """Return shapes and types as people read them: `[141,512] [512,2048] bf16`."""
    found, kinds = [], []
    for shape, kind in zip(*told(shapes, types), strict=False):
        dtype = dtype_of(kind)
        if dtype in ("tensorlist", "genericlist"):
            found.append(f"{len(shape.split('|'))} tensors" if shape else "a list")
        elif shape:
            found.append(f"[{shape.replace(' ', '')}]")
            kinds.append(dtype)
    more = len(found) - _MOST_SHAPES
    if more > 0:
        found = [*found[:_MOST_SHAPES], f"and {more} more"]
    return " ".join([*found, *dict.fromkeys(kinds)])


# Under the roof


def _placed(one: _Class, name: str, device: Device | None) -> Placed:
    """Place a class under the limits of its device."""
    total: dict[str, Any] = {
        "name": one.name,
        "shapes": one.shapes,
        "kind": one.kind,
        "device": name,
        "count": one.count,
        "total_ns": one.total_ns,
    }
    if one.cost is None:
        return Placed(**total, cost=None, doubt=one.why)
    cost = _times(one.cost, one.count)
    if device is None:
        return Placed(**total, cost=cost, doubt=cost.doubt)
    memory = device.of_memory()
    doubts = [cost.doubt] if cost.doubt else []
    peak = _peak(cost, device, one.kernel)
    bound_ns = _bound(cost, peak, memory, device)
    if cost.unit == "matrix" and cost.dtype == "fp32" and not _NOT_TF32.search(one.kernel):
        faster = device.matrix("tf32")
        too_fast = peak is not None and cost.flops / peak.rate * 1e9 > one.total_ns
        if too_fast and faster is not None and not _TF32.search(one.kernel):
            peak, bound_ns = faster, _bound(cost, faster, memory, device)
            doubts.append(_TF32_ASSUMED)
    target_ns = _bound(cost, peak, memory, device, MATRIX_TARGET, MEMORY_TARGET)
    if bound_ns is not None and bound_ns > one.total_ns:
        moving = memory is not None and cost.moved_bytes / memory.rate * 1e9 >= bound_ns
        saves = _SAVES_WORK if "conv" in one.name.lower() and not moving else ""
        doubts.append((_FASTER_THAN_MEMORY if moving else _FASTER_THAN_COMPUTE) + saves)
    return Placed(
        **total,
        cost=cost,
        peak=peak,
        memory=memory,
        bound_ns=bound_ns,
        target_ns=target_ns,
        doubt="; ".join(doubts) or None,
    )


def _times(cost: Cost, count: int) -> Cost:
    return Cost(
        cost.unit,
        cost.dtype,
        cost.flops * count,
        cost.moved_bytes * count,
        cost.beside * count,
        cost.doubt,
    )


def _peak(cost: Cost, device: Device, kernel: str) -> Peak | None:
    """Return the limit of calculating for a cost."""
    if cost.unit == "matrix":
        if cost.dtype == "fp32" and _TF32.search(kernel):
            return device.matrix("tf32") or device.matrix("fp32")
        return device.matrix(cost.dtype)
    return device.vector(cost.dtype) if cost.unit == "vector" else None


def _bound(
    cost: Cost,
    peak: Peak | None,
    memory: Peak | None,
    device: Device,
    of_peak: float = 1.0,
    of_memory: float = 1.0,
) -> float | None:
    """Return the shortest time in ns that the limits allow, None where one is not known."""
    if memory is None or (cost.unit == "matrix" and peak is None):
        return None
    bound = cost.moved_bytes / (memory.rate * of_memory)
    if peak is not None:
        bound = max(bound, cost.flops / (peak.rate * of_peak))
    if cost.beside and (vector := device.vector(cost.dtype)) is not None:
        bound = max(bound, cost.beside / (vector.rate * of_peak))
    return bound * 1e9


def _merged(found: list[Placed]) -> list[Placed]:
    """Put classes together that read alike; what told them apart is not shown."""
    by_key: dict[tuple[str, ...], list[Placed]] = {}
    for one in found:
        told = "" if one.cost is not None else "not told"
        key = (one.name, one.shapes, one.kind, one.device, told)
        by_key.setdefault(key, []).append(one)
    return [_together(group) for group in by_key.values()]


def _together(group: list[Placed]) -> Placed:
    if len(group) == 1:
        return group[0]
    longest = max(group, key=lambda one: one.total_ns)
    costs = [one.cost for one in group if one.cost is not None]
    cost = None
    if costs and longest.cost is not None:
        cost = Cost(
            longest.cost.unit,
            longest.cost.dtype,
            sum(one.flops for one in costs),
            sum(one.moved_bytes for one in costs),
            sum(one.beside for one in costs),
        )
    bounds = [one.bound_ns for one in group]
    targets = [one.target_ns for one in group]
    return Placed(
        name=longest.name,
        shapes=longest.shapes,
        kind=longest.kind,
        device=longest.device,
        count=sum(one.count for one in group),
        total_ns=sum(one.total_ns for one in group),
        cost=cost,
        peak=longest.peak,
        memory=longest.memory,
        bound_ns=None if None in bounds else sum(one for one in bounds if one is not None),
        target_ns=None if None in targets else sum(one for one in targets if one is not None),
        doubt=longest.doubt,
    )


# Copies and collectives


def _copies(
    recording: Recording, devices: dict[int | None, tuple[str, Device | None]]
) -> list[Placed]:
    """Return copies by direction, and parts of collectives of which no whole is known."""
    work = recording.work
    parts = (work.kind == COMMUNICATION) & (work.task != NONE)
    piece = np.flatnonzero((work.kind == COPY) | parts)
    if not len(piece):
        return []
    label, device, kind = work.operator[piece], work.device[piece], work.kind[piece]
    duration, task = work.duration_ns[piece], work.task[piece]
    known, size = operators.sizes_of_copies(recording.source)
    of_task = dict(zip(known.tolist(), size.tolist(), strict=True))
    identity = recording.tasks.identity
    texts = work.labels.texts
    result = []
    for members in _groups(numbered(label, device, kind)):
        first = members[0]
        name, own = devices.get(int(device[first]), devices.get(None, ("", None)))
        what = texts[int(label[first])]
        total: dict[str, Any] = {
            "name": what,
            "shapes": "",
            "kind": "copy" if kind[first] == COPY else "communication",
            "device": name,
            "count": len(members),
            "total_ns": int(duration[members].sum()),
        }
        sizes = [of_task.get(int(one), -1) for one in identity[task[members]].tolist()]
        if min(sizes) < 0:
            result.append(Placed(**total, cost=None, doubt=_NO_SIZE))
            continue
        within = bool(_WITHIN.search(what))
        cost = Cost("copy", "uint8", 0, sum(sizes) * (2 if within else 1))
        memory = own.of_memory() if within and own is not None else None
        bound_ns = None if memory is None else cost.moved_bytes / memory.rate * 1e9
        result.append(
            Placed(
                **total,
                cost=cost,
                memory=memory,
                bound_ns=bound_ns,
                target_ns=None if bound_ns is None else bound_ns / MEMORY_TARGET,
                doubt=_FASTER_THAN_MEMORY if (bound_ns or 0) > total["total_ns"] else None,
            )
        )
    return result


def _collectives(
    recording: Recording, devices: dict[int | None, tuple[str, Device | None]]
) -> list[Placed]:
    """Return collectives by name, bytes and ranks: what each rank sends at least."""
    comms = recording.comms
    if not len(comms):
        return []
    labels = Labels()
    label = recording.collective_names.types(labels)
    payloads = operators.payloads(recording.source, recording.strings)
    told = [payloads.get(int(one)) for one in comms.identity.tolist()]
    distinct = {one: place for place, one in enumerate(dict.fromkeys(told))}
    place = np.array([distinct[one] for one in told], np.int64)
    result = []
    for members in _groups(numbered(label, place, comms.device)):
        first = members[0]
        name, _ = devices.get(int(comms.device[first]), devices.get(None, ("", None)))
        what = labels.texts[int(label[first])]
        shapes, cost, why = _payload(what, told[first])
        result.append(
            Placed(
                name=what,
                shapes=shapes,
                kind="communication",
                device=name,
                count=len(members),
                total_ns=int(comms.duration_ns[members].sum()),
                cost=None if cost is None else _times(cost, len(members)),
                doubt=why,
            )
        )
    return result


def _payload(name: str, found: operators.Payload | None) -> tuple[str, Cost | None, str | None]:
    """Return the data of a collective in words, what it costs, and why that cannot be told."""
    if found is None or found.elements is None:
        return "", None, _NO_SIZE
    # Their group stands behind them in brackets.
    kind = canonical(name.partition(" (")[0])
    dtype = dtype_of(found.dtype)
    shapes = f"{found.elements:,} {dtype}"
    if found.ranks is None:
        return shapes, None, "how many ranks took part was not recorded"
    shapes += f" x {found.ranks} ranks"
    elements = found.elements
    if kind == "all_gather":
        elements = found.results or elements * found.ranks
    elif kind in PARTED and found.results is None:
        elements *= found.ranks
    try:
        size = elements * item_size(dtype)
        return shapes, flops.collective(kind, size, found.ranks, dtype), _ON_THE_WIRE
    except UntoldError as err:
        return shapes, None, str(err)


# Model FLOPs


def _use(
    recording: Recording,
    devices: dict[str, Device | None],
    charged: _Charged,
    calculated: NDArray[np.float64],
    ideal_ns: NDArray[np.float64],
    told: NDArray[np.bool_],
    placed: list[Placed],
) -> tuple[ModelUse, ...]:
    """Return what each device's matrix units did in the steps, else in the window."""
    result = []
    for name, number in recording.device_numbers.items():
        here = np.ones(len(charged), bool) if number is None else charged.device == number
        windows = recording.step_windows.get(name)
        steps = None
        time_ns = recording.devices[name].window.total_ns
        counted = here
        if windows is not None and recording.steps:
            steps, time_ns = len(recording.steps), windows.all.total_ns
            counted = here & (charged.step != NONE)
        total = int(calculated[counted].sum())
        if not total or not time_ns:
            continue
        kernels = int(charged.total_ns[here].sum())
        told_share = int(charged.total_ns[here & told].sum()) / kernels if kernels else 0.0
        unknown = calculated[counted & (ideal_ns == 0)].sum() / total
        can_tell = told_share >= _ENOUGH_TOLD and unknown <= 1 - _ENOUGH_PEAKS
        of_steps: list[tuple[str, int, float | None]] = []
        if steps is not None and windows is not None:
            for index, (step, _, _) in enumerate(recording.steps):
                mine = here & (charged.step == index)
                length = int(windows.end_ns[index] - windows.start_ns[index])
                share = float(ideal_ns[mine].sum()) / length if length and can_tell else None
                of_steps.append((step, int(calculated[mine].sum()), _possible(share)))
        used = {
            one.peak.name: one.peak
            for one in placed
            if one.device == name and one.peak and one.cost and one.cost.unit == "matrix"
        }
        result.append(
            ModelUse(
                device=name,
                flops=total,
                time_ns=time_ns,
                steps=steps,
                share=_possible(float(ideal_ns[counted].sum()) / time_ns if can_tell else None),
                told_share=told_share,
                peak=", ".join(f"{key} {one.rate / 1e12:,g}" for key, one in used.items()),
                uncertain=any(one.uncertain for one in used.values()),
                by_step=tuple(of_steps),
            )
        )
    return tuple(result)


def _possible(share: float | None) -> float | None:
    return share if share is not None and share <= 1 else None
