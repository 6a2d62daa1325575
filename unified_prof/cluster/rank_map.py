"""Maps databases and watch files to partials, one per rank.

Identity, steps and input waits of a rank come from its own recording, without reading any other.

Watch files have no collectives, and the passes of their steps take the place of kernels. Steps of
synchronous training are equally long on all ranks: a rank that needs longer for its own work waits
less for others. Data loading, other Python code, forward pass and optimizer are its own work. The
rest of the step, backward pass and waits, is treated as a collective, which all ranks leave
together. A slower backward pass looks like waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NO_VALUE, Floats, Ints
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.base.columns import coverage_text
from unified_prof.cluster import rank_communication as columns_of
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_communication import CoveredTime, RankCommunication, RankDatabase
from unified_prof.cluster.rank_partial import Partial, RankFacts, RankGroup
from unified_prof.errors import StoreError
from unified_prof.recording.calls import KERNEL, Labels
from unified_prof.recording.counters import clock_samples
from unified_prof.recording.framework import NOT_ATTRIBUTED, Framework
from unified_prof.recording.python_frames import MODULE_PREFIX
from unified_prof.recording.recording import Recording
from unified_prof.recording.run_directory import rank_near
from unified_prof.recording.source import (
    NOTHING_KNOWN,
    Findings,
    recorded_anomalies,
    recorded_coverage,
)
from unified_prof.schema.catalogue import MSPROF
from unified_prof.sqlite.reader import Report, open_report
from unified_prof.sqlite.watch_file import RankSteps

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
}
_MAX_RANKS = 1_000_000  # Larger numbers are damage: a summary has a row for each missing rank.


class RankIdentity:
    """Ranks, host and device of a database."""

    def __init__(self, database: RankDatabase) -> None:
        self._report = database.report
        self._run = database.run
        self._is_gpu = database.is_gpu
        self._database = database
        self._meta = database.texts("META_DATA")

    def owners(self, given: int | None) -> list[tuple[int, int | None]]:
        """Return (rank, device) for each rank in the file; ranks are never guessed."""
        rows = self._report.rows("SELECT DISTINCT rankId, deviceId FROM RANK_DEVICE_MAP")
        recorded = sorted(
            (rank, device)
            for rank, device in rows
            if isinstance(rank, int) and 0 <= rank < _MAX_RANKS and isinstance(device, int)
        )
        devices = np.unique(self._database.tasks.device).tolist()
        if given is not None:
            return [(given, devices[0] if len(devices) == 1 else None)]
        if len({rank for rank, _ in recorded}) == len(recorded) > 1:
            here: list[tuple[int, int | None]] = [one for one in recorded if one[1] in devices]
            return here or [recorded[0]]
        if len(recorded) == 1:
            return [recorded[0]]
        device = devices[0] if len(devices) == 1 else None
        if (rank := self._own_rank()) is not None:
            return [(rank, device)]
        raise StoreError(
            f"{self._report.path}: cannot determine the rank",
            hint="pass RANK=FILE, or name the file or its directory rankN",
            slug="rank-unknown",
        )

    def _own_rank(self) -> int | None:
        text = self._run.get("rank", "")
        if text.isdecimal() and len(text) < 10 and int(text) < _MAX_RANKS:
            return int(text)
        for group in self._database.groups.values():
            if group.ranks and group.place is not None and 0 <= group.place < len(group.ranks):
                rank = group.ranks[group.place]
                return rank if 0 <= rank < _MAX_RANKS else None
        return rank_near(str(self._report.path.absolute()))

    def facts(
        self,
        rank: int,
        device: int | None,
        *,
        steps_recorded: bool,
        loader_recorded: bool,
        sampled: bool,
        clock_mhz: float | None,
        notes: tuple[str, ...],
    ) -> RankFacts:
        """Return the facts of a rank."""
        rows = {
            number: str(name)
            for number, name in self._report.rows("SELECT id, name FROM NPU_INFO")
            if name not in NOTHING_KNOWN
        }
        return RankFacts(
            rank=rank,
            world_size=self._world_size(),
            host=self._host(),
            device_id=device,
            device_name=rows.get(device) or next(iter(rows.values()), None),
            vendor=self._vendor(),
            shape=self._shape(),
            steps_recorded=steps_recorded,
            loader_recorded=loader_recorded,
            sampled=sampled,
            clock_mhz=clock_mhz,
            notes=notes,
        )

    def _world_size(self) -> int | None:
        with suppress(ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            info = json.loads(self._run["trace_metadata"])["distributedInfo"]
            return _world_size(int(info["world_size"]))
        return _world_size(self._arguments().get("world_size"))

    def _arguments(self) -> dict[str, Any]:
        found = self._meta.get("distributed_args")
        with suppress(ValueError, RecursionError):
            decoded = json.loads(found or "{}")
            return decoded if isinstance(decoded, dict) else {}
        return {}

    def _shape(self) -> dict[str, int]:
        arguments = self._arguments()
        return {
            kind: value
            for kind, name in _SIZES.items()
            if isinstance(value := arguments.get(name), int) and value > 0
        }

    def _host(self) -> str | None:
        for (name,) in self._report.rows("SELECT hostName FROM HOST_INFO"):
            if name not in NOTHING_KNOWN:
                return str(name)
        return None

    def _vendor(self) -> str | None:
        if vendor := self._run.get("device_vendor"):
            return {"NVIDIA": "nvidia", "AMD": "amd"}.get(vendor, vendor.lower())
        if self._database.is_host_only:
            return None
        return "nvidia" if self._is_gpu else "huawei"


def _world_size(size: object) -> int | None:
    return size if isinstance(size, int) and 0 < size <= _MAX_RANKS else None


_LOADER = "%DataLoader%"
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)$")


def read_steps(
    recording: Recording, report: Report, busy: IntervalSet, notes: list[str]
) -> tuple[dict[str, Ints], bool]:
    """Return number, start and end of each step, and True if steps were recorded.

    If no steps were recorded, the whole recording is one step. Of steps with equal numbers, only
    the first is kept, and a note is added.
    """
    rows = report.rows(
        "SELECT id, startNs, endNs FROM STEP_TIME"
        " WHERE typeof(startNs) = 'integer' AND typeof(endNs) = 'integer' AND endNs > startNs"
        " ORDER BY startNs"
    )
    if not rows:
        rows = _named_steps(report)
    if not rows:
        rows = [(int(name), start, end) for name, start, end, _ in recording.numbered_steps]
    recorded = bool(rows)
    first = {int(row[0]): row for row in reversed(rows)}
    if len(first) < len(rows):
        notes.append(f"{len(rows) - len(first)} steps repeat a number and are left out")
        rows = [row for row in rows if first[int(row[0])] is row]
    if recording.has_remnant([(start, end) for _, start, end in rows]):
        rows = rows[:-1]
    if not recorded and len(busy):
        rows = [(0, int(busy.start_ns[0]), int(busy.end_ns[-1]))]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return {"step": table[:, 0], "start": table[:, 1], "end": table[:, 2]}, recorded


def _named_steps(report: Report) -> list[tuple[int, int, int]]:
    rows = report.rows(
        "SELECT s.value, CAST(p.startNs AS INTEGER), CAST(p.endNs AS INTEGER)"
        " FROM PYTORCH_API p JOIN STRING_IDS s ON s.id = p.name"
        " WHERE p.name IN (SELECT id FROM STRING_IDS WHERE value LIKE 'ProfilerStep#%')"
    )
    return sorted(
        (
            (int(match[1]), start, end)
            for text, start, end in rows
            if (match := _STEP_NAME.match(str(text))) and end > start
        ),
        key=lambda step: step[1],
    )


def device_steps(
    recording: Recording, steps: Mapping[str, Ints], device: int | None
) -> dict[str, Ints]:
    """Return start and end on a device of steps on the host; None is all devices as one.

    A host that does not synchronize runs ahead and finishes a step long before its device.
    """
    columns = (steps[name].tolist() for name in ("step", "start", "end"))
    on_host = [(str(step), start, end) for step, start, end in zip(*columns, strict=True)]
    windows = recording.windows_of(on_host, device)
    return {"start": windows.start_ns, "end": windows.end_ns}


def loader_intervals(report: Report) -> IntervalSet | None:
    """Return the intervals in which the host waited for input; None if no data loader was recorded.

    torch records `enumerate(DataLoader)#...` as a user annotation (before 2020: as an operator).
    Importers store it in MSTX_EVENTS or PYTORCH_API.
    """
    names = report.rows("SELECT id FROM STRING_IDS WHERE value LIKE ?", (_LOADER,))
    if not names:
        return None
    marks = ", ".join(str(int(name)) for (name,) in names)
    rows = [
        row
        for table, name in (("PYTORCH_API", "name"), ("MSTX_EVENTS", "message"))
        for row in report.rows(
            f"SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER) FROM {table}"
            f" WHERE {name} IN ({marks})"
        )
    ]
    table = np.array(rows, np.int64).reshape(-1, 2)
    return intervals.merge(table[:, 0], table[:, 1]) if len(table) else None


def read_partials(path: Path, rank: int | None = None) -> list[Partial]:
    """Return the partial of every rank in a database.

    Raises:
        StoreError: The file is damaged, not an msprof database, made from a truncated recording, or
            its rank is unknown.
    """
    with open_report(path, any_revision=True) as report:
        if report.family != MSPROF:
            raise StoreError(
                f"{path} is a {report.family} file, expected an msprof database",
                slug="wrong-kind-of-report",
            )
        _refuse_truncated(report)
        database = RankDatabase(report)
        identity = RankIdentity(database)
        owners = identity.owners(rank)
        only = len(owners) == 1
        return [_partial(database, identity, *owner, only=only) for owner in owners]


def _refuse_truncated(report: Report) -> None:
    """Raise StoreError if a recording is truncated.

    The missing device tasks would be shown as idle time.
    """
    if "UPROF_ANOMALIES" not in report.tables:
        return
    for (detail,) in report.rows("SELECT detail FROM UPROF_ANOMALIES WHERE name = 'cut_off'"):
        raise StoreError(
            f"{report.path}: the recording is truncated ({detail})",
            hint="record this rank again, or copy its file again",
            slug="damaged-recording",
        )


def _skipped_data(report: Report) -> Iterator[str]:
    """Yield how much of the recording was skipped, and the reasons with their counts."""
    if parts := [part for part in recorded_coverage(report) if part.skipped]:
        yield f"decoded {coverage_text(parts)}"
        for anomaly in recorded_anomalies(report):
            yield f"{anomaly.name} ({anomaly.count:,})"


def _partial(
    database: RankDatabase, identity: RankIdentity, rank: int, device: int | None, *, only: bool
) -> Partial:
    """Return the partial of one rank."""
    names: Labels = Labels()
    start, duration, name, modules, module = _work(database, device, names, only=only)
    kernels = CoveredTime(intervals.merge(start, start + duration), start)
    communication = RankCommunication(database, rank, device, only=only)
    operations = communication.operations
    busy = intervals.union(kernels.set, intervals.merge(operations["start"], operations["end"]))
    notes = [f"{name}: {detail}" for name, (_, detail) in database.findings.items()]
    notes += _skipped_data(database.report)
    steps, recorded = read_steps(database.recording, database.report, busy, notes)
    loader = loader_intervals(database.report)
    if not recorded:
        notes.append("no steps recorded: the whole recording counts as one step")
    elif not database.is_host_only:
        steps |= device_steps(database.recording, steps, None if only else device)
    operations["step"] = columns_of.step_at(operations["start"], steps)
    operations["covered"] = intervals.covered(kernels.set, operations["start"], operations["end"])
    work = columns_of.work_by_name(columns_of.step_at(start, steps), name, module, duration)
    facts = identity.facts(
        rank,
        device,
        steps_recorded=recorded,
        loader_recorded=loader is not None,
        sampled=bool(database.recording.sample),
        clock_mhz=_mean_clock_mhz(database.report, None if only else device, start, duration),
        notes=tuple(notes),
    )
    return Partial(
        facts=facts,
        groups=tuple(communication.groups),
        kinds=tuple(communication.kinds),
        names=tuple(str(text) for text in names.texts),
        modules=modules,
        communication={name: operations[name] for name in partials.COMMUNICATION_COLUMNS},
        marks=columns_of.cut_at_marks(operations, steps, kernels),
        steps=columns_of.step_time_parts(steps, kernels.set, operations, busy, loader),
        kernels=work,
        links=communication.links,
    )


def _work(
    database: RankDatabase, device: int | None, names: Labels, *, only: bool
) -> tuple[Ints, Ints, Ints, tuple[str, ...], Ints]:
    """Return start, duration, name and module of each kernel by start, and the module names.

    In a recording without devices, the operations of the host are its work.
    """
    tasks = database.tasks
    if database.is_host_only:
        start, duration, ids = database.host_operations()
        distinct, number = np.unique(ids, return_inverse=True)
        code = names.numbers(database.strings.texts(distinct)).astype(np.int64)
        return start, duration, code[number], ("",), np.zeros(len(start), np.int64)
    chosen = tasks.kind == KERNEL
    if not only:
        chosen &= tasks.device == device
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(tasks.start_ns[rows], kind="stable")]
    label = tasks.kernel_labels if database.is_gpu else tasks.operator_labels
    modules, module = _modules(database, rows)
    name = label(names, rows).astype(np.int64)
    return tasks.start_ns[rows], tasks.duration_ns[rows], name, modules, module


def _mean_clock_mhz(
    report: Report, device: int | None, start: Ints, duration: Ints
) -> float | None:
    """Return the mean clock of a device while kernels run; None if it is unknown."""
    at, mhz = clock_samples(report, device)
    if not len(at) or not duration.any():
        return None
    sample = np.searchsorted(at, start + duration // 2, side="right") - 1
    return round(float(np.average(mhz[np.maximum(sample, 0)], weights=duration)), 1)


def _modules(database: RankDatabase, rows: NDArray[np.intp]) -> tuple[tuple[str, ...], Ints]:
    """Return the names of all modules, and the index of each kernel's module.

    The name is empty if a kernel has no known module. Host ranges are read only if they include
    modules.
    """
    found = database.report.rows(
        "SELECT 1 FROM STRING_IDS WHERE value GLOB ? OR value = 'Module' LIMIT 1",
        (f"{MODULE_PREFIX}*",),
    )
    if not found or not len(rows):
        return ("",), np.zeros(len(rows), np.int64)
    framework = Framework(database.report, database.strings, Findings())
    call = framework.launches(database.tasks.connection[rows]).call
    texts, number = framework.modules(call)
    names = ["" if text in (None, NOT_ATTRIBUTED) else str(text) for text in texts]
    distinct = sorted({"", *names})
    code = np.array([distinct.index(name) for name in names], np.int64)
    return tuple(distinct), code[number]


_WARMUP_STEPS = 5  # Steps at the start that are left out: they compile and allocate.
# Steps are compared as medians of blocks: minimum number of steps in a block, and of blocks.
_MIN_BLOCK_STEPS, _MAX_BLOCKS = 8, 64
_MAX_BEHIND_NS = 2e9  # If the file of a rank ends earlier by more steps, the rank has a note.
# A part contains waits if its differences between ranks cancel most of the ones before it, which
# are at least this share of the step.
_MIN_DIFFERENCE = 0.01


def partials_of_ranks(ranks: Mapping[int, RankSteps]) -> tuple[list[Partial], dict[int, str]]:
    """Return the partials of the ranks of the latest run, and why other ranks have none.

    Raises:
        StoreError: The ranks have too few steps in common.
    """
    unread = dict(_not_comparable(ranks))
    chosen = [ranks[rank] for rank in sorted(set(ranks) - set(unread))]
    if not chosen:
        return [], unread
    steps = reduce(np.intersect1d, [one.columns["step"] for one in chosen])
    rows = [np.searchsorted(one.columns["step"], steps) for one in chosen]
    parts = np.stack([_parts(one)[at] for one, at in zip(chosen, rows, strict=True)])
    usable = (steps >= _WARMUP_STEPS) & np.isfinite(parts).all(axis=(0, 2))
    for one, at in zip(chosen, rows, strict=True):
        usable &= np.isnan(one.values("event")[at])  # a capture slows all ranks
    if (count := int(usable.sum())) < _MIN_BLOCK_STEPS:
        raise StoreError(
            f"the ranks have {count} steps in common, without the first {_WARMUP_STEPS} and those "
            f"of captures; expected {_MIN_BLOCK_STEPS}",
            slug="no-rank-readable",
        )
    blocks = np.array_split(np.flatnonzero(usable), min(count // _MIN_BLOCK_STEPS, _MAX_BLOCKS))
    medians = np.stack([np.median(parts[:, block], axis=1) for block in blocks], 1)
    data, other, forward, optimizer, length = np.moveaxis(medians, 2, 0)
    if _contains_waits(other, data + forward, length):
        other[:] = 0
    if _contains_waits(forward, data + other, length):
        forward[:] = 0
    work = data + other + forward + optimizer
    edges = np.r_[0, np.cumsum(np.maximum(np.median(length, axis=0), work.max(axis=0) + 1_000))]
    numbers = np.array([steps[block[0]] for block in blocks], np.int64)
    begins: dict[str | None, list[int]] = {}
    for one, at in zip(chosen, rows, strict=True):  # ranks of a host have one clock
        begins.setdefault(one.facts.get("host"), []).append(int(one.columns["start_ns"][at[0]]))
    found = []
    for index, one in enumerate(chosen):
        begin = int(np.median(begins[one.facts.get("host")]))
        notes = tuple(_notes(one, chosen, float(np.median(length))))
        times = (begin + edges).astype(np.int64)
        found.append(_watched_partial(one, notes, numbers, times, medians[index].astype(np.int64)))
    return found, unread


def _not_comparable(ranks: Mapping[int, RankSteps]) -> Iterator[tuple[int, str]]:
    """Yield ranks without usable steps or from an earlier run, with the reason."""
    known = {rank: one for rank, one in ranks.items() if len(one)}
    most = max(map(len, known.values()), default=0)
    begins = {rank: int(one.columns["start_ns"][0]) for rank, one in known.items()}
    latest = max(begins, key=lambda rank: begins[rank], default=NO_VALUE)
    for rank, one in ranks.items():
        if rank not in known:
            yield rank, "no complete step"
        elif (early_ns := begins[latest] - int(one.columns["start_ns"][-1])) > 0:
            yield (
                rank,
                (
                    f"its last step began {early_ns / 1e9:,.1f} s before the first one of rank "
                    f"{latest}: it is from an earlier run, or a clock is wrong"
                ),
            )
        elif 2 * len(one) < most:
            yield rank, f"only {len(one):,} steps, others have up to {most:,}"
        elif not np.isfinite(_parts(one)).all(axis=1).any():
            yield rank, "the times of its passes are unknown"


def _notes(one: RankSteps, ranks: list[RankSteps], length_ns: float) -> Iterator[str]:
    last = int(one.columns["step"][-1])
    if missing := last + 1 - len(one):
        yield f"{missing:,} of its first {last + 1:,} steps are missing"
    longest = max(int(other.columns["step"][-1]) for other in ranks)
    if (longest - last) * length_ns > _MAX_BEHIND_NS:
        yield f"its file ends with step {last:,}, others with step {longest:,}"


def _parts(one: RankSteps) -> Floats:
    """Return data loading, other code, forward pass, optimizer and length of each step, ns.

    On a device, data loading counts as far as the device is not in a pass at the same time.
    """
    names = ("length_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns")
    length, data, forward, backward, optimizer = (one.values(name) for name in names)
    left = np.maximum(length - forward - backward - optimizer, 0)
    data = np.minimum(data, left)
    return np.stack([data, left - data, forward, optimizer, length], 1)


def _contains_waits(part: Floats, before: Floats, length: Floats) -> bool:
    """Return True if a part (ranks x blocks) is shorter on ranks whose other work is longer."""
    away, part = before - np.median(before, axis=0), part - np.median(part, axis=0)
    is_known = away.std() > _MIN_DIFFERENCE * np.median(length)
    return bool(is_known and (away + part).std() < away.std() / 2)


def _watched_partial(
    one: RankSteps, notes: tuple[str, ...], numbers: Ints, edges: Ints, parts: Ints
) -> Partial:
    """Lay out each step: data loading, other code, forward pass, backward and waits, optimizer."""
    data, other, forward, optimizer, _ = parts.T
    steps = {"step": numbers, "start": edges[:-1], "end": edges[1:]}
    input_end = edges[:-1] + data
    start = np.stack([input_end + other, edges[1:] - optimizer], 1)
    end = start + np.stack([forward, optimizer], 1)
    is_pass = end > start
    step = np.stack([numbers, numbers], 1)[is_pass]
    name = (np.zeros_like(start) + np.arange(2))[is_pass]
    kernels = columns_of.CoveredTime(intervals.merge(start[is_pass], end[is_pass]), start[is_pass])
    operations = dict.fromkeys(partials.COMMUNICATION_COLUMNS, np.full(len(numbers), NO_VALUE))
    operations |= dict.fromkeys(("group", "kind", "covered"), np.zeros(len(numbers), np.int64))
    operations |= {"seq": np.arange(len(numbers)), "step": numbers}
    operations |= {"start": end[:, 0], "end": start[:, 1]}
    busy = intervals.union(kernels.set, intervals.merge(operations["start"], operations["end"]))
    loader = intervals.merge(edges[:-1], input_end)
    size = int(one.facts.get("world_size", 0)) or None
    return Partial(
        facts=RankFacts(
            *(one.rank, size, one.facts.get("host")),
            steps_recorded=True,
            loader_recorded=True,
            watched=True,
            notes=notes,
        ),
        groups=(RankGroup("world", "world", "", tuple(range(size or one.rank + 1))),),
        kinds=("backward pass and waits",),
        names=("forward passes", "optimizer steps"),
        modules=("",),
        communication=operations,
        marks=columns_of.cut_at_marks(operations, steps, kernels),
        steps=columns_of.step_time_parts(steps, kernels.set, operations, busy, loader),
        kernels=columns_of.work_by_name(step, name, 0 * name, (end - start)[is_pass]),
        links=partials.empty_columns("links"),
    )
