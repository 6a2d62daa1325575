"""What analyses take from a recording itself: numbers of groups, the offset of its clock.

Collectives: where the time of each went, and how much passed over which links.

The rules are those of msprof's own analysis (`--analyze=on`). A collective runs on several planes
at once; its times are those of the master's plane, bandwidths count all of them.

CommAnalyzerMatrix as torch_npu has it: of every kind of collective the best and worst links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from unified_prof.base.text import NS_PER_MS
from unified_prof.base.vocabulary import NO_RANK, group_hash
from unified_prof.sqlite.reader import Report


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a database made of a recording does not keep."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """Numbers of texts, names of communication groups among them."""
    offset_ns: int = 0
    """Of the epoch to the clock that times were taken with."""

    def group_name(self, text: str) -> str:
        """Return what stands in `group_name`: a group's number, which its name may be already."""
        if text in self.groups:
            return str(self.groups[text])
        return text if text.isdecimal() else str(group_hash(text))

    def start_us(self, ns: int) -> float:
        """Return a time as msprof computes it: the sum of two float64, a quarter of a us exact."""
        return (ns - self.offset_ns) / 1000 + self.offset_ns / 1000


def read_recorded(prof: Path) -> Recorded:
    """Read it from a PROF_* directory; what cannot be read is left out."""
    from unified_prof.decoders.prof.directory import ProfDirectory
    from unified_prof.errors import RawFormatError

    try:
        directory = ProfDirectory(prof)
        texts = directory.dictionaries.hashes
    except RawFormatError:
        return Recorded()
    start = (directory.host or directory.devices[0]).start
    begin, begin_monotonic = (
        start.integer("collectionTimeBegin"),
        start.integer("clockMonotonicRaw"),
    )
    offset = 0 if begin is None or begin_monotonic is None else begin * 1000 - begin_monotonic
    return Recorded({text: number for number, text in texts.items()}, offset)


BYTES_PER_MB = 1e6
_PAYLOAD = "RDMA_SEND_PAYLOAD"
_COPIES = ("Memcpy", "Reduce_Inline")
_WAIT = "Notify_Wait"
_ON_CHIP = "ON_CHIP"
_DIGITS = 4
_LARGE_MB = {"RDMA": 0.5}
_LARGE_OTHER_MB = 32.0
# What a link is called in the bandwidths, and in the matrix; others are SDMA, and nothing.
_TRANSPORTS = {"HCCS": "HCCS", "HCCS_SW": "HCCS", "PCIE": "PCIE", "SIO": "SIO"}
_BANDWIDTHS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")

_TASKS = """
SELECT n.value AS op, g.value AS grp, t.deviceId, c.planeId, k.value AS kind, tt.name AS transport,
  lt.name AS link, rt.name AS rdma, c.srcRank, c.dstRank, c.size, c.isMaster, t.startNs, t.endNs
FROM COMMUNICATION_TASK_INFO c
  JOIN TASK t ON t.globalTaskId = c.globalTaskId
  LEFT JOIN STRING_IDS n ON n.id = c.name
  LEFT JOIN STRING_IDS g ON g.id = c.groupName
  LEFT JOIN STRING_IDS k ON k.id = c.taskType
  LEFT JOIN ENUM_HCCL_TRANSPORT_TYPE tt ON tt.id = c.transportType
  LEFT JOIN ENUM_HCCL_LINK_TYPE lt ON lt.id = c.linkType
  LEFT JOIN ENUM_HCCL_RDMA_TYPE rt ON rt.id = c.rdmaType
WHERE n.value IS NOT NULL AND g.value IS NOT NULL AND t.startNs IS NOT NULL
  AND t.endNs IS NOT NULL
ORDER BY n.value, g.value, t.deviceId, t.startNs, t.endNs
"""


class Task(NamedTuple):
    """One task of a collective."""

    op: str
    group: str
    device: int | None
    plane: int | None
    kind: str | None
    transport: str | None
    link: str | None
    rdma: str | None
    source: int | None
    target: int | None
    size: int | None
    is_master: int | None
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    @property
    def copies(self) -> bool:
        """Whether it moves data by the device's own copy engine."""
        return self.kind in _COPIES and self.transport == "SDMA"


