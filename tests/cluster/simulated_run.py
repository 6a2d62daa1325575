"""Simulated multi-rank run, as partials or as databases; all faults are known exactly.

Ranks are ordered tensor parallel (fastest), data parallel, pipeline stages, as in Megatron. A step
of a rank consists of input; per micro-batch, kernels with a blocking all-reduce in between, a
receive from the previous stage and a send to the next; then the gradient all-reduce of the data
parallel group, overlapped with the last kernels, an all-reduce of all ranks, and the optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import NO_VALUE
from unified_prof.cluster import rank_communication
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_communication import CoveredTime
from unified_prof.cluster.rank_partial import Partial, RankFacts, RankGroup
from unified_prof.sqlite.writer import ReportWriter

START = 1_763_600_000_000_000_000
KERNELS = (("MatMul", 200_000), ("Attention", 300_000), ("Norm", 25_000), ("Gelu", 40_000))
SIZE = 8 << 20
GRADIENTS = 64 << 20
VERBS = {
    "all_reduce": "hcom_allReduce_",
    "all_to_all": "hcom_alltoallv_",
    "send": "hcom_send_",
    "receive": "hcom_receive_",
}


@dataclass(frozen=True)
class Plan:
    """Layout of a run and its faults."""

    tp: int = 2
    dp: int = 4
    pp: int = 2
    steps: int = 2
    batches: int = 2
    per_host: int = 4
    seed: int = 0
    noise: float = 0.01
    network_gb_per_s: float = 20.0
    """Bandwidth between hosts."""
    setup_ns: int = 0
    stalls: Mapping[int, int] = field(default_factory=dict)
    """Step -> additional time of the first gradient all-reduce, ns."""
    stalls_move: bool = True
    """True if tasks of the all-reduce cover that time; otherwise it looks like setup."""
    skew_ns: int = 2_000_000
    drift_ppm: float = 0.0
    """Standard deviation of the drift of host clocks."""
    slow: Mapping[int, float] = field(default_factory=dict)
    slow_kinds: Collection[str] = ("MatMul", "Attention", "Norm", "Gelu", "Adam", "GroupedMatMul")
    """Kernels that slow ranks run more slowly."""
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    slow_host: int | None = None
    late: Mapping[int, int] = field(default_factory=dict)
    late_in_turn: int = 0
    """Late input of one rank, ns; another rank in each step."""
    stops: Mapping[int, int] = field(default_factory=dict)
    """Rank -> pause per step without a recorded reason, ns."""
    stop_where: str = "begin"
    """Start of the step (begin), between two kernels, or before the all-reduce of all ranks."""
    loader: bool = True
    """True if input wait is recorded."""
    ep: int = 0
    """Number of data parallel ranks that share a set of experts; 0: no experts."""
    hot: Mapping[int, float] = field(default_factory=dict)
    """Rank -> tokens of its experts relative to the others in its group."""
    in_turn: float = 1.0
    """Factor of the kernel times of one rank; another rank in each step."""
    lengths: Sequence[float] = ()
    """Factors of the kernel times of the ranks in the first step; each step shifts them by one."""
    moving: float = 0.0
    """Tokens of one rank's experts relative to the others; another rank in each step."""
    uneven: float = 0.0
    """Standard deviation of the tokens per expert and call."""
    padded: bool = False
    """True if all experts receive the same number of tokens, padded."""
    buckets: int = 1
    """Gradient all-reduces per step; more than one overlap with layers of the backward pass."""
    only: Collection[int] | None = None
    """Steps with faults; None: all."""

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp

    def host(self, rank: int) -> int:
        return rank // self.per_host


@dataclass
class SimulatedRun:
    """Timelines of all ranks in true time, and the true figures."""

    plan: Plan
    groups: dict[tuple[int, ...], str]
    kernels: list[list[tuple[int, int, str]]]
    """Start, end and name, by rank."""
    operations: list[list[dict[str, Any]]]
    steps: list[list[tuple[int, int]]]
    inputs: list[list[tuple[int, int]]]
    clock: list[int]
    """Offset, by host."""
    wait: list[int]
    drift: list[float]
    """Gain in seconds per second, by host."""

    def local_time(self, rank: int, times: Any) -> Any:
        """Return true times as shown by the clock of the rank's host."""
        host = self.plan.host(rank)
        gained = np.rint(np.asarray(times) * self.drift[host]).astype(np.int64)
        return times + START + self.clock[host] + gained

    @property
    def step_ns(self) -> float:
        """Mean time of a step on the rank that ends last, for which the next step would wait."""
        ends = max(steps[-1][1] for steps in self.steps)
        return (ends - self.steps[0][0][0]) / len(self.steps[0])


