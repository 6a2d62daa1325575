"""Collectives of Ascend devices and GPUs for `analysis.db`: times, links and bandwidths.

The rules are those of msprof's analysis (`--analyze=on`). A collective runs on several planes at
once: its times are those of the master's plane, bandwidths count all planes. CommAnalyzerMatrix of
torch_npu has the best and worst links of every kind of collective.

A task of a GPU belongs to the step that launched it, even if the device runs it later, so no task
belongs to two steps. A collective is one kernel that both waits for other ranks and transfers data.
Its wait and transfer times are therefore NULL, and bandwidths refer to the whole duration. Links
are not recorded, so transfers have no link name (torch_npu counts those as SDMA). A transfer goes
from sender to receiver if two ranks take part, otherwise from the rank to itself, so that readers
find the ranks of the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.base.columns import NO_RANK, NOT_AVAILABLE, group_hash
from unified_prof.base.text import NS_PER_MS, NS_PER_US
from unified_prof.errors import RawFormatError
from unified_prof.recording import collectives
from unified_prof.recording.steps import FOREVER, Range, Work
from unified_prof.sqlite.reader import Report


class RecordingDetails(Struct, frozen=True):
    """Values of a raw recording that its database does not contain."""

    # Hash ids of strings, including the names of communication groups.
    groups: Mapping[str, int] = field(default_factory=dict)
    offset_ns: int = 0  # Offset from the recording clock to Unix time.

    def group_name(self, text: str) -> str:
        """Return the hash id of a group name, which may already be a hash id."""
        if text in self.groups:
            return str(self.groups[text])
        return text if text.isdecimal() else str(group_hash(text))

    def start_us(self, ns: int) -> float:
        """Convert a start time to Unix microseconds, rounded as in msprof (float64 addition)."""
        return (ns - self.offset_ns) / 1000 + self.offset_ns / 1000


def read_details(prof: Path) -> RecordingDetails:
    """Read the details from a PROF_* directory; values that cannot be read keep their defaults."""
    from unified_prof.decoders.prof.directory import ProfDirectory

    try:
        directory = ProfDirectory(prof)
        texts = directory.dictionaries.hashes
    except RawFormatError:
        return RecordingDetails()
    start = (directory.host or directory.devices[0]).start
    begin, begin_monotonic = (
        start.integer("collectionTimeBegin"),
        start.integer("clockMonotonicRaw"),
    )
    offset = 0 if begin is None or begin_monotonic is None else begin * 1000 - begin_monotonic
    return RecordingDetails({text: number for number, text in texts.items()}, offset)


BYTES_PER_MB = 1e6
_PAYLOAD = "RDMA_SEND_PAYLOAD"
_COPIES = ("Memcpy", "Reduce_Inline")
_WAIT = "Notify_Wait"
_ON_CHIP = "ON_CHIP"
_DIGITS = 4
# Size from which on a packet counts as large, by transport.
_LARGE_MB = {"RDMA": 0.5}
_LARGE_OTHER_MB = 32.0
# Transport of a link type; other links have none in the matrix, and SDMA in the bandwidths.
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
        """Duration in nanoseconds."""
        return self.end_ns - self.start_ns

    @property
    def copies(self) -> bool:
        """True if the task is a copy by the device's copy engine."""
        return self.kind in _COPIES and self.transport == "SDMA"


class Transfer(NamedTuple):
    """Data sent over a link: one copy, or consecutive RDMA payloads and the tasks that end them."""

    transport: str | None  # As in CommAnalyzerMatrix.
    ranks: tuple[int | None, int | None]
    size_mb: float
    ms: float
    start_ns: int