class Transfer(NamedTuple):
    """Data that passed over a link: one copy, or a run of RDMA payloads with what closes it."""

    transport: str | None
    """As the matrix has it."""
    ranks: tuple[int | None, int | None]
    size_mb: float
    ms: float
    start_ns: int


@dataclass(slots=True)
class Traffic:
    """What passed by one kind of transport."""

    size_mb: float = 0.0
    ms: float = 0.0
    packets: dict[float, list[float]] = field(default_factory=dict)
    """Count and time by size."""

    def add(self, size_mb: float, ms: float, *, packet: bool = True) -> None:
        """Count a transfer, and its size as that of a packet."""
        self.size_mb += size_mb
        self.ms += ms
        if packet:
            counted = self.packets.setdefault(size_mb, [0, 0.0])
            counted[0] += 1
            counted[1] += ms


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on its group."""

    name: str
    group: str
    """As its number."""
    start_ns: int
    """When its master began."""
    times: tuple[object, ...]
    """A row of CommAnalyzerTime."""
    transfers: tuple[Transfer, ...]
    """Of all planes, those on the chip included."""

    def bandwidths(self) -> Iterator[tuple[object, ...]]:
        """Yield rows of CommAnalyzerBandwidth: one for every size of packets."""
        traffic = {name: Traffic() for name in _BANDWIDTHS}
        for one in self.transfers:
            if one.transport == "LOCAL":
                continue
            name = one.transport or "SDMA"
            traffic[name].add(one.size_mb, one.ms)
            if name not in ("RDMA", "SDMA"):
                traffic["SDMA"].add(one.size_mb, one.ms, packet=False)
        for name, found in traffic.items():
            if not found.size_mb and not found.ms:
                continue
            head = (self.name, self.group, name, found.size_mb, found.ms)
            ratios = ratio(found.size_mb, found.ms), _large(name, found.packets)
            for size, (count, ms) in found.packets.items() or [(0, (0, 0))]:
                yield (*head, *ratios, size, count, ms)

    def by_link(self) -> dict[tuple[str, str], tuple[str | None, float, float]]:
        """Return transport, size and time by source and target."""
        found: dict[tuple[str, str], tuple[str | None, float, float]] = {}
        for one in self.transfers:
            if one.ranks[0] is None:
                continue
            ranks = (str(one.ranks[0]), str(one.ranks[1]))
            _, size, ms = found.get(ranks, (None, 0.0, 0.0))
            found[ranks] = (one.transport, size + one.size_mb, ms + one.ms)
        return found

    def links(self) -> Iterator[tuple[object, ...]]:
        """Yield rows of CommAnalyzerMatrix as msprof has it."""
        for (source, target), (transport, size, ms) in self.by_link().items():
            yield (self.name, self.group, source, target, transport, size, ms, ratio(size, ms))


def read_collectives(report: Report, recorded: Recorded) -> list[Collective]:
    """Return all collectives in the order of their starts; those without a master are left out.

    Args:
        report: An msprof database.
        recorded: What the recording says besides.
    """
    tasks = map(Task._make, report.rows(_TASKS))
    found = [
        _collective(list(own), recorded)
        for _, own in groupby(tasks, key=lambda one: (one.op, one.group, one.device))
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.start_ns)


def ratio(dividend: float, divisor: float) -> float:
    """Return the quotient to four digits, 0 where there is nothing to divide by."""
    return round(dividend / divisor, _DIGITS) if divisor else 0


def _collective(tasks: list[Task], recorded: Recorded) -> Collective | None:
    if all(task.is_master is None for task in tasks):  # a revision that does not keep it
        master: Task | None = tasks[0]
    else:
        master = next((task for task in tasks if task.is_master), None)
    if master is None:
        return None
    closing = 2 if any(word in master.op.lower() for word in ("send", "receive")) else 4
    planes: dict[int | None, list[Task]] = {}
    for task in tasks:
        planes.setdefault(task.plane, []).append(task)
    walked = {plane: list(_walk(own, closing)) for plane, own in planes.items()}
    transfers = [one for found in walked.values() for one in found if isinstance(one, Transfer)]
    own, found = planes[master.plane], walked[master.plane]
    transits = [one for one in found if isinstance(one, Transfer) and one.transport != "LOCAL"]
    waits = [one for one in found if isinstance(one, Task)]
    transit = sum(one.ms for one in transits)
    waited = sum(task.ns for task in waits) / NS_PER_MS
    first = min((one.start_ns for one in transits), default=None)
    synchronized = sum(t.ns for t in waits if first is None or t.start_ns < first) / NS_PER_MS
    elapsed = (max(task.end_ns for task in own) - own[0].start_ns) / NS_PER_MS
    group = recorded.group_name(master.group)
    return Collective(
        master.op,
        group,
        master.start_ns,
        (
            *(master.op, group, recorded.start_us(master.start_ns)),
            *(elapsed, transit, waited, synchronized, elapsed - transit - waited),
        ),
        tuple(sorted(transfers, key=lambda one: one.start_ns)),
    )


def _walk(tasks: list[Task], closing: int) -> Iterator[Transfer | Task]:
    """Yield what passed on one plane, and the tasks that waited.

    A run of RDMA payloads is closed by the tasks that follow it, whatever they are and do; without
    so many it has no end, and is passed over.
    """
    at = 0
    while at < len(tasks):
        task = tasks[at]
        if task.rdma == _PAYLOAD:
            end = at
            while end < len(tasks) and tasks[end].rdma == _PAYLOAD:
                end += 1
            last = end + closing - 1
            if last < len(tasks):
                size = sum(one.size or 0 for one in tasks[at:end]) / BYTES_PER_MB
                ms = (tasks[last].end_ns - task.start_ns) / NS_PER_MS
                yield Transfer("RDMA", _ranks(task), size, ms, task.start_ns)
                at = last + 1
                continue
        elif task.copies:
            link = "LOCAL" if task.link == _ON_CHIP else _TRANSPORTS.get(task.link or "")
            size = (task.size or 0) / BYTES_PER_MB
            yield Transfer(link, _ranks(task), size, task.ns / NS_PER_MS, task.start_ns)
        elif task.kind == _WAIT:
            yield task
        at += 1


def _ranks(task: Task) -> tuple[int | None, int | None]:
    target = task.source if task.target == NO_RANK else task.target
    return task.source, target


def _large(name: str, packets: dict[float, Any]) -> float:
    if name == "SDMA":
        return 0
    least = _LARGE_MB.get(name, _LARGE_OTHER_MB)
    count = sum(found[0] for found in packets.values())
    return ratio(sum(found[0] for size, found in packets.items() if size > least), count)


# In the order in which they are tried where several begin at one place.
_KINDS = re.compile(
    "send|reduce|invalid|broadcast|allreduce|receive|allgather|reducescatter|scatter|alltoall|"
    "alltoallv|alltoallvc|batchsendrecv"
)


class _Link(NamedTuple):
    name: str
    transport: str | None
    size_mb: float
    ms: float
    bandwidth: float


def rows(placed: Iterable[tuple[Collective, str, str]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of collectives with their step and type."""
    links: dict[tuple[str, str, str, str, tuple[str, str]], list[_Link]] = {}
    for one, step, kind in placed:
        for ranks, (transport, size, ms) in one.by_link().items():
            key = (step, kind, _operation(one.name), one.group, ranks)
            link = _Link(one.name, transport, size, ms, ratio(size, ms))
            links.setdefault(key, []).append(link)
    for (step, kind, operation, group, ranks), found in links.items():
        found.sort(key=lambda link: link.bandwidth, reverse=True)
        chosen = {"top1": found[0], "middle": found[len(found) // 2], "bottom1": found[-1]}
        if len(found) >= 2:
            chosen["bottom2"] = found[-2]
        if len(found) >= 3:
            chosen["bottom3"] = found[-3]
        size, ms = sum(one.size_mb for one in found), sum(one.ms for one in found)
        chosen["total"] = _Link("", found[0].transport, size, ms, ratio(size, ms))
        for place, link in chosen.items():
            yield (
                *(f"{operation}-{place}", group, *ranks, link.transport),
                *(link.size_mb, link.ms, link.bandwidth, step, kind, link.name),
            )


def _operation(name: str) -> str:
    found = _KINDS.search(name.lower())
    return found.group() if found else name.partition("__")[0]
