"""Traces of several processes: whose each task of a device is, and ids that are one's own.

Correlation ids count in every process from its start, so a trace merged of several ranks has each
of them many times. There tasks are given to processes first: by what the merger wrote into the
device's pid; else by whose calls can have made the tasks of a device, all of them together. Ids
of calls, tasks and operations are then made one process's own, and all else joins by them as it
does in other traces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from unified_prof.arrays.types import Bools
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.memory import MISSING, Int64s
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, Spool, windows

_NOBODY = -1
_LATEST = np.iinfo(np.int64).max
_OWN_ID_BITS = 40
_FIRST_CODE = 2
_RENUMBERED_FROM = 100
_PREFIX = re.compile(r"(.*[^0-9A-Za-z])\d+", re.DOTALL)
_SUFFIX = re.compile(r"\d+([^0-9A-Za-z].*)", re.DOTALL)

_RIVALS = 20
"""One part of this many of the tasks of two devices with equal ids: two processes made them."""
_SHARED = 4
"""One part of this many made by others: a device is not one process's alone."""

_ANY, _COPY, _SET, _KERNEL = range(4)
_MAKES = (("graph", _ANY), ("memcpy", _COPY), ("memset", _SET), ("launch", _KERNEL))
_KINDS = np.full(r.GRAPH + 1, _KERNEL)
_KINDS[[r.COPY, r.SET, r.GRAPH]] = _COPY, _SET, _ANY

# Calls: `process` is an index of processes, `makes` the kind of task that such a call launches.
_MADE = r.record_type("correlation i8, start i8, external i8, process i4, makes i1")


def label_of(pid: str) -> str:
    """Return what a merger added to a pid: `[TP01] ` of `[TP01] 4242` and of `[TP01] 0`."""
    match = _PREFIX.fullmatch(pid) or _SUFFIX.fullmatch(pid)
    return match[1] if match else pid


class Labels:
    """What mergers wrote into the pids of devices and processes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """The labels, by number."""
        self._numbers: dict[str, int] = {}
        self._devices: dict[tuple[str, int], int] = {}
        self._taken: set[int] = set()

    def code(self, pid: object) -> int:
        """Return what stands for a device's pid in GPU_TASK `process` until `settle`."""
        if not isinstance(pid, str) or pid.isdecimal():
            return MISSING
        label = label_of(pid)
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self.texts)
            self.texts.append(label)
        return -_FIRST_CODE - number

    def device(self, pid: object, device: int) -> int:
        """Return the number of a device, another one where two ranks call theirs the same."""
        if not isinstance(pid, str) or pid.isdecimal() or device < 0:
            return device
        label = label_of(pid)
        number = self._devices.get((label, device))
        if number is None:
            number = device
            while number in self._taken:
                number += _RENUMBERED_FROM
            self._taken.add(number)
            self._devices[label, device] = number
        return number


def settle(parts: Parts, calling: Iterable[int], labels: Labels) -> None:
    """Give each task its process, and where ids repeat in several, each process its own ids.

    Args:
        parts: All that was read, not yet joined.
        calling: Threads that made runtime calls.
        labels: Of the devices' pids.
    """
    ids = parts.threads.process_ids
    callers = sorted({ids[thread] for thread in calling}, key=lambda one: one != parts.main_process)
    if len(callers) > 1 or labels.texts:
        _Settling(parts, callers, labels).run()


