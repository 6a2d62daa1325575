"""One rank's database, open: what every part of its partial is read from.

What a rank did together with others: collectives, their groups, and who sent to whom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from unified_prof.arrays.grouping import Lookup
from unified_prof.base.vocabulary import NO_RANK
from unified_prof.cluster import partial as partials
from unified_prof.cluster import rank_columns as columns_of
from unified_prof.cluster.partial import NONE, Group
from unified_prof.cluster.rank_columns import Ints
from unified_prof.recording import collectives as kinds_of
from unified_prof.recording import collectives as read_groups
from unified_prof.recording.source import Findings, Strings, possible
from unified_prof.recording.tasks import Tasks
from unified_prof.sqlite.integer_columns import MISSING
from unified_prof.sqlite.reader import Report


class Database:
    """An msprof database of any revision, and what of it several parts look at."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.strings = Strings(report)
        self.findings = Findings()
        self.run = self.texts("UPROF_RUN")
        self.is_gpu = self.run.get("device_kind") == "gpu" or "UPROF_GPU_TASKS" in report.tables
        self.groups = read_groups.load_groups(report)
        self.tasks = Tasks(report, self.strings, self.findings)

    def texts(self, table: str) -> dict[str, str]:
        """Return a table of names and values."""
        if table not in self.report.tables:
            return {}
        rows = self.report.rows(f"SELECT name, value FROM {table}")
        return {str(name): str(value) for name, value in rows if value is not None}