class Traffic(Struct):
    """Totals of one transport type."""

    size_mb: float = 0.0
    ms: float = 0.0
    # Packet size in megabytes -> (count, milliseconds).
    packets: dict[float, list[float]] = field(default_factory=dict)

    def add(self, size_mb: float, ms: float, *, packet: bool = True) -> None:
        """Add a transfer; if `packet` is true, also count it by packet size."""
        self.size_mb += size_mb
        self.ms += ms
        if packet:
            counted = self.packets.setdefault(size_mb, [0, 0.0])
            counted[0] += 1
            counted[1] += ms


class Collective(Struct, frozen=True):
    """One collective operation of a communication group."""

    name: str
    group: str  # Hash id of the communication group.
    start_ns: int  # Start of the first task on the master plane.
    times: tuple[object, ...]  # Row of CommAnalyzerTime.
    transfers: tuple[Transfer, ...]  # Transfers on all planes, including on-chip transfers.

    def bandwidth_rows(self) -> Iterator[tuple[object, ...]]:
        """Yield rows of CommAnalyzerBandwidth: one for every transport and packet size."""
        traffic = {name: Traffic() for name in _BANDWIDTHS}
        for transfer in self.transfers:
            if transfer.transport == "LOCAL":
                continue
            name = transfer.transport or "SDMA"
            traffic[name].add(transfer.size_mb, transfer.ms)
            if name not in ("RDMA", "SDMA"):
                traffic["SDMA"].add(transfer.size_mb, transfer.ms, packet=False)
        for name, total in traffic.items():
            if not total.size_mb and not total.ms:
                continue
            head = (self.name, self.group, name, total.size_mb, total.ms)
            ratios = ratio(total.size_mb, total.ms), _large_share(name, total.packets)
            for size, (count, ms) in total.packets.items() or [(0, (0, 0))]:
                yield (*head, *ratios, size, count, ms)

    def by_link(self) -> dict[tuple[str, str], tuple[str | None, float, float]]:
        """Return (source rank, target rank) -> transport, megabytes and milliseconds."""
        links: dict[tuple[str, str], tuple[str | None, float, float]] = {}
        for transfer in self.transfers:
            if transfer.ranks[0] is None:
                continue
            ranks = (str(transfer.ranks[0]), str(transfer.ranks[1]))
            _, size, ms = links.get(ranks, (None, 0.0, 0.0))
            links[ranks] = (transfer.transport, size + transfer.size_mb, ms + transfer.ms)
        return links

    def link_rows(self) -> Iterator[tuple[object, ...]]:
        """Yield rows of CommAnalyzerMatrix as msprof writes them."""
        for (source, target), (transport, size, ms) in self.by_link().items():
            yield (self.name, self.group, source, target, transport, size, ms, ratio(size, ms))


def read_collectives(report: Report, details: RecordingDetails) -> list[Collective]:
    """Return all collectives, sorted by start; collectives without a master plane are omitted."""
    tasks = map(Task._make, report.rows(_TASKS))
    collectives = [
        _collective(list(group), details)
        for _, group in groupby(tasks, key=lambda task: (task.op, task.group, task.device))
    ]
    return sorted(filter(None, collectives), key=lambda collective: collective.start_ns)


def ratio(dividend: float, divisor: float) -> float:
    """Return the quotient rounded to four digits, 0 if the divisor is 0."""
    return round(dividend / divisor, _DIGITS) if divisor else 0


