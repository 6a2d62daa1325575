"""Collectives of a recording: canonical kinds, message sizes, devices and groups of ranks.

Vendors and versions use different names for the same collective; `canonical` maps them to one name.

META_DATA.parallel_group_info, written by torch_npu and `uprof convert`, has the framework's name
and the global ranks of each communicator. COMMUNICATION_OP.groupName identifies the communicator:
by its name or, at some recording levels, by a number that msprof computes from the name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Frame, Ints, Lookup, by_key, value_by_key
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.arrays.packed import codes
from unified_prof.base.columns import group_hash
from unified_prof.recording.calls import UNKNOWN, Labels, sort_rows
from unified_prof.recording.model import Row
from unified_prof.recording.source import Findings, Source, Strings, possible
from unified_prof.recording.tasks import Tasks

SEND = "send"
RECEIVE = "receive"
POINT_TO_POINT = frozenset({SEND, RECEIVE})

SDMA, RDMA, ON_CHIP = 0, 1, 0  # Values of transportType and linkType.
# Kinds for which HCCL records the size of one rank's part.
PARTED = ("all_gather", "reduce_scatter")
_PREFIX = re.compile(r"^(?:hcom_?|c10d::|nccl:|gloo:|_+)+|(?:nccl|rccl|hccl)(?:dev)?(?:kernel)?_?")
_SUFFIX = re.compile(r"(?:_base|_single|_coalesced|_into_tensor|_tensor|_vc|vc|_v|v|_oop|_)+$")

# `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)`: the algorithm follows the kind.
_OF_KERNEL = re.compile(r"(?:nccl|rccl|hccl)\w*?kernel_([a-z]+)_[^:]*")

# Names without prefix, suffix and underscores -> canonical name.
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": SEND,
    "isend": SEND,
    "recv": RECEIVE,
    "irecv": RECEIVE,
    "receive": RECEIVE,
    "sendrecv": "send_receive",
    "batchsendrecv": "send_receive",
    "batchsendreceive": "send_receive",
    "coalesced": "coalesced",
}


@cache
def canonical(name: str) -> str:
    """Return the canonical name of a collective: `all_reduce` for `hcom_allReduce_`.

    Unknown names are returned in lower case.
    """
    text = name.strip().lower()
    # hcom_allReduce__428_0_1: in operation names, numbers follow the kind.
    kind_alone = re.sub(r"_+\d+(?:_\d+)*$", "", text)
    bare = _PREFIX.sub("", kind_alone, count=1)
    candidates = [bare, _SUFFIX.sub("", bare)]
    if of_kernel := _OF_KERNEL.match(text):
        candidates.append(of_kernel[1])
    for candidate in candidates:
        if kind := _KINDS.get(candidate.replace("_", "")):
            return kind
    return kind_alone if kind_alone.strip("_na/") else "unknown"


def bus_factor(kind: str, members: int) -> float | None:
    """Return the ratio of bus bandwidth to bytes per second, None if it is undefined."""
    if members < 2:
        return None
    if kind == "all_reduce":
        return 2 * (members - 1) / members
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (members - 1) / members
    return 1.0 if kind in ("broadcast", "reduce") or kind in POINT_TO_POINT else None


ELEMENT_BYTES: Final = {
    **dict.fromkeys((0, 7, 14, 15, 16, 17), 1),  # ENUM_HCCL_DATA_TYPE: 8 bits
    **dict.fromkeys((1, 3, 8, 11), 2),
    **dict.fromkeys((2, 4, 9), 4),
    **dict.fromkeys((5, 6, 10), 8),
    12: 16,
}


class Messages(Struct, frozen=True, eq=False):
    """The rows of COMMUNICATION_OP in order of time; -1 means unknown."""

    start_ns: Ints
    end_ns: Ints
    device: Ints
    group: Ints
    members: Ints  # Ranks in the group.
    size_bytes: Ints
    kind: NDArray[np.integer]
    kinds: list[str]  # Canonical names; `kind` has indexes into them.


UNKNOWN_DEVICE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Collectives(Frame):
    """The rows of COMMUNICATION_OP with valid times, as columns."""

    start_ns: Ints
    duration_ns: Ints
    device: Ints
    name: Ints  # String id of the operator's name.
    op_type: Ints  # String id of the operator's type; MISSING in old files.
    connection: Ints
    group: Ints  # String id of the communicator; MISSING: not recorded.
    identity: Ints  # opId.
    elements: Ints  # Elements of the message; -1: not recorded.
    data_type: Ints  # Number of the elements' type; -1: not recorded.
    members: Ints  # Ranks in the group; -1: not recorded.

    @property
    def size_bytes(self) -> Ints:
        """Recorded size of each message, UNKNOWN if it was not recorded."""
        types, number = np.unique(self.data_type, return_inverse=True)
        width = np.array(
            [ELEMENT_BYTES.get(type_text, 0) for type_text in types.tolist()], np.int64
        )
        known = (width[number] > 0) & (self.elements >= 0) if len(self) else np.zeros(0, bool)
        return (
            np.where(known, self.elements * width[number], UNKNOWN) if len(self) else self.elements
        )

    @property
    def end_ns(self) -> Ints:
        """End of each operator."""
        return self.start_ns + self.duration_ns

    def in_parts(self, device: int | None = None) -> bool:
        """Return True if only tasks of collectives were recorded, not whole collectives."""
        if device is None or (self.device == UNKNOWN_DEVICE).any():
            return not len(self)
        return not (self.device == device).any()


def messages(comms: Collectives, strings: Strings) -> Messages:
    """Return the collectives in order of time, with canonical kinds."""
    order = np.argsort(comms.start_ns, kind="stable")
    names = np.where(comms.op_type != MISSING, comms.op_type, comms.name)[order]
    ids, number = codes(names)
    kind_of_id = [canonical(text or "") for text in strings.texts(ids)]
    kinds = sorted(set(kind_of_id))
    index = np.array([kinds.index(text) for text in kind_of_id] or [0], np.int64)
    return Messages(
        start_ns=comms.start_ns[order],
        end_ns=comms.end_ns[order],
        device=comms.device[order],
        group=comms.group[order],
        members=comms.members[order],
        size_bytes=comms.size_bytes[order],
        kind=index[number],
        kinds=kinds,
    )


def load_collectives(source: Source, tasks: Tasks, findings: Findings) -> Collectives:
    """Read the communication operators; in older files, their device is read from their tasks."""
    columns = source.integers(
        "COMMUNICATION_OP",
        {
            "start_ns": "startNs",
            "duration_ns": "endNs - startNs",
            "identity": "opId",
            "name": "opName",
            "op_type": f"coalesce(opType, {MISSING + 1} - 1)",
            "connection": "coalesce(connectionId, -1)",
            "device": "coalesce(deviceId, -1)",
            "group": f"coalesce(groupName, {MISSING + 1} - 1)",
            "elements": "coalesce(count, -1)",
            "data_type": "coalesce(dataType, -1)",
            "members": "coalesce(rankSize, -1)",
        },
    )
    valid = possible(columns["start_ns"], columns["duration_ns"])
    bad = int(len(valid) - valid.sum())
    findings.add("impossible_communication_time", f"{bad} operators are left out", bad)
    columns = {name: values[valid] for name, values in columns.items()}
    unknown = columns["device"] < 0
    if unknown.any():
        identity = columns["identity"][unknown]
        columns["device"] = columns["device"].copy()
        columns["device"][unknown] = _device_of_tasks(source, tasks, identity)
    return Collectives(**columns)


def kernel_names(source: Source, op_ids: Ints) -> Ints | None:
    """Return the string id of each operator's kernel (MISSING without one); None if not on GPUs."""
    if "UPROF_GPU_TASKS" not in source.tables:
        return None
    parts = source.integers("COMMUNICATION_TASK_INFO", {"op": "opId", "name": "name"})
    return value_by_key(parts["op"], parts["name"], op_ids, MISSING)