class _Settling:
    """Processes by index: those with calls first, the busiest of all before them."""

    def __init__(self, parts: Parts, callers: list[int], labels: Labels) -> None:
        self._parts = parts
        self._callers = len(callers)
        self._processes = list(dict.fromkeys((*callers, *parts.threads.process_ids)))
        index = {process: number for number, process in enumerate(self._processes)}
        self._index = np.array([index[one] for one in parts.threads.process_ids], dtype=np.int64)
        self._by_label: dict[str, set[int]] = {}
        for number, spellings in zip(self._index.tolist(), parts.threads.spellings, strict=True):
            if number < self._callers:
                for pid, _ in spellings:
                    self._by_label.setdefault(label_of(str(pid)), set()).add(number)
        self._labels = labels.texts
        self._places: dict[tuple[int, int], int] = {}
        self._costs: list[Int64s] = []
        self._lost: list[int] = []
        self._tasks: Counter[int] = Counter()
        self._rivals: Counter[tuple[int, int]] = Counter()
        self._first_task: dict[int, int] = {}
        self._first_call: dict[int, int] = {}
        self._shared = 0

    def run(self) -> None:
        """Vote, decide, rewrite."""
        with self._made() as made:
            for calls, tasks in self._windows(made):
                self._vote(calls, tasks)
            owners = self._owners()
            if not self._shared:
                if self._labels:
                    self._replace("gpu", self._named_tasks(made, owners))
                return
            self._parts.sink.anomaly(
                "shared_correlations",
                self._shared,
                f"calls of several processes, {len(self._processes)} in all: ids made their own",
            )
            self._replace("gpu", self._own_tasks(made, owners))
        self._replace("calls", self._own_calls())
        self._replace("host", self._own_host())
        self._parts.max_correlation = len(self._processes) << _OWN_ID_BITS

    def _made(self) -> Spool:
        """Return what the calls say, by correlation and start."""
        made = self._parts.new_spool(_MADE, "correlation")
        makes = {
            number: next((kind for word, kind in _MAKES if word in str(name).lower()), _ANY)
            for name, number in self._parts.names.items()
        }
        for (calls,) in windows(self._parts.calls):
            calls = calls[calls["correlation"] > 0]
            rows = np.empty(len(calls), dtype=_MADE)
            for field in ("correlation", "start", "external"):
                rows[field] = calls[field]
            rows["process"] = self._index[calls["thread"]]
            rows["makes"] = [makes.get(name, _ANY) for name in calls["name"].tolist()]
            made.append(rows)
        return made

    def _windows(self, made: Spool) -> Iterator[tuple[Rows, Rows]]:
        for calls, tasks in windows(made, self._parts.gpu):  # noqa: UP028 - what is what
            yield calls, tasks

    # ---- whose a device is

    def _vote(self, calls: Rows, tasks: Rows) -> None:
        """Count, of each place, the tasks that each process cannot have made."""
        same = calls["correlation"][1:] == calls["correlation"][:-1]
        self._shared += int(np.count_nonzero(same & (np.diff(calls["process"]) != 0)))
        tasks = tasks[tasks["correlation"] > 0]
        if not len(tasks):
            return
        places = self._place_numbers(tasks)
        self._tasks.update(places.tolist())
        impossible = np.ones((self._callers, len(tasks)), dtype=bool)
        for process in range(self._callers):
            mine = calls[calls["process"] == process]
            _keep_least(self._first_call, process, mine["start"])
            impossible[process] = ~_possible(mine, tasks)
        for place in np.unique(places).tolist():
            chosen = places == place
            _keep_least(self._first_task, place, tasks["start"][chosen])
            here = impossible[:, chosen]
            self._costs[place] += np.count_nonzero(here, axis=1)
            self._lost[place] += int(np.count_nonzero(here.all(axis=0)))
        self._see_rivals(tasks["correlation"], places)

    def _see_rivals(self, ids: Int64s, places: Int64s) -> None:
        """Count the ids that two places have in common: no process counts one of them twice."""
        apart = 1
        while apart < len(ids):
            same = ids[apart:] == ids[:-apart]
            if not same.any():
                break
            pairs = zip(places[apart:][same].tolist(), places[:-apart][same].tolist(), strict=True)
            self._rivals.update((min(pair), max(pair)) for pair in pairs)
            apart += 1

    def _place_numbers(self, tasks: Rows) -> Int64s:
        """Number the devices; those that the merger told apart are several."""
        numbers = np.empty(len(tasks), dtype=np.int64)
        fields = ("process", "device")
        for at, key in enumerate(zip(*(tasks[field].tolist() for field in fields), strict=True)):
            number = self._places.get(key)
            if number is None:
                number = self._places[key] = len(self._costs)
                self._costs.append(np.zeros(self._callers, dtype=np.int64))
                self._lost.append(0)
            numbers[at] = number
        return numbers

    def _owners(self) -> Int64s:
        """Return the process whose each place is, `_NOBODY` where several share it."""
        owners = np.full(len(self._costs), _NOBODY)
        open_: dict[int, set[int]] = {}
        for (code, _), place in self._places.items():
            open_[place] = self._named(code) or set(range(self._callers))
        while open_:
            best = {place: self._best(place, choices) for place, choices in open_.items()}
            place = max(best, key=lambda one: best[one][1])
            owner, margin = best[place]
            if not margin:
                place, owner = self._by_order(open_)
            owners[place] = owner
            del open_[place]
            for other, choices in open_.items():
                if self._are_rivals(place, other):
                    choices.discard(owner)
        return owners

    def _best(self, place: int, choices: set[int]) -> tuple[int, float]:
        """Return who made the tasks of a place, and how much better than anybody else."""
        if len(choices) == 1:
            return next(iter(choices)), np.inf
        order = sorted(choices, key=lambda process: int(self._costs[place][process]))
        if not order:
            return _NOBODY, 0
        best, second = (int(self._costs[place][process]) for process in order[:2])
        return (order[0], second - best) if not self._is_shared(place, best) else (_NOBODY, 0)

    def _is_shared(self, place: int, best: int) -> bool:
        """Tell whether too many tasks were made by others than the best of all processes."""
        made = self._tasks[place] - self._lost[place]
        return _SHARED * (best - self._lost[place]) > made

    def _by_order(self, open_: dict[int, set[int]]) -> tuple[int, int]:
        """Return a place and its owner where nothing else tells: both began first."""
        for place in sorted(open_, key=lambda one: self._first_task[one]):
            choices = open_[place]
            best = min((int(self._costs[place][one]) for one in choices), default=0)
            equal = [one for one in choices if self._costs[place][one] == best]
            rivals = any(self._are_rivals(place, other) for other in open_ if other != place)
            if rivals and len(equal) > 1 and not self._is_shared(place, best):
                self._parts.sink.anomaly(
                    "unsure_process", 1, "whose a device is: by the order in which they began"
                )
                return place, min(equal, key=lambda one: (self._first_call.get(one, _LATEST), one))
        return next(iter(open_)), _NOBODY

    def _are_rivals(self, one: int, other: int) -> bool:
        common = self._rivals[min(one, other), max(one, other)]
        return _RIVALS * common > min(self._tasks[one], self._tasks[other])

    def _named(self, code: int) -> set[int]:
        """Return the processes that bear the label of a device's pid."""
        if code > -_FIRST_CODE:
            return set()
        return self._by_label.get(self._labels[-_FIRST_CODE - code], set())

    # ---- rows with ids of one process's own

    def _replace(self, name: str, batches: Iterable[Rows]) -> None:
        """Replace the rows of one kind."""
        old: Spool = getattr(self._parts, name)
        new = self._parts.new_spool(old.dtype, old.key)
        for rows in batches:
            new.append(rows)
        setattr(self._parts, name, new)
        old.__exit__(None, None, None)

    def _named_tasks(self, made: Spool, owners: Int64s) -> Iterator[Rows]:
        for _, tasks in self._windows(made):
            rows = tasks.copy()
            self._put_process(rows, owners[self._place_numbers(tasks)])
            yield rows

    def _own_tasks(self, made: Spool, owners: Int64s) -> Iterator[Rows]:
        ambiguous = 0
        for calls, tasks in self._windows(made):
            rows = tasks.copy()
            process = owners[self._place_numbers(tasks)] if len(tasks) else np.empty(0, np.int64)
            for at in np.flatnonzero((process == _NOBODY) & (tasks["correlation"] > 0)).tolist():
                process[at], sure = _maker(calls, tasks[at])
                ambiguous += not sure
            self._put_process(rows, process)
            for field in ("correlation", "external"):
                rows[field] = _own(tasks[field], np.maximum(process, 0))
            yield rows
        if ambiguous:
            detail = "matched by kind, operation and time"
            self._parts.sink.anomaly("ambiguous_launch", ambiguous, detail)

    def _put_process(self, rows: Rows, process: Int64s) -> None:
        ids = np.array([*self._processes, MISSING])  # _NOBODY: the last
        rows["process"] = ids[process]

    def _own_calls(self) -> Iterator[Rows]:
        for (calls,) in windows(self._parts.calls):
            rows = calls.copy()
            for field in ("correlation", "external"):
                rows[field] = _own(calls[field], self._index[calls["thread"]])
            yield rows

    def _own_host(self) -> Iterator[Rows]:
        for (host,) in windows(self._parts.host):
            rows = host.copy()
            rows["external"] = _own(host["external"], self._index[host["thread"]])
            yield rows


