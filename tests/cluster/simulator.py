"""Simulator of multi-rank training that writes Kineto traces the way torch.profiler does.

Hosts run ahead of their devices and synchronize once per step. A device has one compute stream and
one stream per communicator; a collective starts when its last member has started. Transfer times
follow from the slowest link of the ring. The true cost of a fault is the difference in step time
from the same run without it.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

US, MS = 1_000.0, 1_000_000.0
EPOCH_US = 1_763_600_000_000_000
INSIDE_GB_PER_S, BETWEEN_GB_PER_S = 200.0, 41.0
LAUNCH_NS = 6 * US
LATENCY_NS = 3 * US
ACTIVATION_BYTES, GRADIENT_BYTES, SHARD_BYTES = 8 << 20, 48 << 20, 24 << 20
LAYER = (
    ("layer_norm", 40), ("qkv_gemm", 180), ("flash_attention", 260), ("proj_gemm", 90),
    ("dropout_add", 30), ("fc1_gemm", 300), ("gelu", 50), ("fc2_gemm", 280),
)  # fmt: skip
"""Kernels of a transformer layer and their durations in microseconds."""


@dataclass(frozen=True)
class Scenario:
    """A run and its faults; ranks are ordered tp (fastest), dp, pp."""

    scheme: str = "megatron"
    """megatron, fsdp, hsdp (shards inside hosts) or moe (fsdp with all-to-all)."""
    tp: int = 2
    dp: int = 2
    pp: int = 4
    layers: int = 2
    batches: int = 4
    steps: int = 4
    per_host: int = 4
    seed: int = 0
    noise: float = 0.004
    device_spread: float = 0.008
    """Standard deviation of the speed of devices."""
    host_names: bool = True
    """Write `host_name` into the traces."""
    file_hosts: bool = False
    """Name files as `tensorboard_trace_handler` does, by host and process."""
    slow: Mapping[int, float] = field(default_factory=dict)
    slow_kernels: Mapping[tuple[int, str], float] = field(default_factory=dict)
    nic: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """(host, "out" or "in") -> factor by which its traffic with other hosts is slower."""
    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    launch_ns: Mapping[int, float] = field(default_factory=dict)
    """Rank -> additional duration of each launch."""
    late_input_ns: Mapping[int, float] = field(default_factory=dict)
    pauses_ns: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(rank, step) -> pause of the host after loading its input."""
    checkpoint: Mapping[int, float] = field(default_factory=dict)
    """Step -> duration of a device-to-host copy on all ranks at its end, ns."""
    stage_work: Mapping[int, float] = field(default_factory=dict)
    drift: Mapping[int, float] = field(default_factory=dict)
    """Rank -> slowdown of its kernels in the last step; grows linearly from 0 in the first."""
    length_spread: float = 0.0
    """Standard deviation of the logarithm of the length of each data rank's sequences."""
    sharded_optimizer: bool = False
    """Gather parameters after the synchronization of a step, as Megatron does."""
    absent: Collection[int] = ()
    begins: Mapping[int, int] = field(default_factory=dict)
    """Rank -> first recorded step."""
    step_marks: bool = True

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp

    def healthy(self) -> Scenario:
        """Return the same run without faults."""
        faults = ("slow", "slow_kernels", "nic", "links", "launch_ns", "late_input_ns")
        cleared: dict[str, Any] = {name: {} for name in (*faults, "pauses_ns", "stage_work")}
        return replace(self, drift={}, checkpoint={}, **cleared)


@dataclass(eq=False)
class Collective:
    """Members start one by one; all end together."""

    missing: int
    ns: float
    start: float = 0.0
    waiting: list[Task] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """Task on one stream of a device."""

    name: str
    stream: int
    enqueued: float
    ns: float
    after: tuple[Task, ...] = ()
    collective: Collective | None = None
    args: dict[str, Any] = field(default_factory=dict)
    start: float = -1.0
    end: float = -1.0