def _device_of_tasks(source: Source, tasks: Tasks, op_ids: Ints) -> Ints:
    """Return the device of each operator's tasks; without tasks, the only device of the file."""
    devices = np.unique(tasks.device)
    only = int(devices[0]) if len(devices) == 1 else UNKNOWN_DEVICE
    parts = source.integers("COMMUNICATION_TASK_INFO", {"op": "opId", "task": "globalTaskId"})
    row = Lookup(parts["op"]).rows(op_ids)
    if not len(parts["op"]):
        return np.full(len(op_ids), only, np.int64)
    task = Lookup(tasks.identity).rows(parts["task"][row])
    known = (row >= 0) & (task >= 0)
    return np.where(known, tasks.device[task] if len(tasks) else only, only).astype(np.int64)


GroupKind = Literal["tp", "dp", "pp", "ep", "cp", "world", "other"]
_KEY = "parallel_group_info"
_DEPTH = 3  # Maximum nesting of JSON texts: `add_metadata` turns its value into a text.
_NO_TITLE: Final = frozenset({"", "undefined", "none", "null"})
_WORLD: Final = frozenset(
    {"default_group", "default_pg", "default", "world", "world_group", "hccl_world_group"}
)
# Words in parallel group names of Megatron, MindSpeed, DeviceMesh, DeepSpeed, vLLM and
# SGLang.
_WORDS: Final[Mapping[str, GroupKind]] = {
    **dict.fromkeys(("tp", "tensor", "etp"), "tp"),
    **dict.fromkeys(("dp", "data", "ddp", "fsdp", "hsdp", "edp"), "dp"),
    **dict.fromkeys(("pp", "pipeline"), "pp"),
    **dict.fromkeys(("ep", "exp", "expert", "moe"), "ep"),
    **dict.fromkeys(("cp", "context"), "cp"),
}
_EXPERTS: Final = ("expert", "moe")
# Text that follows names further ranks, not the kind: `data_parallel_group_with_cp`.
_MODULO: Final = ("with", "modulo")