def simulate(plan: Plan) -> SimulatedRun:
    """Simulate a run."""
    return _Simulation(plan).run()


class _Simulation:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        rng = np.random.default_rng(plan.seed)
        hosts = -(-plan.world // plan.per_host)
        clock = (rng.normal(0, 1, hosts) * plan.skew_ns).astype(int).tolist()
        groups: dict[tuple[int, ...], str] = {}
        rank = self.rank
        for d in range(plan.dp):
            for p in range(plan.pp):
                groups[tuple(rank(t, d, p) for t in range(plan.tp))] = "tp"
        for t in range(plan.tp):
            for p in range(plan.pp):
                groups[tuple(rank(t, d, p) for d in range(plan.dp))] = "dp"
            for d in range(plan.dp):
                groups[tuple(rank(t, d, p) for p in range(plan.pp))] = "pp"
            for first in range(0, plan.dp if plan.ep else 0, plan.ep or 1):
                for p in range(plan.pp):
                    members = range(first, first + plan.ep)
                    groups.setdefault(tuple(rank(t, d, p) for d in members), "ep")
        groups = {ranks: kind for ranks, kind in groups.items() if len(ranks) > 1}
        self.world = tuple(range(plan.world))
        groups.setdefault(self.world, "world")
        empty: list[list[Any]] = [[] for _ in range(plan.world)]
        self.simulated = SimulatedRun(
            plan,
            groups,
            [[] for _ in empty],
            [[] for _ in empty],
            [[] for _ in empty],
            [[] for _ in empty],
            clock,
            [0] * plan.world,
            np.random.default_rng(plan.seed + 1).normal(0, plan.drift_ppm * 1e-6, hosts).tolist(),
        )
        self.now = rng.integers(1_000_000, 1_200_000, plan.world).tolist()
        self.rng = rng
        self.count: dict[tuple[Any, ...], int] = {}
        self.stalled = set[int]()
        self.used: set[tuple[int, ...]] = set()
        self.reduced: dict[tuple[int, tuple[int, ...]], int] = {}
        self.step = 0
        self.between: set[tuple[int, int]] = set()

    @property
    def faulty(self) -> bool:
        """True if the faults apply in this step."""
        return self.plan.only is None or self.step in self.plan.only

    def rank(self, t: int, d: int, p: int) -> int:
        return (p * self.plan.dp + d) * self.plan.tp + t

    def group_of(self, kind: str, rank: int) -> tuple[int, ...] | None:
        found = [r for r, k in self.simulated.groups.items() if k == kind and rank in r]
        return found[0] if found else None

    def run(self) -> SimulatedRun:
        plan, simulated = self.plan, self.simulated
        for self.step in range(plan.steps):
            for rank in range(plan.world):
                begin = self.now[rank]
                simulated.steps[rank].append((begin, 0))
                self.now[rank] += 150_000 + (plan.late.get(rank, 0) if self.faulty else 0)
                if rank == self.step * 3 % plan.world:
                    self.now[rank] += plan.late_in_turn
                if plan.loader:
                    simulated.inputs[rank].append((begin, self.now[rank]))
                self.stop(rank, "begin")
            # By stage and batch, so that whatever a stage needs has been simulated.
            for _batch in range(plan.batches):
                for p in range(plan.pp):
                    stage = [r for r in range(plan.world) if r // (plan.tp * plan.dp) == p]
                    if p:
                        for rank in stage:
                            self.transfer(rank - plan.tp * plan.dp, rank)
                    for half in range(2):
                        for rank in stage:
                            self.work(rank, KERNELS[2 * half : 2 * half + 2])
                        for group in {self.group_of("tp", rank) for rank in stage} - {None}:
                            assert group is not None
                            self.all_reduce(group, SIZE, blocking=True)
                        for group, kind in simulated.groups.items():
                            if kind == "ep" and group[0] in stage:
                                self.experts(group)
            ends: dict[int, int] = {}
            if plan.buckets > 1:
                ends = self.backward()
            else:
                for group, kind in simulated.groups.items():
                    if kind == "dp":
                        ends.update(self.all_reduce(group, GRADIENTS, blocking=False))
            for rank in range(plan.world):
                self.work(rank, KERNELS[:1])
                self.now[rank] = max(self.now[rank], ends.get(rank, 0) + 3_000)
            for rank in range(plan.world):
                self.stop(rank, "collective")
            self.all_reduce(self.world, 4096, blocking=True)
            for rank in range(plan.world):
                self.work(rank, [("Adam", 400_000)])
                begin, _ = simulated.steps[rank][-1]
                simulated.steps[rank][-1] = (begin, self.now[rank])
        return simulated

    def stop(self, rank: int, where: str) -> None:
        if self.faulty and where == self.plan.stop_where:
            self.now[rank] += self.plan.stops.get(rank, 0)

    def backward(self) -> dict[int, int]:
        """Simulate the stages in reverse; gradients of a layer overlap with the previous layers."""
        plan, ends = self.plan, {}
        width = plan.tp * plan.dp
        for p in reversed(range(plan.pp)):
            stage = range(p * width, (p + 1) * width)
            for rank in stage if p < plan.pp - 1 else ():
                self.transfer(rank + width, rank)
            for _ in range(plan.buckets):
                for rank in stage:
                    self.work(rank, KERNELS)
                for group, kind in self.simulated.groups.items():
                    if kind == "tp" and group[0] in stage:
                        self.all_reduce(group, SIZE, blocking=True)
                for group, kind in self.simulated.groups.items():
                    if kind == "dp" and group[0] in stage:
                        size = GRADIENTS // plan.buckets
                        ends.update(self.all_reduce(group, size, blocking=False))
        return ends

    def work(self, rank: int, kernels: Sequence[tuple[str, int]]) -> None:
        late = self.faulty and self.plan.host(rank) == self.plan.slow_host
        gap = 40_000 if late else 1_500
        slow = self.plan.slow.get(rank, 1.0) if self.faulty else 1.0
        slow *= self.plan.in_turn if rank == self.step % self.plan.world else 1.0
        if lengths := self.plan.lengths:
            slow *= lengths[(rank + self.step) % len(lengths)]
        for number, (name, usual) in enumerate(kernels):
            if number and (rank, self.step) not in self.between:
                self.between.add((rank, self.step))
                self.stop(rank, "kernels")
            factor = slow if name in self.plan.slow_kinds else 1.0
            factor *= self.rng.normal(1, self.plan.noise)
            end = self.now[rank] + int(usual * factor)
            self.simulated.kernels[rank].append((self.now[rank], end, name))
            self.now[rank] = end + gap

    def speed(self, ranks: Sequence[int]) -> float:
        near = len({self.plan.host(rank) for rank in ranks}) == 1
        speed = 150.0 if near else self.plan.network_gb_per_s
        for pair, factor in self.plan.slow_links.items():
            if self.faulty and set(pair) <= set(ranks):
                speed /= factor
        return speed

    def number(self, *key: Any) -> int:
        self.count[key] = self.count.get(key, -1) + 1
        return self.count[key]

    def all_reduce(self, ranks: tuple[int, ...], size: int, *, blocking: bool) -> dict[int, int]:
        begin = [max(self.now[rank], self.reduced.get((rank, ranks), 0)) for rank in ranks]
        real = max(begin)
        setup = 0 if ranks in self.used else self.plan.setup_ns
        self.used.add(ranks)
        members = len(ranks)
        move = int(20_000 + size * 2 * (members - 1) / members / self.speed(ranks))
        if size >= GRADIENTS // self.plan.buckets and self.step not in self.stalled:
            self.stalled.add(self.step)
            stall = self.plan.stalls.get(self.step, 0)
            setup, move = (setup, move + stall) if self.plan.stalls_move else (setup + stall, move)
        seq = self.number(ranks)
        for rank, start in zip(ranks, begin, strict=True):
            end = real + setup + move + int(self.rng.integers(0, 1_000))
            self.simulated.wait[rank] += real - start
            row = {"kind": "all_reduce", "group": ranks, "seq": seq, "start": start, "end": end}
            row |= {"bytes": size, "peer": NO_VALUE, "move": end - real - setup}
            self.simulated.operations[rank].append(row)
            self.now[rank] = end + 3_000 if blocking else self.now[rank] + 2_000
            self.reduced[rank, ranks] = end
        return {rank: self.simulated.operations[rank][-1]["end"] for rank in ranks}

    def experts(self, ranks: tuple[int, ...]) -> None:
        """Send tokens to the ranks of the experts, compute, and send the results back."""
        plan = self.plan
        tokens = np.array([plan.hot.get(rank, 1.0) if self.faulty else 1.0 for rank in ranks])
        tokens *= np.maximum(self.rng.normal(1, plan.uneven, len(ranks)), 0.1)
        tokens[self.step % len(ranks)] *= plan.moving or 1.0
        tokens /= tokens.mean()
        equal = np.ones(len(ranks))
        # All ranks send equally many tokens, which arrive when the busiest rank has received its.
        self.all_to_all(ranks, equal if plan.padded else tokens, equal)
        for rank, share in zip(ranks, tokens.tolist(), strict=True):
            self.work(rank, [("GroupedMatMul", int(400_000 * share))])
        tokens = equal if plan.padded else tokens
        self.all_to_all(ranks, tokens, tokens)

    def all_to_all(
        self, ranks: tuple[int, ...], shares: NDArray[np.float64], sent: NDArray[np.float64]
    ) -> None:
        begin = [self.now[rank] for rank in ranks]
        real = max(begin)
        move = int(20_000 + SIZE * float(shares.max()) / self.speed(ranks))
        seq = self.number(ranks, "all_to_all")
        for rank, start, share in zip(ranks, begin, sent.tolist(), strict=True):
            end = real + move + int(self.rng.integers(0, 1_000))
            self.simulated.wait[rank] += real - start
            row = {"kind": "all_to_all", "group": ranks, "seq": seq, "start": start, "end": end}
            row |= {"bytes": int(SIZE * share), "peer": NO_VALUE, "move": end - real}
            self.simulated.operations[rank].append(row)
            self.now[rank] = end + 3_000

    def transfer(self, source: int, target: int) -> None:
        begin, ready = self.now[source], self.now[target]
        real = max(begin, ready)
        end = real + int(10_000 + SIZE / self.speed([source, target]))
        group = self.group_of("pp", source)
        for rank, peer, start, kind in (
            (source, target, begin, "send"),
            (target, source, ready, "receive"),
        ):
            self.simulated.wait[rank] += real - start
            row = {"kind": kind, "group": group, "seq": self.number(rank, peer, kind)}
            row |= {"start": start, "end": end, "bytes": SIZE, "peer": peer, "move": end - real}
            self.simulated.operations[rank].append(row)
        self.now[source] += 3_000
        self.now[target] = end + 3_000


def partial_of(simulated: SimulatedRun, rank: int, *, vendor: str = "huawei") -> Partial:
    """Return the partial of a rank's recording, in the clock of its host."""
    plan = simulated.plan
    rows = sorted(simulated.operations[rank], key=lambda row: int(row["start"]))
    groups = [group for group in simulated.groups if rank in group]
    kinds = (
        *("all_reduce", "all_to_all", "receive", "send"),
        *("coalesced", "all_gather", "reduce_scatter"),
    )
    table = np.array(
        [
            (
                groups.index(row["group"]),
                kinds.index(row["kind"]),
                row["seq"],
                int(simulated.local_time(rank, row["start"])),
                int(simulated.local_time(rank, row["end"])),
                row["bytes"],
                row["peer"],
                row["move"] if vendor == "huawei" else NO_VALUE,
            )
            for row in rows
        ],
        np.int64,
    ).reshape(-1, 8)
    names = [*partials.COMMUNICATION_COLUMNS[:8]]
    operations = {name: table[:, at] for at, name in enumerate(names)}
    kernels = sorted(simulated.kernels[rank])
    start = simulated.local_time(rank, np.array([k[0] for k in kernels], np.int64))
    end = simulated.local_time(rank, np.array([k[1] for k in kernels], np.int64))
    cover = CoveredTime(intervals.merge(start, end), start)
    bounds = simulated.local_time(rank, np.array(simulated.steps[rank], np.int64))
    steps = {"step": np.arange(len(bounds)), "start": bounds[:, 0], "end": bounds[:, 1]}
    waits = simulated.local_time(rank, np.array(simulated.inputs[rank], np.int64).reshape(-1, 2))
    texts = sorted({k[2] for k in kernels})
    code = np.array([texts.index(k[2]) for k in kernels], np.int64)
    operations["step"] = rank_communication.step_at(operations["start"], steps)
    operations["covered"] = intervals.covered(cover.set, operations["start"], operations["end"])
    busy = intervals.union(cover.set, intervals.merge(operations["start"], operations["end"]))
    loader = intervals.merge(waits[:, 0], waits[:, 1]) if plan.loader else None
    return Partial(
        facts=RankFacts(
            rank=rank,
            world_size=plan.world,
            host=f"host{plan.host(rank)}",
            device_id=rank % plan.per_host,
            device_name="Ascend910B",
            vendor=vendor,
            steps_recorded=True,
            loader_recorded=plan.loader,
        ),
        groups=tuple(
            RankGroup(
                f"{simulated.groups[one]}-{one[0]}",
                simulated.groups[one],
                simulated.groups[one],
                one,
                len(one),
            )
            for one in groups
        ),
        kinds=kinds,
        names=tuple(texts),
        modules=("",),
        communication={name: operations[name] for name in partials.COMMUNICATION_COLUMNS},
        marks=rank_communication.cut_at_marks(operations, steps, cover),
        steps=rank_communication.step_time_parts(steps, cover.set, operations, busy, loader),
        kernels=rank_communication.work_by_name(
            rank_communication.step_at(start, steps), code, 0 * code, end - start
        ),
        links=partials.empty_columns("links"),
    )


def partials_of(simulated: SimulatedRun, *, vendor: str = "huawei") -> list[Partial]:
    """Return the partials of all ranks."""
    return [partial_of(simulated, rank, vendor=vendor) for rank in range(simulated.plan.world)]


def write_database(simulated: SimulatedRun, rank: int, path: Path) -> Path:
    """Write a rank's recording as an msprof database with the tables of torch_npu."""
    plan = simulated.plan
    shift = START + simulated.clock[plan.host(rank)]
    groups = [group for group in simulated.groups if rank in group]
    hidden = {group: f"10.0.0.{at}%eth0_60000_{at}" for at, group in enumerate(simulated.groups)}
    with ReportWriter(path, revision="latest", overwrite=True) as writer:
        text = writer.strings.intern
        tasks: list[tuple[int, int, str]] = []
        compute: list[tuple[int, int, int]] = []
        for start, end, name in sorted(simulated.kernels[rank]):
            compute.append((len(tasks), text(f"aclnn{name}"), text(name)))
            tasks.append((start + shift, end + shift, "KERNEL_AICORE"))
        ops: list[tuple[Any, ...]] = []
        parts: list[tuple[Any, ...]] = []
        rows = sorted(simulated.operations[rank], key=lambda row: int(row["start"]))
        for number, row in enumerate(rows):
            group = row["group"]
            verb = VERBS[row["kind"]]
            label = text(f"{verb}_{number}")
            communicator = text(hidden[group])
            begin, end = row["start"] + shift, row["end"] + shift
            counts = (row["bytes"] // 2, len(group), 11, rank % plan.per_host)
            ops.append((label, begin, end, number, communicator, number, text(verb), *counts))
            here = group.index(rank)
            there = group.index(row["peer"]) if row["peer"] >= 0 else (here + 1) % len(group)
            ends = (there, here) if row["kind"] == "receive" else (here, there)
            parts.append((label, len(tasks), communicator, *ends, row["bytes"], number))
            tasks.append((end - row["move"], end, "MEMCPY"))
        numbered = [
            (start, end, text(kind), number, rank % plan.per_host)
            for number, (start, end, kind) in enumerate(tasks)
        ]
        _put(writer, "TASK", "startNs endNs taskType globalTaskId deviceId", numbered)
        _put(writer, "COMPUTE_TASK_INFO", "globalTaskId name opType", compute)
        columns = "opName startNs endNs connectionId groupName opId opType count rankSize"
        _put(writer, "COMMUNICATION_OP", f"{columns} dataType deviceId", ops)
        columns = "name globalTaskId groupName srcRank dstRank size opId"
        _put(writer, "COMMUNICATION_TASK_INFO", columns, parts)
        steps = [(at, a + shift, b + shift) for at, (a, b) in enumerate(simulated.steps[rank])]
        _put(writer, "STEP_TIME", "id startNs endNs", steps)
        loader = text("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        waits = simulated.inputs[rank]
        ranges = [(str(a + shift), str(b + shift), 1, loader, 50001) for a, b in waits]
        _put(writer, "PYTORCH_API", "startNs endNs globalTid name type", ranges)
        group_info = {
            hidden[group]: {
                "group_name": simulated.groups[group],
                "group_rank": group.index(rank),
                "global_ranks": list(group),
            }
            for group in groups
        }
        meta = {"parallel_group_info": group_info, "distributed_args": {"world_size": plan.world}}
        _put(writer, "META_DATA", "name value", [(k, json.dumps(v)) for k, v in meta.items()])
        _put(writer, "RANK_DEVICE_MAP", "rankId deviceId", [(rank, rank % plan.per_host)])
        _put(writer, "NPU_INFO", "id name", [(rank % plan.per_host, "Ascend910B")])
        _put(writer, "HOST_INFO", "hostUid hostName", [("1", f"host{plan.host(rank)}")])
    return path


def _put(writer: ReportWriter, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        writer.write(
            table, dict(zip(columns.split(), map(list, zip(*rows, strict=True)), strict=True))
        )
