"""Maps one database to partials: one a rank, without a look at any other rank."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis import collective_kinds as kinds_of
from unified_prof.analysis.calls import KERNEL, Labels
from unified_prof.analysis.read import groups as read_groups
from unified_prof.analysis.read.folder import rank_near
from unified_prof.analysis.read.frames import MODULE_PREFIX
from unified_prof.analysis.read.framework import NOT_ATTRIBUTED, Framework
from unified_prof.analysis.read.source import Findings
from unified_prof.analysis.read.tasks import NOTHING_KNOWN, Strings, Tasks, possible
from unified_prof.arrays import intervals
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.lookup import Lookup
from unified_prof.cluster import partial as partials
from unified_prof.cluster import rank_columns as columns_of
from unified_prof.cluster.partial import NONE, Group, Partial, RankFacts
from unified_prof.cluster.timeline import Cover
from unified_prof.errors import StoreError
from unified_prof.models.catalogue import MSPROF
from unified_prof.store.integers import MISSING
from unified_prof.store.reader import Report, open_report
from unified_prof.vocabulary import NO_RANK

Ints = NDArray[np.int64]

TABLES = frozenset(
    """META_DATA RANK_DEVICE_MAP NPU_INFO HOST_INFO UPROF_RUN UPROF_COLLECTIVES UPROF_GPU_TASKS
    STEP_TIME STRING_IDS COMMUNICATION_OP COMMUNICATION_TASK_INFO TASK COMPUTE_TASK_INFO
    COMMUNICATION_SCHEDULE_TASK_INFO MEMCPY_INFO ENUM_MEMCPY_OPERATION
    PYTORCH_API MSTX_EVENTS PYTORCH_CALLCHAINS CONNECTION_IDS CANN_API""".split()
)
_LOADER = "%DataLoader%"
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)$")
_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
}


def partials_of(path: Path, rank: int | None = None) -> list[Partial]:
    """Return the partial of every rank in a database.

    Args:
        path: an msprof database of any revision, by whomever it was made.
        rank: whose it is, where the user or a manifest says so.

    Raises:
        StoreError: the file is damaged, no such database, or does not say whose it is.
    """
    with open_report(path, any_revision=True, tables=TABLES) as report:
        if report.family != MSPROF:
            raise StoreError(
                f"{path} is a {report.family} file, expected an msprof database",
                slug="wrong-kind-of-report",
            )
        return _Mapping(report, rank).partials()


class _Mapping:
    """One open database."""

    def __init__(self, report: Report, rank: int | None) -> None:
        self.report = report
        self.strings = Strings(report)
        self.findings = Findings()
        self.meta = _texts(report, "META_DATA")
        self.run = _texts(report, "UPROF_RUN")
        self.is_gpu = self.run.get("device_kind") == "gpu" or "UPROF_GPU_TASKS" in report.tables
        self.groups = read_groups.load(report)
        self.tasks = Tasks(report, self.strings, self.findings)
        self.given = rank

    def partials(self) -> list[Partial]:
        owners = self._owners()
        if len(owners) == 1:
            return [self._partial(*owners[0], only=True)]
        return [self._partial(rank, device, only=False) for rank, device in owners]

    def _owners(self) -> list[tuple[int, int | None]]:
        """Return (rank, device) of each rank in the file; never a number that nothing says."""
        rows = self.report.rows("SELECT DISTINCT rankId, deviceId FROM RANK_DEVICE_MAP")
        told = sorted(
            (rank, device)
            for rank, device in rows
            if isinstance(rank, int) and 0 <= rank < NO_RANK and isinstance(device, int)
        )
        devices = np.unique(self.tasks.device).tolist()
        if self.given is not None:
            return [(self.given, devices[0] if len(devices) == 1 else None)]
        if len({rank for rank, _ in told}) == len(told) > 1:
            here: list[tuple[int, int | None]] = [one for one in told if one[1] in devices]
            return here or [told[0]]
        if len(told) == 1:
            return [told[0]]
        device = devices[0] if len(devices) == 1 else None
        if (rank := self._own_rank()) is not None:
            return [(rank, device)]
        raise StoreError(
            f"{self.report.path} does not say which rank it is of",
            hint="name it: RANK=FILE, or put it into a folder or file named rankN",
            slug="rank-unknown",
        )

    def _own_rank(self) -> int | None:
        if (text := self.run.get("rank", "")).isdecimal():
            return int(text)
        for group in self.groups.values():
            if group.ranks and group.place is not None and 0 <= group.place < len(group.ranks):
                return group.ranks[group.place]
        return rank_near(str(self.report.path.absolute()))

    def _partial(self, rank: int, device: int | None, *, only: bool) -> Partial:
        tasks = self.tasks
        chosen = tasks.kind == KERNEL
        if not only:
            chosen &= tasks.device == device
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(tasks.start_ns[rows], kind="stable")]
        start = tasks.start_ns[rows]
        end = start + tasks.duration_ns[rows]
        kernels = Cover(intervals.merge(start, end), start)
        groups: list[Group] = []
        kinds: list[str] = []
        operations, links = self._communication(rank, device, only, groups, kinds)
        busy = intervals.union(kernels.set, intervals.merge(operations["start"], operations["end"]))
        steps, recorded = self._steps(busy)
        loader = self._loader()
        notes = [f"{name}: {detail}" for name, (_, detail) in self.findings.items()]
        if not recorded:
            notes.append("no steps are recorded: the whole recording counts as one")
        operations["step"] = columns_of.step_of(operations["start"], steps)
        covered = kernels.within(operations["start"], operations["end"])
        operations["covered"] = covered
        names: Labels = Labels()
        label = tasks.kernel_labels if self.is_gpu else tasks.operator_labels
        modules, module = self._modules(rows)
        work = columns_of.work_by_name(
            columns_of.step_of(start, steps), label(names, rows), module, tasks.duration_ns[rows]
        )
        facts = RankFacts(
            rank=rank,
            world_size=self._world_size(),
            host=self._host(),
            device_id=device,
            device_name=self._device_name(device),
            vendor=self._vendor(),
            shape=self._shape(),
            steps_recorded=recorded,
            loader_recorded=loader is not None,
            notes=tuple(notes),
        )
        return Partial(
            facts=facts,
            groups=tuple(groups),
            kinds=tuple(kinds),
            names=tuple(str(text) for text in names.texts),
            modules=modules,
            communication={name: operations[name] for name in partials.COMMUNICATION},
            marks=columns_of.mark_parts(operations, steps, kernels),
            steps=columns_of.step_parts(steps, kernels.set, operations, busy, loader),
            kernels=work,
            links=links,
        )

    def _modules(self, rows: NDArray[np.intp]) -> tuple[tuple[str, ...], Ints]:
        """Return the modules that kernels ran for, and the number of each kernel's.

        Empty is what ran outside of any, and what cannot be told. Host ranges are read only where
        there are modules among them.
        """
        told = self.report.rows(
            "SELECT 1 FROM STRING_IDS WHERE value GLOB ? OR value = 'Module' LIMIT 1",
            (f"{MODULE_PREFIX}*",),
        )
        if not told or not len(rows):
            return ("",), np.zeros(len(rows), np.int64)
        framework = Framework(self.report, self.strings, Findings())
        call = framework.launches(self.tasks.connection[rows]).call
        texts, number = framework.modules(call)
        names = ["" if text in (None, NOT_ATTRIBUTED) else str(text) for text in texts]
        distinct = sorted({"", *names})
        code = np.array([distinct.index(name) for name in names], np.int64)
        return tuple(distinct), code[number]

    # Who it is

    def _world_size(self) -> int | None:
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(self.run["trace_metadata"])["distributedInfo"]["world_size"]
            return int(told) if int(told) > 0 else None
        told = self._arguments().get("world_size")
        return told if isinstance(told, int) and told > 0 else None

    def _arguments(self) -> dict[str, Any]:
        found = self.meta.get("distributed_args")
        with suppress(ValueError, RecursionError):
            decoded = json.loads(found or "{}")
            return decoded if isinstance(decoded, dict) else {}
        return {}

    def _shape(self) -> dict[str, int]:
        told = self._arguments()
        return {
            kind: value
            for kind, name in _SIZES.items()
            if isinstance(value := told.get(name), int) and value > 0
        }

    def _host(self) -> str | None:
        for (name,) in self.report.rows("SELECT hostName FROM HOST_INFO"):
            if name not in NOTHING_KNOWN:
                return str(name)
        return None

    def _device_name(self, device: int | None) -> str | None:
        rows = {
            number: str(name)
            for number, name in self.report.rows("SELECT id, name FROM NPU_INFO")
            if name not in NOTHING_KNOWN
        }
        return rows.get(device) or next(iter(rows.values()), None)

    def _vendor(self) -> str | None:
        if told := self.run.get("device_vendor"):
            return {"NVIDIA": "nvidia", "AMD": "amd"}.get(told, told.lower())
        return "nvidia" if self.is_gpu else "huawei"

    # What it did with others

    def _communication(
        self, rank: int, device: int | None, only: bool, groups: list[Group], kinds: list[str]
    ) -> tuple[dict[str, Ints], dict[str, Ints]]:
        columns = self.report.integers(
            "COMMUNICATION_OP",
            {
                "start": "startNs",
                "duration": "endNs - startNs",
                "id": "opId",
                "name": "opName",
                "type": f"coalesce(opType, {MISSING + 1} - 1)",
                "group": "coalesce(groupName, -1)",
                "count": "coalesce(count, -1)",
                "data": "coalesce(dataType, -1)",
                "device": "coalesce(deviceId, -1)",
                "size": "coalesce(rankSize, -1)",
            },
        )
        valid = possible(columns["start"], columns["duration"])
        if not only:
            valid &= (columns["device"] == device) | (columns["device"] < 0)
        self.findings.add(
            "impossible_communication_time",
            f"{len(valid) - int(valid.sum())} operators are left out",
            int(len(valid) - valid.sum()) if only else 0,
        )
        order = np.flatnonzero(valid)
        order = order[np.argsort(columns["start"][order], kind="stable")]
        columns = {name: values[order] for name, values in columns.items()}
        size = len(order)
        result = {name: np.full(size, NONE, np.int64) for name in partials.COMMUNICATION}
        result["start"] = columns["start"]
        result["end"] = columns["start"] + columns["duration"]
        if not size:
            return result, partials.empty("links")
        result["kind"] = self._kinds(columns, kinds)
        result["group"] = self._groups(columns, groups)
        result["bytes"] = columns_of.sizes(
            columns, result, groups, kinds, counts_parts=not self.is_gpu
        )
        links = self._parts(rank, columns, result, groups, kinds)
        columns_of.fill_peers(rank, result, groups, kinds)
        result["seq"] = columns_of.sequences(result, kinds)
        return result, links

    def _kinds(self, columns: Mapping[str, Ints], kinds: list[str]) -> Ints:
        """Number the kinds; where none is recorded, the operation's own name has it."""
        by_type = columns["type"] != MISSING
        ids, inverse = np.unique(
            np.where(by_type, columns["type"], columns["name"]), return_inverse=True
        )
        texts = [kinds_of.canonical(text or "") for text in self.strings.texts(ids.tolist())]
        kinds += sorted(set(texts))
        number = {text: index for index, text in enumerate(kinds)}
        return np.array([number[text] for text in texts], np.int64)[inverse]

    def _groups(self, columns: Mapping[str, Ints], groups: list[Group]) -> Ints:
        """Number the groups; ranks that stand beside an operation come before its group's name."""
        ranks = self._recorded_ranks(columns["id"])
        pairs, first, inverse = np.unique(
            np.stack([columns["group"], ranks], 1), axis=0, return_index=True, return_inverse=True
        )
        for (name_id, ranks_id), at in zip(pairs.tolist(), first.tolist(), strict=True):
            name = self.strings.get(name_id) or (str(name_id) if name_id >= 0 else "")
            known = self.groups.get(name)
            told = _rank_list(self.strings.get(ranks_id)) or (known.ranks if known else ())
            size = int(columns["size"][at])
            groups.append(
                Group(
                    name=name,
                    kind=known.kind if known else "other",
                    title=known.title if known else "",
                    ranks=told,
                    size=len(told) or (size if 0 < size < NO_RANK else NONE),
                )
            )
        return inverse.reshape(-1).astype(np.int64)

    def _recorded_ranks(self, ids: Ints) -> Ints:
        """Return the string id of the group's ranks beside each operation; -1: none."""
        found = np.full(len(ids), NONE, np.int64)
        if "UPROF_COLLECTIVES" not in self.report.tables:
            return found
        told = self.report.integers(
            "UPROF_COLLECTIVES", {"id": "opId", "ranks": "coalesce(groupRanks, -1)"}
        )
        row = Lookup(told["id"]).rows(ids)
        found[row >= 0] = told["ranks"][row[row >= 0]]
        return found

    def _parts(
        self,
        rank: int,
        columns: Mapping[str, Ints],
        result: dict[str, Ints],
        groups: list[Group],
        kinds: list[str],
    ) -> dict[str, Ints]:
        """Read what collectives consist of: who sends to whom, and when data moves."""
        parts = self.report.integers(
            "COMMUNICATION_TASK_INFO",
            {
                "op": "coalesce(opId, -1)",
                "name": "name",
                "task": "globalTaskId",
                "src": f"coalesce(srcRank, {NO_RANK})",
                "dst": f"coalesce(dstRank, {NO_RANK})",
                "size": "coalesce(size, 0)",
            },
        )
        by_id = len(np.unique(columns["id"])) == len(columns["id"])
        keys = ("id", "op") if by_id else ("name", "name")
        owner = Lookup(columns[keys[0]]).rows(parts[keys[1]]).astype(np.int64)
        columns_of.size_groups(groups, result["group"], owner, parts)
        moves = (owner >= 0) & (parts["size"] > 0)
        parts = {name: values[moves] for name, values in parts.items()}
        owner = owner[moves]
        if not len(owner):
            return partials.empty("links")
        src, dst = self._ends(rank, parts, result["group"][owner], groups)
        sends = columns_of.is_kind(result["kind"][owner], kinds, kinds_of.SEND)
        receives = columns_of.is_kind(result["kind"][owner], kinds, kinds_of.RECEIVE)
        for mine, peer in ((sends, dst), (receives, src)):
            known = np.flatnonzero(mine & (peer >= 0) & (peer != rank))[::-1]
            result["peer"][owner[known]] = peer[known]
        if self.is_gpu:
            return partials.empty("links")  # one row is a whole kernel, waiting included
        row = Lookup(self.tasks.identity).rows(parts["task"])
        timed = row >= 0
        owner, row = owner[timed], row[timed]
        start = self.tasks.start_ns[row]
        duration = self.tasks.duration_ns[row].astype(np.int64)
        result["move"] = columns_of.union_by_owner(owner, start, duration, len(result["start"]))
        src, dst, size = src[timed], dst[timed], parts["size"][timed]
        usable = (src >= 0) & (dst >= 0) & (src != dst) & (duration > 0)
        usable &= ~(sends | receives)[timed]
        return columns_of.link_parts(src[usable], dst[usable], size[usable], duration[usable])

    def _ends(
        self, rank: int, parts: Mapping[str, Ints], group: Ints, groups: list[Group]
    ) -> tuple[Ints, Ints]:
        """Return source and target as global ranks; they are counted inside the group.

        Imports of older uprofs have the one end that a trace names, as a global rank.
        """
        known = [parts[end] < NO_RANK for end in ("src", "dst")]
        told_globally = np.not_equal(known[0], known[1])
        if not self.is_gpu:
            told_globally[:] = False
        width = max((len(one.ranks) for one in groups), default=0) + 1
        table = np.full((len(groups), width), NONE, np.int64)
        for index, one in enumerate(groups):
            table[index, : len(one.ranks)] = one.ranks
        ends = []
        for end in ("src", "dst"):
            place = np.where((parts[end] >= 0) & (parts[end] < width - 1), parts[end], width - 1)
            inside = table[group, place]
            as_told = np.where(parts[end] < NO_RANK, parts[end], NONE)
            ends.append(np.where(told_globally, as_told, inside))
        return ends[0], ends[1]

    # When

    def _steps(self, busy: IntervalSet) -> tuple[dict[str, Ints], bool]:
        rows = self.report.rows(
            "SELECT id, startNs, endNs FROM STEP_TIME"
            " WHERE typeof(startNs) = 'integer' AND typeof(endNs) = 'integer' AND endNs > startNs"
            " ORDER BY startNs"
        )
        if not rows:
            rows = self._named_steps()
        recorded = bool(rows)
        if not recorded and len(busy):
            rows = [(0, int(busy.start_ns[0]), int(busy.end_ns[-1]))]
        table = np.array(rows, np.int64).reshape(-1, 3)
        return {"step": table[:, 0], "start": table[:, 1], "end": table[:, 2]}, recorded

    def _named_steps(self) -> list[tuple[int, int, int]]:
        rows = self.report.rows(
            "SELECT s.value, CAST(p.startNs AS INTEGER), CAST(p.endNs AS INTEGER)"
            " FROM PYTORCH_API p JOIN STRING_IDS s ON s.id = p.name"
            " WHERE p.name IN (SELECT id FROM STRING_IDS WHERE value LIKE 'ProfilerStep#%')"
        )
        return sorted(
            (
                (int(found[1]), start, end)
                for text, start, end in rows
                if (found := _STEP_NAME.match(str(text))) and end > start
            ),
            key=lambda step: step[1],
        )

    def _loader(self) -> IntervalSet | None:
        """Return when the host waited for input; None where no loader was recorded."""
        names = self.report.rows("SELECT id FROM STRING_IDS WHERE value LIKE ?", (_LOADER,))
        if not names:
            return None
        marks = ", ".join(str(int(name)) for (name,) in names)
        rows = self.report.rows(
            "SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER) FROM PYTORCH_API"
            f" WHERE name IN ({marks})"
        )
        table = np.array(rows, np.int64).reshape(-1, 2)
        return intervals.merge(table[:, 0], table[:, 1]) if len(table) else None


def _texts(report: Report, table: str) -> dict[str, str]:
    if table not in report.tables:
        return {}
    rows = report.rows(f"SELECT name, value FROM {table}")
    return {str(name): str(value) for name, value in rows if value is not None}


def _rank_list(text: str | None) -> tuple[int, ...]:
    with suppress(ValueError, RecursionError, TypeError):
        ranks = json.loads(text or "")
        if isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks):
            return tuple(ranks)
    return ()
