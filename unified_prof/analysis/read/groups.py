"""The groups of ranks that collectives run in, as META_DATA.parallel_group_info names them.

torch_npu writes for every communicator what the framework calls its group, and the global ranks in
it; `uprof import` writes the same of a trace's process groups. COMMUNICATION_OP.groupName is the
communicator: a text, or in recordings of some levels the number that msprof makes of that text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from unified_prof.analysis.read.source import Source
from unified_prof.vocabulary import group_hash

GroupKind = Literal["tp", "dp", "pp", "ep", "cp", "world", "other"]

_KEY = "parallel_group_info"
_DEPTH = 3
"""How often a JSON text may be wrapped in another one: `add_metadata` makes a text of its value."""

_UNTOLD: Final = frozenset({"", "undefined", "none", "null"})
_WORLD: Final = frozenset(
    {"default_group", "default_pg", "default", "world", "world_group", "hccl_world_group"}
)
# The words of a name that say what its ranks divide among them; Megatron, MindSpeed, DeviceMesh,
# DeepSpeed, vLLM and SGLang each have their own.
_WORDS: Final[Mapping[str, GroupKind]] = {
    **dict.fromkeys(("tp", "tensor", "etp"), "tp"),
    **dict.fromkeys(("dp", "data", "ddp", "fsdp", "hsdp", "edp"), "dp"),
    **dict.fromkeys(("pp", "pipeline"), "pp"),
    **dict.fromkeys(("ep", "exp", "expert", "moe"), "ep"),
    **dict.fromkeys(("cp", "context"), "cp"),
}
_EXPERTS: Final = ("expert", "moe")
_MODULO: Final = ("with", "modulo")
"""What follows says which ranks these are, not what they do: `data_parallel_group_with_cp`."""


@dataclass(frozen=True, slots=True)
class Group:
    """One communicator and the ranks in it."""

    name: str
    """The communicator, as COMMUNICATION_OP.groupName has it."""
    title: str
    """What the framework calls the group (`tp`, `mesh_dp`, `default_pg`); empty: not told."""
    kind: GroupKind
    """What the group is for, as far as its title says."""
    ranks: tuple[int, ...]
    """Global ranks in the order of their place in the group; empty: not told."""
    place: int | None = None
    """The place of the recording's own rank; None: not told."""

    @property
    def label(self) -> str:
        """What people read: the kind, what the framework says, or the communicator's name."""
        if self.kind != "other":
            return self.kind
        return self.title or f"group {self.name}"


class Groups(Mapping[str, Group]):
    """The groups of a report by the name of their communicator, and by that name's number."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = dict(groups)
        self._by_number = {str(group_hash(name)): name for name in self._groups}

    def __getitem__(self, name: str) -> Group:
        found = self._groups.get(name)
        return self._groups[self._by_number[name]] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class Labels:
    """What the groups that a report's collectives run in are called there, each by its own name.

    Two groups of one kind (`dp` and `dp_cp`) are told apart by what the framework calls them, and
    those that it calls the same by their communicators.
    """

    def __init__(self, groups: Groups, used: Iterable[str]) -> None:
        """Name the groups.

        Args:
            groups: what the report says of its groups.
            used: the communicators of its collectives, by name or by number.
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
    def known(self) -> dict[str, Group]:
        """The groups of which something is known, by what they are called."""
        return {
            self._labels[name]: group for name, group in self._found.items() if group is not None
        }

    def group(self, name: str) -> Group | None:
        """Return what is known of a communicator."""
        return self._found[name]

    def label(self, name: str) -> str:
        """Return what to call a group."""
        return self._labels[name]

    def told(self, name: str) -> str | None:
        """Return the same, None where nobody said what the group is."""
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


def load(source: Source) -> Groups:
    """Return the groups that a report names; none where nobody wrote them down."""
    found: dict[str, Group] = {}
    if "META_DATA" not in source.tables:
        return Groups(found)
    for (text,) in source.rows("SELECT value FROM META_DATA WHERE name = ?", (_KEY,)):
        recorded = _decoded(text)
        for name, about in recorded.items() if isinstance(recorded, dict) else ():
            if isinstance(about, dict):
                found[name] = _group(name, about)
    return Groups(found)


def kind_of(title: str) -> GroupKind:
    """Return what a group is for, judged by what the framework calls it.

    A name of several kinds is `other`, with two exceptions: experts' own groups are what they
    divide among them (`expert_data_parallel`), and data parallel groups may take context in
    (`dp_cp`), for the gradients of both are summed at once.
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
    told = about.get("group_name")
    title = told.strip() if isinstance(told, str) else ""
    if title.lower() in _UNTOLD or title == name:
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
    """Return the value of a JSON text, None if it is none."""
    for _ in range(_DEPTH):
        if not isinstance(text, str):
            break
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return text