def _collective(tasks: list[Task], details: RecordingDetails) -> Collective | None:
    if all(task.is_master is None for task in tasks):  # not in older revisions
        master: Task | None = tasks[0]
    else:
        master = next((task for task in tasks if task.is_master), None)
    if master is None:
        return None
    closing = 2 if any(word in master.op.lower() for word in ("send", "receive")) else 4
    planes: dict[int | None, list[Task]] = {}
    for task in tasks:
        planes.setdefault(task.plane, []).append(task)
    parts = {plane: list(_parts(tasks, closing)) for plane, tasks in planes.items()}
    transfers = [part for found in parts.values() for part in found if isinstance(part, Transfer)]
    master_tasks, master_parts = planes[master.plane], parts[master.plane]
    waits = [part for part in master_parts if isinstance(part, Task)]
    transits = [
        part for part in master_parts if isinstance(part, Transfer) and part.transport != "LOCAL"
    ]
    transit = sum(transfer.ms for transfer in transits)
    waited = sum(task.ns for task in waits) / NS_PER_MS
    first = min((transfer.start_ns for transfer in transits), default=None)
    synchronized = sum(t.ns for t in waits if first is None or t.start_ns < first) / NS_PER_MS
    elapsed = (max(task.end_ns for task in master_tasks) - master_tasks[0].start_ns) / NS_PER_MS
    group = details.group_name(master.group)
    return Collective(
        master.op,
        group,
        master.start_ns,
        (
            *(master.op, group, details.start_us(master.start_ns)),
            *(elapsed, transit, waited, synchronized, elapsed - transit - waited),
        ),
        tuple(sorted(transfers, key=lambda transfer: transfer.start_ns)),
    )


def _parts(tasks: list[Task], closing: int) -> Iterator[Transfer | Task]:
    """Yield the transfers and the waiting tasks of one plane.

    The next `closing` tasks of any kind end a sequence of RDMA payloads. A sequence that is
    followed by fewer tasks is incomplete and skipped.
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
                size = sum(payload.size or 0 for payload in tasks[at:end]) / BYTES_PER_MB
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


def _large_share(transport: str, packets: dict[float, Any]) -> float:
    if transport == "SDMA":
        return 0
    min_mb = _LARGE_MB.get(transport, _LARGE_OTHER_MB)
    count = sum(counted[0] for counted in packets.values())
    return ratio(sum(counted[0] for size, counted in packets.items() if size > min_mb), count)


# Tried in this order if several begin at one position.
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


def matrix_rows(placed: Iterable[tuple[Collective, str, str]]) -> Iterator[tuple[object, ...]]:
    """Yield rows of CommAnalyzerMatrix as torch_npu writes them."""
    links: dict[tuple[str, str, str, str, tuple[str, str]], list[_Link]] = {}
    for collective, step, kind in placed:
        match = _KINDS.search(collective.name.lower())
        operation = match.group() if match else collective.name.partition("__")[0]
        for ranks, (transport, size, ms) in collective.by_link().items():
            key = (step, kind, operation, collective.group, ranks)
            link = _Link(collective.name, transport, size, ms, ratio(size, ms))
            links.setdefault(key, []).append(link)
    for (step, kind, operation, group, ranks), found in links.items():
        found.sort(key=lambda link: link.bandwidth, reverse=True)
        chosen = {"top1": found[0], "middle": found[len(found) // 2], "bottom1": found[-1]}
        if len(found) >= 2:
            chosen["bottom2"] = found[-2]
        if len(found) >= 3:
            chosen["bottom3"] = found[-3]
        size, ms = sum(link.size_mb for link in found), sum(link.ms for link in found)
        chosen["total"] = _Link("", found[0].transport, size, ms, ratio(size, ms))
        for place, link in chosen.items():
            yield (
                *(f"{operation}-{place}", group, *ranks, link.transport),
                *(link.size_mb, link.ms, link.bandwidth, step, kind, link.name),
            )


_LAUNCHED = "coalesce(a.startNs, t.startNs)"
_COMPUTE = f"""
SELECT t.deviceId AS device, t.startNs AS start, t.endNs AS end, {_LAUNCHED} AS at
FROM COMPUTE_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId
  LEFT JOIN CANN_API a ON a.connectionId = t.connectionId
"""
_COMMUNICATION = f"""
SELECT t.deviceId AS device, t.startNs AS start, t.endNs AS end, {_LAUNCHED} AS at,
  coalesce(s.value, '') LIKE 'receive%' AS receives