class Group(Struct, frozen=True):
    """One communicator and the ranks in it."""

    name: str  # The communicator, as in COMMUNICATION_OP.groupName.
    # The framework's name of the group (`tp`, `mesh_dp`, `default_pg`); empty: not recorded.
    title: str
    kind: GroupKind  # Kind of parallelism, from the title.
    ranks: tuple[int, ...]  # Global ranks in the order of the group; empty: not recorded.
    place: int | None = None  # Position of the recorded rank in the group; None: not recorded.

    @property
    def label(self) -> str:
        """Name to display: the kind, the framework's name or the communicator."""
        return self.kind if self.kind != "other" else self.title or f"group {self.name}"


class Groups(Mapping[str, Group]):
    """Groups of ranks by communicator, identified by its name or number."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = dict(groups)
        self._by_number = {str(group_hash(name)): name for name in self._groups}

    def __getitem__(self, name: str) -> Group:
        result = self._groups.get(name)
        return self._groups[self._by_number[name]] if result is None else result

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class GroupLabels:
    """Distinct display names of the groups used by a report's collectives.

    If several groups have the same kind, the framework's names are used; if these are equal too,
    the names of the communicators.
    """

    def __init__(self, groups: Groups, used: Iterable[str]) -> None:
        """Name the groups.

        `used` are the communicators of the report's collectives, as names or numbers.
        """
        names = dict.fromkeys(used)
        found = {name: groups.get(name) for name in names}
        labels = {
            name: f"group {name}" if group is None else group.label for name, group in found.items()
        }
        for tell_apart in (_by_title, _by_name):
            shared = {label for label, count in Counter(labels.values()).items() if count > 1}
            for name, label in labels.items():
                if label in shared:
                    labels[name] = tell_apart(name, found[name], label)
        self._labels, self._found = labels, found

    @property
    def named_groups(self) -> dict[str, Group]:
        """The named groups by display name."""
        return {
            self._labels[name]: group for name, group in self._found.items() if group is not None
        }

    def group(self, name: str) -> Group | None:
        """Return the group of a communicator; unknown communicators get a group of their name."""
        return self._found[name]

    def label(self, name: str) -> str:
        """Return the display name of a group."""
        return self._labels[name]

    def label_if_named(self, name: str) -> str | None:
        """Return the display name of a group, None if the report does not name the group."""
        group = self._found[name]
        return (
            None
            if group is None or not (group.title or group.kind != "other")
            else self._labels[name]
        )


def _by_title(name: str, group: Group | None, label: str) -> str:
    return label if group is None or not group.title else group.title


def _by_name(name: str, group: Group | None, label: str) -> str:
    return label if label == f"group {name}" else f"{label} {name}"


def load_groups(source: Source) -> Groups:
    """Return the groups that a report names; empty if there are none."""
    result: dict[str, Group] = {}
    if "META_DATA" not in source.tables:
        return Groups(result)
    for (text,) in source.rows("SELECT value FROM META_DATA WHERE name = ?", (_KEY,)):
        recorded = _decoded(text)
        for name, about in recorded.items() if isinstance(recorded, dict) else ():
            if isinstance(about, dict):
                result[name] = _group(name, about)
    return Groups(result)


def kind_of(title: str) -> GroupKind:
    """Return the kind of parallelism from the framework's name for a group.

    A name with several kinds is `other`, with two exceptions: groups of experts have the kind of
    parallelism among the experts (`expert_data_parallel` is data parallel), and data parallel
    groups may include context parallelism (`dp_cp`), because gradients are summed over both.
    """
    text = title.strip().lower()
    if text in _WORLD:
        return "world"
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", title.strip()).lower())
    for modulo in _MODULO:
        if modulo in words:
            words = words[: words.index(modulo)]
    kinds = {_WORDS[word] for word in words if word in _WORDS}
    if len(kinds) == 2 and words[0] in _EXPERTS:
        kinds.discard("ep")
    if kinds == {"dp", "cp"}:
        kinds.discard("cp")
    return kinds.pop() if len(kinds) == 1 else "other"


def _group(name: str, about: Mapping[str, Any]) -> Group:
    recorded = about.get("group_name")
    title = recorded.strip() if isinstance(recorded, str) else ""
    if title.lower() in _NO_TITLE or title == name:
        title = ""
    ranks = about.get("global_ranks")
    whole = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
    place = about.get("group_rank")
    return Group(
        name,
        title,
        kind_of(title or name),
        tuple(ranks) if whole and ranks else (),
        place if type(place) is int else None,
    )


def _decoded(text: Any) -> Any:
    """Return the value of a JSON text, None if it is not JSON."""
    for _ in range(_DEPTH):
        if not isinstance(text, str):
            break
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return text


NO_GROUP = "(no group recorded)"

_OF_HCCL = "hcom"

_UNNAMED = "(unnamed collective)"


class CollectiveNames:
    """Names of collectives: `hcom_allReduce_ (tp)` if the group is known."""

    def __init__(self, source: Source, comms: Collectives, strings: Strings, known: Groups) -> None:
        self._source, self._comms = source, comms
        self._strings, self._known = strings, known

    def types(self, labels: Labels) -> NDArray[np.int32]:
        """Return the type and group of each collective, as numbers in `labels`.

        Without a type, the kernel says more than the name, which is then only a number.
        """
        kernels = kernel_names(self._source, self._comms.identity)
        more = [self._comms.name] if kernels is None else [kernels, self._comms.name]
        return self._numbers(labels, self._comms.op_type, *more)

    def names(self, labels: Labels) -> NDArray[np.int32]:
        """Return the operator name of each collective, as numbers in `labels`."""
        ids, number = codes(self._comms.op_type)
        is_typed = np.array([text is not None for text in self._strings.texts(ids)], bool)
        names = self._numbers(labels, self._comms.name, self._comms.op_type)
        # Without a type, the name is only a number.
        return names if is_typed.all() else np.where(is_typed[number], names, self.types(labels))

    def kernels(self, labels: Labels) -> NDArray[np.int32]:
        """Return the kernel of each collective, as numbers in `labels`; without one, `names`.

        On a GPU a collective is one kernel; HCCL runs many tasks.
        """
        kernels = kernel_names(self._source, self._comms.identity)
        if kernels is None:
            return self.names(labels)
        ids, number = codes(kernels)
        result = labels.numbers(self._strings.texts(ids))[number]
        return np.where(result == UNKNOWN, self.types(labels), result)

    def kinds(self) -> tuple[list[str | None], Ints]:
        """Return the distinct kinds of groups, and the index of each collective's kind.

        A kind is a parallelism such as `tp`, or the framework's name for the group. It is None if
        only the communicator is known, because its name differs from run to run.
        """
        texts, number = self._communicators
        result = [None if text is None else self._labels.group(text) for text in texts]
        return [
            None if one is None else one.kind if one.kind != "other" else one.title or None
            for one in result
        ], number

    def plain_types(self, labels: Labels) -> Ints:
        """Return the type of each collective without its group, as numbers in `labels`."""
        return self._plain(labels, self._comms.op_type, self._comms.name)

    @property
    def size_bytes(self) -> Ints:
        """Size of each collective's message, UNKNOWN if it was not recorded.

        For kinds where HCCL records only one rank's part, the size is that part times the number of
        ranks.
        """
        size = self._comms.size_bytes.copy()
        texts, number = self._communicators
        found = [None if text is None else self._labels.group(text) for text in texts]
        members = np.array([1 if one is None else len(one.ranks) or 1 for one in found])[number]
        labels = Labels()
        types = self.plain_types(labels)
        parted = np.array(
            [
                text.startswith(_OF_HCCL) and canonical(text) in PARTED
                for text in [*labels.texts, ""]
            ]
        )[types]
        rows = np.flatnonzero(parted & (size != UNKNOWN))
        size[rows] *= members[rows]
        return size

    @property
    def in_groups(self) -> bool:
        """True if the communicator of any collective was recorded."""
        return any(text is not None for text in self._communicators[0])

    @property
    def known_groups(self) -> dict[str, Group]:
        """The named groups of the collectives, by display name."""
        return self._labels.named_groups

    def group_rows(self, compute: Mapping[int | None, IntervalSet]) -> list[Row]:
        """Return one row for each group, with the time and exposed time of its collectives.

        `compute` has intervals of kernels by device; the key None is the only device.
        """
        texts, number = self._communicators
        types = Labels()
        kinds = self._plain(types, self._comms.op_type, self._comms.name)
        rows = []
        for group, own in by_key(number):
            name = texts[group]
            about = None if name is None else self._labels.group(name)
            busy, exposed = self._covered(own, compute)
            extra: dict[str, int | None] = {"busy_ns": busy, "exposed_ns": exposed}
            if about is not None and about.ranks:
                extra["ranks"] = len(about.ranks)
            rows.append(
                Row(
                    name=NO_GROUP if name is None else self._labels.label(name),
                    kind="group",
                    count=len(own),
                    total_ns=int(self._comms.duration_ns[own].sum()),
                    detail=_most(types, kinds[own], self._comms.duration_ns[own]),
                    extra=extra,
                )
            )
        return sort_rows(rows)

    def _covered(
        self, own: Ints, compute: Mapping[int | None, IntervalSet]
    ) -> tuple[int, int | None]:
        """Return the time of the union of collectives and its exposed part, over all devices."""
        busy = exposed = 0
        for device, rows in by_key(self._comms.device[own]):
            chosen = own[rows]
            talking = intervals.merge(self._comms.start_ns[chosen], self._comms.end_ns[chosen])
            computing = compute[None] if None in compute else compute.get(device, intervals.EMPTY)
            busy += talking.total_ns
            exposed += talking.total_ns - intervals.intersect(talking, computing).total_ns
        return busy, exposed

    def _numbers(self, labels: Labels, *columns: Ints) -> NDArray[np.int32]:
        plain = Labels()
        number = self._plain(plain, *columns)
        texts, group = self._communicators
        group_labels = [
            None if text is None else self._labels.label_if_named(text) for text in texts
        ]
        pairs, of_pair = np.unique(number * len(texts) + group, return_inverse=True)
        named = []
        for pair in pairs.tolist():
            name, where = plain.texts[pair // len(texts)], group_labels[pair % len(texts)]
            named.append(name if where is None else f"{name} ({where})")
        return labels.numbers(named)[of_pair]

    def _plain(self, labels: Labels, *columns: Ints) -> Ints:
        """Return each collective's name without its group, from the first column that has one."""
        result = np.full(len(self._comms), UNKNOWN, np.int64)
        for column in columns:
            unnamed = np.flatnonzero(result == UNKNOWN)
            if len(unnamed):
                ids, number = codes(column[unnamed])
                result[unnamed] = labels.numbers(self._strings.texts(ids))[number]
        result[result == UNKNOWN] = labels.number(_UNNAMED)
        return result

    @cached_property
    def _communicators(self) -> tuple[list[str | None], Ints]:
        """The distinct communicators, and the index of each collective's communicator."""
        ids, number = codes(self._comms.group)
        labels = Labels()
        of_id = labels.numbers(self._strings.texts(ids)).astype(np.int64)
        texts: list[str | None] = [*labels.texts, None]
        of_id[of_id == UNKNOWN] = len(labels.texts)
        return texts, of_id[number] if len(ids) else np.zeros(0, np.int64)

    @cached_property
    def _labels(self) -> GroupLabels:
        texts, _ = self._communicators
        return GroupLabels(self._known, [text for text in texts if text is not None])


def _most(types: Labels, kinds: Ints, duration_ns: Ints) -> str:
    """Return the names of the collectives with most of a group's time."""
    time = np.bincount(kinds, weights=duration_ns + 1, minlength=len(types.texts))
    count = np.bincount(kinds, minlength=len(types.texts)).tolist()
    top = np.argsort(-time, kind="stable")[:3].tolist()
    return ", ".join(f"{types.texts[kind]} x{count[kind]:,}" for kind in top if count[kind])