class Communication:
    """Operations of a rank with others, their groups and kinds by number, and data by link.

    Args:
        database: where they stand.
        rank: whose they are to be.
        device: the rank's own.
        only: whether the database has no other rank.
    """

    def __init__(self, database: Database, rank: int, device: int | None, *, only: bool) -> None:
        self.groups: list[Group] = []
        self.kinds: list[str] = []
        self._database = database
        self._rank = rank
        columns = self._rows(device, only=only)
        size = len(columns["start"])
        self.operations = {name: np.full(size, NONE, np.int64) for name in partials.COMMUNICATION}
        self.operations["start"] = columns["start"]
        self.operations["end"] = columns["start"] + columns["duration"]
        self.links = partials.empty("links")
        if size:
            self._describe(columns)

    def _rows(self, device: int | None, *, only: bool) -> dict[str, Ints]:
        """Return operations in order of their begins."""
        columns = self._database.report.integers(
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
        self._database.findings.add(
            "impossible_communication_time",
            f"{len(valid) - int(valid.sum())} operators are left out",
            int(len(valid) - valid.sum()) if only else 0,
        )
        order = np.flatnonzero(valid)
        order = order[np.argsort(columns["start"][order], kind="stable")]
        return {name: values[order] for name, values in columns.items()}

    def _describe(self, columns: Mapping[str, Ints]) -> None:
        """Tell kinds, groups, sizes, links, peers and places in sequences, in this order."""
        found, is_gpu = self.operations, self._database.is_gpu
        found["kind"] = self._numbered_kinds(columns)
        found["group"] = self._numbered_groups(columns)
        found["bytes"] = columns_of.sizes(
            columns, found, self.groups, self.kinds, counts_parts=not is_gpu
        )
        self.links = self._parts(columns)
        columns_of.fill_peers(self._rank, found, self.groups, self.kinds)
        found["seq"] = columns_of.sequences(found, self.kinds)

    def _numbered_kinds(self, columns: Mapping[str, Ints]) -> Ints:
        """Number the kinds; where none is recorded, the operation's own name has it."""
        by_type = columns["type"] != MISSING
        ids, inverse = np.unique(
            np.where(by_type, columns["type"], columns["name"]), return_inverse=True
        )
        texts = [
            kinds_of.canonical(text or "") for text in self._database.strings.texts(ids.tolist())
        ]
        self.kinds += sorted(set(texts))
        number = {text: index for index, text in enumerate(self.kinds)}
        return np.array([number[text] for text in texts], np.int64)[inverse]

    def _numbered_groups(self, columns: Mapping[str, Ints]) -> Ints:
        """Number the groups; ranks that stand beside an operation come before its group's name."""
        ranks = self._recorded_ranks(columns["id"])
        pairs, first, inverse = np.unique(
            np.stack([columns["group"], ranks], 1), axis=0, return_index=True, return_inverse=True
        )
        for (name_id, ranks_id), at in zip(pairs.tolist(), first.tolist(), strict=True):
            name = self._database.strings.get(name_id) or (str(name_id) if name_id >= 0 else "")
            known = self._database.groups.get(name)
            told = _rank_list(self._database.strings.get(ranks_id)) or (
                known.ranks if known else ()
            )
            size = int(columns["size"][at])
            self.groups.append(
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
        if "UPROF_COLLECTIVES" not in self._database.report.tables:
            return found
        told = self._database.report.integers(
            "UPROF_COLLECTIVES", {"id": "opId", "ranks": "coalesce(groupRanks, -1)"}
        )
        row = Lookup(told["id"]).rows(ids)
        found[row >= 0] = told["ranks"][row[row >= 0]]
        return found

    def _parts(self, columns: Mapping[str, Ints]) -> dict[str, Ints]:
        """Read what collectives consist of: who sends to whom, and when data moves."""
        operations = self.operations
        parts = self._database.report.integers(
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
        columns_of.size_groups(self.groups, operations["group"], owner, parts)
        moves = (owner >= 0) & (parts["size"] > 0)
        parts = {name: values[moves] for name, values in parts.items()}
        owner = owner[moves]
        if not len(owner):
            return partials.empty("links")
        src, dst = self._ends(parts, operations["group"][owner])
        sends = columns_of.is_kind(operations["kind"][owner], self.kinds, kinds_of.SEND)
        receives = columns_of.is_kind(operations["kind"][owner], self.kinds, kinds_of.RECEIVE)
        for mine, peer in ((sends, dst), (receives, src)):
            known = np.flatnonzero(mine & (peer >= 0) & (peer != self._rank))[::-1]
            operations["peer"][owner[known]] = peer[known]
        if self._database.is_gpu:
            return partials.empty("links")  # one row is a whole kernel, waiting included
        row = Lookup(self._database.tasks.identity).rows(parts["task"])
        timed = row >= 0
        owner, row = owner[timed], row[timed]
        start = self._database.tasks.start_ns[row]
        duration = self._database.tasks.duration_ns[row].astype(np.int64)
        operations["move"] = columns_of.union_by_owner(
            owner, start, duration, len(operations["start"])
        )
        src, dst, size = src[timed], dst[timed], parts["size"][timed]
        usable = (src >= 0) & (dst >= 0) & (src != dst) & (duration > 0)
        usable &= ~(sends | receives)[timed]
        return columns_of.link_parts(src[usable], dst[usable], size[usable], duration[usable])

    def _ends(self, parts: Mapping[str, Ints], group: Ints) -> tuple[Ints, Ints]:
        """Return source and target as global ranks; they are counted inside the group.

        Imports of older uprofs have the one end that a trace names, as a global rank.
        """
        known = [parts[end] < NO_RANK for end in ("src", "dst")]
        told_globally = np.not_equal(known[0], known[1])
        if not self._database.is_gpu:
            told_globally[:] = False
        width = max((len(one.ranks) for one in self.groups), default=0) + 1
        table = np.full((len(self.groups), width), NONE, np.int64)
        for index, one in enumerate(self.groups):
            table[index, : len(one.ranks)] = one.ranks
        ends = []
        for end in ("src", "dst"):
            place = np.where((parts[end] >= 0) & (parts[end] < width - 1), parts[end], width - 1)
            inside = table[group, place]
            as_told = np.where(parts[end] < NO_RANK, parts[end], NONE)
            ends.append(np.where(told_globally, as_told, inside))
        return ends[0], ends[1]


def _rank_list(text: str | None) -> tuple[int, ...]:
    with suppress(ValueError, RecursionError, TypeError):
        ranks = json.loads(text or "")
        if isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks):
            return tuple(ranks)
    return ()
