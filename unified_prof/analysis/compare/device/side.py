"""One side of a comparison of devices: recordings summed up by what identifies their work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KINDS, UNKNOWN, Labels
from unified_prof.analysis.collective_kinds import canonical as kind_of_collective
from unified_prof.analysis.compare.between import Sample
from unified_prof.analysis.compare.device import names
from unified_prof.analysis.explain.classes import CLASSES, classes_of
from unified_prof.analysis.explain.roofline import peaks
from unified_prof.analysis.explain.roofline.of_recording import known_devices
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.model import DeviceTime
from unified_prof.analysis.msprof import MsprofAnalysis
from unified_prof.analysis.read import counters, provenance
from unified_prof.analysis.read.framework import NONE, NOT_ATTRIBUTED, OTHER_PASS, Framework
from unified_prof.analysis.read.tasks import NOTHING_KNOWN
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.idle import REASONS
from unified_prof.arrays.packed import Packing
from unified_prof.arrays.pool import Numbering

Ints = NDArray[np.int64]

COLUMNS: Final = ("class", "operation", "shape", "module", "line", "kernel")
"""What identifies work; each is a column of numbers in the labels."""
PARTS: Final = ("compute", "exposed communication", "copies", *(f"idle {one}" for one in REASONS))
"""What the time of a step consists of; each moment is one of these."""

UNKNOWN_DEVICE: Final = "unknown device"
_UNKNOWN_KIND: Final = "collective of unknown kind"
NO_OPERATION: Final = "(kernels of no operation)"
_ROOM: Final = 1 << 62
_UNNAMED: Final = "(unnamed)"
_GPU_VERSIONS: Final = {
    "cuda_runtime_version": "CUDA",
    "cuda_driver_version": "CUDA of the driver",
    "hip_runtime_version": "HIP",
}
_VERSIONS: Final = {
    "torch": "torch",
    "torch_npu": "torch_npu",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "hip": "HIP",
    "cann": "CANN",
    "driver": "driver",
}


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


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Everything of one side that is compared."""

    label: str
    devices: tuple[str, ...]
    """The distinct names of its devices."""
    device_count: int
    """Devices that worked, of all recordings together."""
    recordings: int
    versions: tuple[tuple[str, str], ...]
    """torch, toolkit, driver: what was recorded of them."""
    steps: int | None
    """Steps of all recordings together; None: no step is known."""
    shares: int
    """What totals are divided by: steps, or recordings without any, each on each of its devices."""
    window_ns: int
    """The time of the steps (or from first to last work) on all devices together."""
    parts_ns: Mapping[str, int]
    """The same by PARTS, to the nanosecond."""
    leaves: Leaves
    limits: Device | None
    """What its devices can do at most; None: not known, or they are of several models."""
    outside_ns: int
    """Work that belongs to no step; it is not compared."""
    step_ns: Sample
    """How long each step took on the host, recording by recording."""
    facts: Mapping[str, str]
    """Provenance of the first recording."""
    peak_bytes: tuple[int, ...]
    """Highest memory in use, of each recording that knows it."""
    remarks: tuple[str, ...] = ()

    @property
    def work_ns(self) -> int:
        """Time of all work that is compared, whatever ran at the same time."""
        return int(self.leaves.total_ns.sum())

    def per_share(self, total_ns: float) -> float:
        """Return a total as a step of one device has it on average."""
        return total_ns / self.shares


@dataclass(frozen=True, slots=True)
class Naming:
    """What work counts for; both sides have to agree on it."""

    by_framework: bool = True
    """For the framework's operations, where they are known; else for the kind of kernel."""
    by_kernel: bool = True
    """Where neither is known, for the kernel by its name; else for the kernels of its class."""