FROM COMMUNICATION_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId
  LEFT JOIN COMMUNICATION_OP o ON o.opId = c.opId LEFT JOIN STRING_IDS s ON s.id = o.opName
  LEFT JOIN CANN_API a ON a.connectionId = t.connectionId
"""
_COLLECTIVES = """
SELECT o.value, g.value, {ranks}, c.startNs, c.endNs, coalesce(a.startNs, c.startNs),
  i.size, i.srcRank, i.dstRank
FROM COMMUNICATION_OP c JOIN STRING_IDS o ON o.id = c.opName
  JOIN STRING_IDS g ON g.id = c.groupName
  LEFT JOIN COMMUNICATION_TASK_INFO i ON i.opId = c.opId
  LEFT JOIN CANN_API a ON a.connectionId = c.connectionId {join}
ORDER BY c.startNs, c.opId
"""
_PARAMETERS = "UPROF_COLLECTIVES"
_RANKS = (
    "(SELECT value FROM STRING_IDS WHERE id = p.groupRanks)",
    f"LEFT JOIN {_PARAMETERS} p ON p.opId = c.opId",
)
_NO_RANKS = "NULL", ""
_UNKNOWN_RANKS = (None, NO_RANK)
Ranks = tuple[int, ...]


def read_ranges(report: Report) -> list[Range]:
    """Return the host time range of each step; tasks launched in the range belong to the step."""
    steps = [
        Range(str(number), int(start), int(start), int(end))
        for number, start, end in report.rows("SELECT id, startNs, endNs FROM STEP_TIME ORDER BY 2")
    ]
    return steps or [Range(None, None, 0, FOREVER)]


def read_work(report: Report) -> tuple[Work, Work]:
    """Return compute and collective kernels with their launch times."""
    compute, communication = report.columns(_COMPUTE), report.columns(_COMMUNICATION)
    return _work(compute), _work(communication, receives=communication["receives"] != 0)


def _work(columns: dict[str, Ints], *, receives: Bools | None = None) -> Work:
    return Work(
        columns["device"], columns["start"], columns["end"], at_ns=columns["at"], receives=receives
    )


def read_gpu_collectives(report: Report) -> Iterator[tuple[int, Collective]]:
    """Yield the launch time and each call of a collective."""
    groups = collectives.load_groups(report)
    recorded = {rank for (rank,) in report.rows("SELECT rankId FROM RANK_DEVICE_MAP")}
    rank = recorded.pop() if len(recorded) == 1 else None
    ranks, join = _RANKS if _PARAMETERS in report.tables else _NO_RANKS
    for name, group, listed, start, end, launched, size, source, target in report.rows(
        _COLLECTIVES.format(ranks=ranks, join=join)
    ):
        if listed in (None, NOT_AVAILABLE):
            members = groups[group].ranks if group in groups else ()
        else:
            members = _parse_ranks(listed)
        ends = _endpoints(rank, members, source, target)
        ms = (end - start) / NS_PER_MS
        transfers: tuple[Transfer, ...] = ()
        if size is not None:
            transfers = (Transfer(None, ends or (None, None), size / BYTES_PER_MB, ms, start),)
        key = str(group_hash(group))
        times = (name, key, start / NS_PER_US, ms, None, None, None, None)
        yield launched, Collective(name, key, start, times, transfers)


def _parse_ranks(text: str) -> Ranks:
    """Parse a list of ranks such as `[0, 1]`; return () if the list is truncated in the trace."""
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    is_complete = isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
    return tuple(ranks) if is_complete else ()


def _endpoints(
    rank: int | None, members: Ranks, source: int | None, target: int | None
) -> tuple[int, int] | None:
    """Return the indexes of sender and receiver in the group, None if they are unknown.

    If the ranks of the group are known, `source` and `target` already are such indexes.
    """
    if rank is None or rank not in members:
        return None
    if source in _UNKNOWN_RANKS or target in _UNKNOWN_RANKS:
        index = members.index(rank)
        return index, index
    return source, target