class Rank:
    """Host and device of one rank."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number
        self.now = 0.0
        self.tasks: list[Task] = []
        self.ranges: list[tuple[str, float, float]] = []
        self.launches: list[tuple[float, float]] = []
        self.streams: dict[int, deque[Task]] = {}
        self.free: dict[int, float] = {}
        self.last: dict[int, Task] = {}
        self.step = 0
        scenario = run.scenario
        self.random = np.random.default_rng([scenario.seed, 1, number])
        self.speed = 1 + scenario.device_spread * self.random.standard_normal()
        self.program: Iterator[None] = getattr(self, f"_{scenario.scheme}")()
        self.done = False

    def advance(self) -> bool:
        """Run host and device until both are blocked; return True if anything happened."""
        happened = self._device()
        while not self.done and not any(self.streams.values()):
            happened = True
            self.done = next(self.program, "done") == "done"
            self._device()
        return happened

    def _device(self) -> bool:
        happened, again = False, True
        while again:
            again = False
            for stream, queue in self.streams.items():
                while queue and queue[0].end < 0 and self._start(queue[0]):
                    again = True
                while queue and queue[0].end >= 0:
                    self.free[stream] = queue.popleft().end
                    happened = again = True
        return happened

    def _start(self, task: Task) -> bool:
        if task.start >= 0 or any(one.end < 0 for one in task.after):
            return False
        task.start = max(
            task.enqueued + LATENCY_NS, self.free.get(task.stream, 0.0) + 1.5 * US,
            *(one.end + US for one in task.after), 0.0,
        )  # fmt: skip
        collective = task.collective
        if collective is None:
            task.end = task.start + task.ns
            return True
        collective.start = max(collective.start, task.start)
        collective.missing -= 1
        collective.waiting.append(task)
        if not collective.missing:
            for one in collective.waiting:
                one.end = collective.start + collective.ns
        return True

    def _launch(self, name: str, ns: float, stream: int = 7, **more: Any) -> Task:
        extra = self.run.scenario.launch_ns.get(self.number, 0.0)
        begin = self.now
        self.now += (LAUNCH_NS + extra) * (1 + 0.1 * abs(self.random.standard_normal()))
        self.launches.append((begin, self.now))
        task = Task(name, stream, self.now, ns, **more)
        self.tasks.append(task)
        self.streams.setdefault(stream, deque()).append(task)
        self.last[stream] = task
        return task

    def _kernel(self, name: str, us: float, after: tuple[Task, ...] = ()) -> Task:
        scenario = self.run.scenario
        factor = self.speed * (1 + scenario.noise * self.random.standard_normal())
        factor *= scenario.slow.get(self.number, 1.0)
        factor *= scenario.slow_kernels.get((self.number, name.removesuffix("_bwd")), 1.0)
        factor *= scenario.stage_work.get(self.run.stage(self.number), 1.0)
        drift = scenario.drift.get(self.number, 0.0)
        factor *= 1 + drift * self.step / max(scenario.steps - 1, 1)
        if scenario.length_spread:
            seed = [scenario.seed, 3, self.number // scenario.tp % scenario.dp, self.step]
            spread = scenario.length_spread * np.random.default_rng(seed).standard_normal()
            factor *= float(np.exp(spread))
        return self._launch(name, us * US * factor, after=after)

    def _collective(self, kind: str, group: str, size: int, *, after: bool = True) -> Task:
        ranks = self.run.groups[group, self.number]
        args = {
            "Collective name": kind,
            "In msg nelems": size // 2 // (len(ranks) if kind == "_allgather_base" else 1),
            "Out msg nelems": size // 2 // (len(ranks) if "scatter" in kind else 1),
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": self.run.group_name(group, ranks),
            "Process Group Description": group if group != "default" else "default_pg",
            "Process Group Ranks": truncated_ranks([*ranks]),
        }
        key = (group, ranks, kind)
        event = self.run.event(self.number, key, ranks, self.run.ring_ns(kind, ranks, size))
        name = {"allreduce": "AllReduce_Sum_bf16_RING_LL", "_allgather_base": "AllGather_RING_LL",
                "_reduce_scatter_base": "ReduceScatter_Sum_bf16_RING_LL",
                "all_to_allv": "SendRecv"}[kind]  # fmt: skip
        deps = (self.last[7],) if after and 7 in self.last else ()
        stream = 20 + sorted(self.run.kinds).index(group)
        return self._launch(
            f"ncclDevKernel_{name}", 0.0, stream, after=deps, collective=event, args=args
        )

    def _transfer(self, peer: int, *, send: bool, what: str) -> Task:
        ends = (self.number, peer) if send else (peer, self.number)
        args = {
            "Collective name": "send" if send else "recv",
            "In msg nelems": ACTIVATION_BYTES // 2, "Out msg nelems": ACTIVATION_BYTES // 2,
            "Group size": self.run.scenario.pp, "dtype": "BFloat16",
            "Process Group Name": self.run.group_name("pp", self.run.groups["pp", self.number]),
            "Process Group Description": "pp",
            "Process Group Ranks": truncated_ranks([*self.run.groups["pp", self.number]]),
            "Src Rank": ends[0], "Dst Rank": ends[1],
        }  # fmt: skip
        ns = ACTIVATION_BYTES / self.run.gb_per_s(*ends)
        event = self.run.event(self.number, ends, ends, ns)
        deps = (self.last[7],) if 7 in self.last else ()
        stream = (50 if send else 60) + (what == "gradient")
        return self._launch(
            "ncclDevKernel_SendRecv", 0.0, stream, after=deps, collective=event, args=args
        )

    def _steps(self) -> Iterator[int]:
        """Yield each step after its input has been loaded, and record its range."""
        scenario = self.run.scenario
        for self.step in range(scenario.steps):
            begin = self.now
            late = scenario.late_input_ns.get(self.number, 0.0)
            self.now += (150 + 10 * self.random.random()) * US + late
            loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self.ranges.append((loader, begin + US, self.now))
            self.now += scenario.pauses_ns.get((self.number, self.step), 0.0)
            yield self.step
            self.now = max(self.now, *(task.end for task in self.last.values())) + 20 * US
            if scenario.sharded_optimizer:
                self._kernel("adamw", 150)
                gathered = self._collective("_allgather_base", "dp", SHARD_BYTES)
                self._kernel("unshard", 10, (gathered,))
            self.ranges.append((f"ProfilerStep#{self.step}", begin, self.now))
            self.now += 30 * US
        self.done = True

    def _finish(self) -> None:
        """Run the optimizer, and write a checkpoint if the step has one."""
        for _ in range(4):
            self._kernel("adamw", 150, tuple(self.last.values()))
        copy = self.run.scenario.checkpoint.get(self.step)
        if copy:
            ns = copy * (1 + 0.02 * self.random.standard_normal())
            self._launch("Memcpy DtoH (Device -> Pinned)", ns)

    def _layer(self, suffix: str, factor: float, group: str | None = None) -> None:
        order = LAYER if factor == 1 else LAYER[::-1]
        for number, (name, us) in enumerate(order):
            self._kernel(name + suffix, us * factor)
            if group and number in (3, 7):
                done = self._collective("allreduce", group, ACTIVATION_BYTES)
                self._kernel("add" + suffix, 20, (done,))

    def _megatron(self) -> Iterator[None]:
        scenario, stage = self.run.scenario, self.run.stage(self.number)
        stride, last = scenario.tp * scenario.dp, scenario.pp - 1
        tensor = "tp" if scenario.tp > 1 else None

        def forward() -> None:
            if stage:
                got = self._transfer(self.number - stride, send=False, what="activation")
                self._kernel("embed", 20, (got,))
            for _ in range(scenario.layers):
                self._layer("", 1, tensor)
            if stage < last:
                self._transfer(self.number + stride, send=True, what="activation")

        def backward(*, reduce: bool) -> None:
            if stage < last:
                got = self._transfer(self.number + stride, send=False, what="gradient")
                self._kernel("embed", 20, (got,))
            for _ in range(scenario.layers):
                self._layer("_bwd", 2, tensor)
                if reduce and scenario.dp > 1:
                    self._collective("allreduce", "dp", GRADIENT_BYTES)
            if stage:
                self._transfer(self.number - stride, send=True, what="gradient")

        warm = min(last - stage, scenario.batches)
        for _ in self._steps():
            for _ in range(warm):
                forward()
            for batch in range(scenario.batches):
                if batch + warm < scenario.batches:
                    forward()
                backward(reduce=batch == scenario.batches - 1)
            self._collective("allreduce", "default", 1024)
            self._finish()
            yield

    def _fsdp(self, shard: str = "default", *, replicate: str | None = None) -> Iterator[None]:
        layers, experts = 3 * self.run.scenario.layers, self.run.scenario.scheme == "moe"
        for _ in self._steps():
            for suffix, factor in (("", 1), ("_bwd", 2)):
                ready = self._collective("_allgather_base", shard, SHARD_BYTES, after=False)
                for layer in range(layers):
                    following = ready
                    if layer < layers - 1:
                        following = self._collective("_allgather_base", shard, SHARD_BYTES)
                    self._kernel("unshard" + suffix, 10, (ready,))
                    self._layer(suffix, factor)
                    if experts:
                        sent = self._collective("all_to_allv", "ep", ACTIVATION_BYTES)
                        self._kernel("expert_gemm" + suffix, 250 * factor, (sent,))
                        sent = self._collective("all_to_allv", "ep", ACTIVATION_BYTES)
                        self._kernel("combine" + suffix, 20, (sent,))
                    ready = following
                    if factor == 2:
                        self._collective("_reduce_scatter_base", shard, SHARD_BYTES)
                        if replicate:
                            self._collective("allreduce", replicate, SHARD_BYTES // 4)
            self._finish()
            yield

    def _hsdp(self) -> Iterator[None]:
        return self._fsdp("shard", replicate="replicate")

    def _moe(self) -> Iterator[None]:
        return self._fsdp()


class Run:
    """All ranks of a scenario, simulated."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.groups: dict[tuple[str, int], tuple[int, ...]] = {}
        self._events: dict[Any, Collective] = {}
        self._counts: dict[Any, int] = {}
        world, tp, host = range(scenario.world), scenario.tp, scenario.per_host
        stride = tp * scenario.dp
        for rank in world:
            first = rank // stride * stride + rank % tp
            for kind, ranks in {
                "default": world,
                "tp": range(rank // tp * tp, rank // tp * tp + tp),
                "dp": range(first, first + stride, tp),
                "pp": range(rank % stride, scenario.world, stride),
                "shard": range(rank // host * host, rank // host * host + host),
                "ep": range(rank // host * host, rank // host * host + host),
                "replicate": range(rank % host, scenario.world, host),
            }.items():
                self.groups[kind, rank] = tuple(ranks)
        self.kinds = {kind for kind, _ in self.groups}
        named = sorted({(kind, ranks) for (kind, _), ranks in self.groups.items()})
        self.names = {group: str(number) for number, group in enumerate(named)}
        self.random = np.random.default_rng([scenario.seed, 2])
        self.ranks = [Rank(self, rank) for rank in world]
        while sum(rank.advance() for rank in self.ranks):
            pass
        assert all(rank.done for rank in self.ranks), "deadlock"

    def stage(self, rank: int) -> int:
        return rank // (self.scenario.tp * self.scenario.dp)

    def host(self, rank: int) -> int:
        return rank // self.scenario.per_host

    def group_name(self, kind: str, ranks: Sequence[int]) -> str:
        return self.names[kind, tuple(ranks)]

    def gb_per_s(self, source: int, target: int) -> float:
        ends, scenario = (self.host(source), self.host(target)), self.scenario
        rate = INSIDE_GB_PER_S / scenario.links.get((source, target), 1.0)
        if ends[0] != ends[1]:
            rate = BETWEEN_GB_PER_S / scenario.links.get((source, target), 1.0)
            rate /= scenario.nic.get((ends[0], "out"), 1.0)
            rate /= scenario.nic.get((ends[1], "in"), 1.0)
        return rate

    def ring_ns(self, kind: str, ranks: Sequence[int], size: int) -> float:
        passes = (2 if kind == "allreduce" else 1) * (len(ranks) - 1) / len(ranks)
        # NCCL uses the adapters of all members on a host at once.
        adapters = len(ranks) / len({self.host(rank) for rank in ranks})
        rate = min(
            self.gb_per_s(a, b) * (adapters if self.host(a) != self.host(b) else 1)
            for a, b in zip(ranks, (*ranks[1:], ranks[0]), strict=True)
        )
        return 10 * US + passes * size / rate

    def event(self, rank: int, key: Any, ranks: Sequence[int], ns: float) -> Collective:
        """Return the collective of the next call of a rank with this key."""
        number = self._counts[rank, key] = self._counts.get((rank, key), -1) + 1
        if (key, number) not in self._events:
            noise = 1 + self.scenario.noise * self.random.standard_normal()
            self._events[key, number] = Collective(len(ranks), ns * noise)
        return self._events[key, number]

    @property
    def step_ms(self) -> float:
        """Mean time of a step on the rank that ends last, for which the next step would wait."""
        marks = [
            [one for one in rank.ranges if one[0].startswith("Profiler")] for rank in self.ranks
        ]
        return (max(one[-1][2] for one in marks) - marks[0][0][1]) / len(marks[0]) / MS

    def write(self, folder: Path) -> Path:
        """Write one trace per recorded rank."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in self.ranks:
            if rank.number not in self.scenario.absent:
                self._write(folder, rank)
        return folder

    def _write(self, folder: Path, rank: Rank) -> None:
        scenario, host = self.scenario, f"gpu{self.host(rank.number):03d}"
        first, process = scenario.begins.get(rank.number, 0), 4000 + rank.number
        marks = [one for one in rank.ranges if one[0].startswith("Profiler")]
        begin = marks[first][1]
        clock = EPOCH_US + 137 * self.host(rank.number)

        def event(cat: str, name: str, start: float, end: float, tid: int, **args: Any) -> Any:
            pid = process if tid == process else rank.number % scenario.per_host
            times = {"ts": clock + start / US, "dur": (end - start) / US}
            return (
                {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
                | times
                | {"args": args}
            )

        events = [
            event("user_annotation", name, start, end, process, **{"External id": at})
            for at, (name, start, end) in enumerate(rank.ranges)
            if start >= begin and (scenario.step_marks or not name.startswith("Profiler"))
        ]
        pairs = zip(rank.tasks, rank.launches, strict=True)
        for number, (task, launch) in enumerate(pairs, start=1):
            if launch[0] < begin:
                continue
            ids = {"correlation": number, "External id": number}
            is_copy = task.name.startswith("Memcpy")
            name = "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
            events.append(event("cuda_runtime", name, *launch, process, **ids))
            args = {"device": rank.number % scenario.per_host, "context": 1, **ids, **task.args}
            args |= {"stream": task.stream, "grid": [132, 1, 1], "block": [128, 1, 1]}
            cat = "gpu_memcpy" if is_copy else "kernel"
            args |= {"bytes": 1 << 30} if is_copy else {}
            events.append(event(cat, task.name, task.start, task.end, task.stream, **args))
        groups = {(kind, ranks) for (kind, one), ranks in self.groups.items() if one == rank.number}
        about: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": n, "name": "NVIDIA H100"} for n in range(8)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank.number,
                "world_size": scenario.world,
                "pg_count": len(groups),
                "pg_config": [
                    {
                        "pg_name": self.group_name(*group),
                        "pg_desc": group[0] if group[0] != "default" else "default_pg",
                        "pg_size": len(group[1]),
                        "ranks": [*group[1]],
                    }
                    for group in sorted(groups)
                ],
            },
        }
        if scenario.host_names:
            about["host_name"] = host
        name = f"rank{rank.number}.pt.trace.json.gz"
        if scenario.file_hosts:
            name = f"{host}_{process}.{EPOCH_US + rank.number}.pt.trace.json.gz"
        # As one text: `json.dump` would encode each value in Python.
        text = json.dumps({**about, "traceEvents": events, "traceName": f"./log/{name}"})
        (folder / name).write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def truncated_ranks(ranks: list[int]) -> str:
    """Return a list of ranks as torch writes it: truncated after 30."""
    return f"[{', '.join(map(str, ranks[:30]))}{', ...' if len(ranks) > 30 else ''}]"


def true_cost_ms(scenario: Scenario, run: Run | None = None) -> float:
    """Return the time per step that the faults of a scenario cost."""
    healthy = scenario.healthy()
    if repr(healthy) not in _healthy_step_ms:
        _healthy_step_ms[repr(healthy)] = Run(healthy).step_ms
    return (run or Run(scenario)).step_ms - _healthy_step_ms[repr(healthy)]


_healthy_step_ms: dict[str, float] = {}