def _keep_least(least: dict[int, int], key: int, values: Int64s) -> None:
    if len(values):
        least[key] = min(int(values.min()), least.get(key, _LATEST))


def _own(ids: Int64s, process: Int64s) -> Int64s:
    """Return ids that no other process has; those of the first one stay as they are."""
    fits = (ids > 0) & (ids < 1 << _OWN_ID_BITS)
    return np.where(fits, process << _OWN_ID_BITS | ids, ids)


def _possible(calls: Rows, tasks: Rows) -> Bools:
    """Tell which tasks one of these calls can have made, by id, kind and time."""
    if not len(calls):
        return np.zeros(len(tasks), dtype=bool)
    first = np.searchsorted(calls["correlation"], tasks["correlation"])
    at = np.minimum(first, len(calls) - 1)
    wanted, makes = _KINDS[tasks["kind"]], calls["makes"][at]
    fits = (wanted == makes) | (wanted == _ANY) | (makes == _ANY)
    possible: Bools = (
        (calls["correlation"][at] == tasks["correlation"])
        & (calls["start"][at] <= tasks["start"])
        & fits
    )
    return possible


def _maker(calls: Rows, task: Rows) -> tuple[int, bool]:
    """Return the process whose call made a task of a shared device, and whether that is sure."""
    wanted = task["correlation"]
    first, behind = (
        np.searchsorted(calls["correlation"], wanted, side=s) for s in ("left", "right")
    )
    choices = calls[first:behind]
    if len(choices) < 2:
        return (int(choices["process"][0]) if len(choices) else _NOBODY), True
    tasks = np.array([task])
    possible = np.array(
        [bool(_possible(choices[i : i + 1], tasks)[0]) for i in range(len(choices))]
    )
    choices = choices[possible] if possible.any() else choices
    same = choices[choices["external"] == task["external"]]
    choices = same if len(same) else choices
    last = choices[np.argmax(choices["start"])]
    return int(last["process"]), len(np.unique(choices["process"])) == 1