def read(
    label: str, analyses: Sequence[MsprofAnalysis], labels: Labels, naming: Naming = Naming()
) -> Side:
    """Sum up the recordings of one side. Where some of them have steps, only those count.

    Args:
        label: What to call the side.
        analyses: The recordings.
        labels: Texts of both sides; those of this one are added.
        naming: What work counts for.
    """
    every = [_part(analysis, labels, naming) for analysis in analyses]
    stepped = [part for part in every if part.step_ns]
    parts = stepped or every
    remarks = []
    if len(parts) < len(every):
        remarks.append(
            f"{len(every) - len(parts)} recordings of {label} have no steps and are left out"
        )
    devices = [name for part in parts for name in part.devices]
    return Side(
        label=label,
        devices=names.together(devices),
        device_count=len(devices),
        recordings=len(parts),
        versions=_versions([part.facts for part in parts]),
        facts=parts[0].facts,
        steps=sum(len(part.step_ns) for part in parts) if stepped else None,
        shares=max(1, sum(max(1, len(part.step_ns)) * len(part.devices) for part in parts)),
        window_ns=sum(part.window_ns for part in parts),
        parts_ns={name: sum(part.parts_ns[name] for part in parts) for name in PARTS},
        leaves=_joined([part.leaves for part in parts]),
        limits=_one_of([part.limits for part in parts]),
        outside_ns=sum(part.outside_ns for part in parts),
        step_ns=Sample.of(
            [time for part in parts for time in part.step_ns], [len(part.step_ns) for part in parts]
        ),
        peak_bytes=tuple(part.peak_bytes for part in parts if part.peak_bytes is not None),
        remarks=tuple(remarks),
    )


def has_framework(analyses: Sequence[MsprofAnalysis]) -> bool:
    """Tell, without reading them, whether a recording of a side has framework operations."""
    return any(
        "PYTORCH_API" in source.tables and source.rows("SELECT 1 FROM PYTORCH_API LIMIT 1")
        for source in (analysis.recording.source for analysis in analyses)
    )


def models(analyses: Sequence[MsprofAnalysis]) -> frozenset[str]:
    """Return the models of device that the recordings of a side name."""
    return frozenset(
        str(name)
        for analysis in analyses
        for (name,) in analysis.recording.source.rows("SELECT name FROM NPU_INFO")
        if name not in NOTHING_KNOWN
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one recording has of its side."""

    devices: Sequence[str]
    facts: Mapping[str, str]
    step_ns: Sequence[int]
    window_ns: int
    parts_ns: Mapping[str, int]
    leaves: Leaves
    limits: Device | None
    outside_ns: int
    peak_bytes: int | None


def _part(analysis: MsprofAnalysis, labels: Labels, naming: Naming) -> _Part:
    # One of its own, which goes when it is summed up: of ranks there may be many.
    recording = Recording(analysis.recording.source)
    windows, idle = _times(recording)
    leaves, outside = _leaves(recording, labels, naming)
    return _Part(
        devices=_devices(recording),
        facts=dict(provenance.facts(recording.source)),
        step_ns=[end - start for _, start, end in recording.steps],
        window_ns=sum(window.window_ns for window in windows),
        parts_ns=_parts(windows, idle),
        leaves=leaves,
        limits=_limits(recording),
        outside_ns=outside,
        peak_bytes=counters.peak_memory(recording.source, recording.strings),
    )


def _times(recording: Recording) -> tuple[list[DeviceTime], dict[str, int]]:
    """Return how each device spent its steps (else its window), and its idle time by reason."""
    windows = [
        work.time(
            name,
            recording.step_windows[name].all if name in recording.step_windows else None,
        )
        for name, work in recording.devices.items()
    ]
    idle = dict.fromkeys(REASONS, 0)
    for one in recording.idle_time.totals(recording.steps, recording.step_windows):
        if one.step is None:
            for reason in REASONS:
                idle[reason] += one.of(reason)
    return windows, idle


def _parts(windows: Sequence[DeviceTime], idle: Mapping[str, int]) -> dict[str, int]:
    compute = sum(one.compute_ns for one in windows)
    exposed = sum((one.communication_ns or 0) - (one.overlap_ns or 0) for one in windows)
    busy = sum(one.busy_ns for one in windows)
    return {
        "compute": compute,
        "exposed communication": exposed,
        "copies": busy - compute - exposed,
        **{f"idle {reason}": value for reason, value in idle.items()},
    }


def _devices(recording: Recording) -> list[str]:
    """Return the model of each device that worked; where only one model is named, it is that."""
    rows = recording.source.rows("SELECT id, name FROM NPU_INFO")
    named = {number: str(name) for number, name in rows if name not in NOTHING_KNOWN}
    numbers = np.unique(np.concatenate((recording.tasks.devices, recording.comms.device)))
    models = set(named.values())
    only = models.pop() if len(models) == 1 else UNKNOWN_DEVICE
    return [named.get(number, only) for number in numbers.astype(np.int64).tolist()]


def _limits(recording: Recording) -> Device | None:
    """Return what the devices of a recording can do, by all that it has of them, else by name."""
    known = known_devices(recording).values()
    return _one_of(list(known)) or _one_of([peaks.find(name) for name in _devices(recording)])


def _one_of(devices: Sequence[Device | None]) -> Device | None:
    """Return what all of some devices can do, None where they differ or one is not known."""
    names_of = {None if one is None else one.name for one in devices}
    return devices[0] if len(names_of) == 1 else None


def _versions(facts: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return what runs say of torch and of what lies below it; several values are joined."""
    found: dict[str, dict[str, None]] = {}
    for one in facts:
        told = {said: one[name] for name, said in _VERSIONS.items() if name in one}
        for name, value in (_of_trace(one.get("trace_metadata")) | told).items():
            found.setdefault(name, {})[value] = None
    return tuple((name, ", ".join(values)) for name, values in found.items())


def _of_trace(text: str | None) -> dict[str, str]:
    """Return the versions that a Kineto trace names, numbers as people write them."""
    try:
        metadata: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(metadata, dict):
        return {}
    found = {}
    for name, said in _GPU_VERSIONS.items():
        number = metadata.get(name)
        if isinstance(number, int) and number > 0:
            found[said] = (
                _hip(number) if "hip" in name else f"{number // 1000}.{number % 1000 // 10}"
            )
    return found


def _hip(number: int) -> str:
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _leaves(recording: Recording, labels: Labels, naming: Naming) -> tuple[Leaves, int]:
    """Return the work of the steps (all work, where there are none), and the time of the rest."""
    if recording.framework is None:
        return _leaves_in_windows(recording, labels, naming)
    work = recording.work
    rows: Any = slice(None)
    outside = 0
    if recording.steps:
        of = recording.of_steps
        step = work.over(of.tasks, of.comms)
        rows = np.flatnonzero(step != UNKNOWN)
        outside = int(work.duration_ns.sum()) - int(work.duration_ns[rows].sum())
    duration, kind = work.duration_ns[rows], work.kind[rows].astype(np.int64)
    size = len(duration)
    framework = recording.framework
    call = np.full(size, NONE, np.int64)
    in_optimizer = np.zeros(size, np.int64)
    if framework is not None:
        calls_of, passes = work.launches
        call, in_optimizer = calls_of[rows], (passes[rows] == OTHER_PASS).astype(np.int64)
    kernel, operator = work.kernel[rows], work.operator[rows]
    own = _own_labels(work.labels, labels)  # the texts of both are known by now
    kernel, operator = own[kernel], own[operator]
    shape = _shapes_of_kernels(recording, labels)[rows]
    collective = _collectives(recording, labels)
    if collective is not None:
        mine = np.arange(len(work))[rows] - (len(work) - len(recording.comms))
        at = np.flatnonzero(mine >= 0)
        operator[at], shape[at] = collective[0][mine[at]], collective[1][mine[at]]
        kernel[at] = collective[2][mine[at]]
    of_call = _of_calls(framework, labels, call)
    # All pieces that differ in nothing are one row; its class is told once.
    number, key = distinct(of_call["number"], kernel, operator, kind, in_optimizer, shape)
    identity = {name: values[of_call["number"]] for name, values in of_call["texts"].items()}
    of_row = {
        "operation": identity["operation"],
        "module": identity["module"],
        "line": identity["line"],
        "told": identity["shape"],
        "called": identity["called"],
        "dtype": identity["dtype"],
        "kernel": kernel,
        "operator": operator,
        "kind": kind,
        "in_optimizer": in_optimizer,
        "shape": shape,
    }
    columns = {name: values[key] for name, values in of_row.items()}
    columns = _classified(columns, labels, naming)
    leaf = np.bincount(number, minlength=len(key))
    total = _exact_sum(number, duration, len(key))
    calls = _calls(call, number, columns["class"], len(key))
    return Leaves(columns, calls, leaf.astype(np.int64), total), outside


def _leaves_in_windows(recording: Recording, labels: Labels, naming: Naming) -> tuple[Leaves, int]:
    """Return the same of a recording without ranges of a framework, some work at a time."""
    work, of = recording.work, recording.of_steps if recording.steps else None
    _ = work.kernel_numbers, work.operator_numbers
    own = _own_labels(work.labels, labels)  # the texts of both are known by now
    shapes = _ShapesOfKernels(recording, labels)
    collective = _collectives(recording, labels)
    wide = len(labels.texts) + 1
    pairs, kinds, rows = Numbering(), Numbering(), Numbering()
    total, count = np.zeros(0, np.int64), np.zeros(0, np.int64)
    outside = 0
    for one in work.windows():
        kernel, operator, kind = own[one.kernel], own[one.operator], one.kind.astype(np.int64)
        shape = np.full(len(one), UNKNOWN, np.int64)
        if one.tasks is not None:
            shape = shapes.of(one.tasks.info)
        elif collective is not None:
            operator, shape, kernel = collective
        # All pieces that differ in nothing are one row.
        pair = pairs.index_of((kernel + 1) * wide + operator + 1)
        kind_of_shape = kinds.index_of((shape + 1) * len(KINDS) + kind)
        key = rows.index_of(_paired(pair, kind_of_shape))
        duration = one.duration_ns
        if of is not None:
            step = of.comms if one.tasks is None else of.of(one.tasks)
            inside = np.flatnonzero(step != UNKNOWN)
            outside += int(duration.sum(dtype=np.int64) - duration[inside].sum(dtype=np.int64))
            key, duration = key[inside], duration[inside]
        more = np.zeros(len(rows) - len(total), np.int64)
        total, count = np.concatenate((total, more)), np.concatenate((count, more))
        count += np.bincount(key, minlength=len(rows))
        total += _exact_sum(key, duration, len(rows))
    there = np.flatnonzero(count)
    pair, kind_of_shape = _unpaired(rows.values[there])
    pair, shape_and_kind = pairs.values[pair], kinds.values[kind_of_shape]
    of_row = {
        "kernel": pair // wide - 1,
        "operator": pair % wide - 1,
        "kind": shape_and_kind % len(KINDS),
        "in_optimizer": np.zeros(len(there), np.int64),
        "shape": shape_and_kind // len(KINDS) - 1,
    }
    number, first = distinct(*of_row.values())
    nothing = np.full(len(first), UNKNOWN, np.int64)
    columns = {name: values[first] for name, values in of_row.items()} | dict.fromkeys(
        ("operation", "module", "line", "told", "called"), nothing
    )
    columns = _classified(columns, labels, naming)
    order = np.argsort(number, kind="stable")
    calls, total = count[there][order], total[there][order]
    return Leaves(columns, calls, calls, total), outside


def _paired(one: Ints, other: Ints) -> Ints:
    """Return both as one number, small where both are small."""
    shells = one + other
    paired: Ints = shells * (shells + 1) // 2 + other
    return paired


def _unpaired(paired: Ints) -> tuple[Ints, Ints]:
    shells = ((np.sqrt(8.0 * paired + 1) - 1) // 2).astype(np.int64)
    # A square root of a large number may be one off.
    shells -= shells * (shells + 1) // 2 > paired
    shells += (shells + 1) * (shells + 2) // 2 <= paired
    other = paired - shells * (shells + 1) // 2
    return shells - other, other


def _own_labels(theirs: Labels, labels: Labels) -> Ints:
    """Return the number in `labels` of each number in `theirs`; the last is that of UNKNOWN."""
    return np.append(labels.numbers(theirs.texts), UNKNOWN).astype(np.int64)


class _ShapesOfKernels:
    """The input shapes that kernels' own records have, as numbers of labels."""

    def __init__(self, recording: Recording, labels: Labels) -> None:
        packing = Packing()
        column = {"shape": "coalesce(inputShapes, -1)"}
        for piece in recording.source.pieces("COMPUTE_TASK_INFO", column):
            packing.add(np.maximum(piece["shape"], UNKNOWN))
        self._column = packing.done()
        self._ids = self._column.distinct()
        texts = [names.shape(text) for text in recording.strings.texts(self._ids.tolist())]
        self._numbers = labels.numbers(texts).astype(np.int64)

    def of(self, info: NDArray[np.integer]) -> Ints:
        """Return those of tasks by their rows in COMPUTE_TASK_INFO, UNKNOWN where there is none."""
        result = np.full(len(info), UNKNOWN, np.int64)
        known = np.flatnonzero(info >= 0)
        if len(known):
            ids = self._column.at(info[known])
            result[known] = self._numbers[np.searchsorted(self._ids, ids)]
        return result


def _shapes_of_kernels(recording: Recording, labels: Labels) -> Ints:
    """Return the input shapes that a kernel's own record has, of each piece of work."""
    of_task = _ShapesOfKernels(recording, labels).of(recording.tasks.info)
    nothing = np.full(len(recording.comms), UNKNOWN, np.int64)
    return recording.work.over(of_task, nothing).astype(np.int64)


def _collectives(recording: Recording, labels: Labels) -> tuple[Ints, Ints, Ints] | None:
    """Return of each collective what it does in which kind of group, its size, and its name."""
    if not len(recording.comms):
        return None
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


def _of_calls(framework: Framework | None, labels: Labels, call: Ints) -> dict[str, Any]:
    """Return the number of each piece's kind of call, and what these kinds are called."""
    nothing = np.full(1, UNKNOWN, np.int64)
    empty = dict.fromkeys(("operation", "called", "module", "line", "shape", "dtype"), nothing)
    if framework is None:
        return {"number": np.zeros(len(call), np.int64), "texts": empty}
    calls, number = np.unique(call, return_inverse=True)
    texts, which = framework.names(calls)
    known = calls != NONE
    called = np.where(known, labels.numbers(texts)[which], UNKNOWN)
    canonical = labels.numbers([names.canonical(text) for text in texts])
    operation = np.where(known, canonical[which], UNKNOWN)
    modules, which = framework.modules(calls)
    paths = [None if path == NOT_ATTRIBUTED else path for path in modules]
    module = np.where(known, labels.numbers(paths)[which], UNKNOWN)
    stacks, which = framework.stacks(calls)
    innermost = [None if stack is None else stack.rpartition("\n")[2] for stack in stacks]
    line = labels.numbers(innermost)[which]
    inputs, which = framework.inputs(calls)
    shapes = [names.shape_of_inputs(one) for one in inputs]
    shape = np.where(known, labels.numbers(shapes)[which], UNKNOWN)
    types = labels.numbers([names.dtype_of_inputs(one) for one in inputs])[which]
    dtype = np.where(known, types, UNKNOWN)
    columns = [one.astype(np.int64) for one in (operation, called, module, line, shape, dtype)]
    of_call, first = distinct(*columns)
    found = dict(zip(empty, (one[first] for one in columns), strict=True))
    return {"number": of_call[number], "texts": found}


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
        operator[rows[told]], labels, lambda text: names.canonical(text or _UNNAMED)
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


def _calls(call: Ints, number: Ints, class_of_row: Ints, rows: int) -> Ints:
    """Count each call once for every class of work that it launched; work of no call is one."""
    alone = call == NONE
    counted = np.bincount(number[alone], minlength=rows)
    inside = np.flatnonzero(~alone)
    width = int(class_of_row.max(initial=0)) + 1
    key = call[inside] * width + class_of_row[number[inside]]
    _, first = np.unique(key, return_index=True)
    counted += np.bincount(number[inside[first]], minlength=rows)
    return counted.astype(np.int64)


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


def _joined(parts: Sequence[Leaves]) -> Leaves:
    """Return the rows of all recordings together, equal ones as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    number, first = distinct(*columns.values())
    size = len(first)
    return Leaves(
        {name: values[first] for name, values in columns.items()},
        *(
            _exact_sum(number, np.concatenate([getattr(part, name) for part in parts]), size)
            for name in ("calls", "runs", "total_ns")
        ),
    )
