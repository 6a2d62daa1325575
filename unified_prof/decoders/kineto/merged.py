"""Separates traces that were merged from several processes.

Each process numbers its correlation ids separately, so a trace merged from several ranks contains
each id several times. First, each device task is assigned to a process: by the label that the
merging tool wrote into the device's pid, or by the calls that can have launched all tasks of the
device. Then the ids of calls, tasks and operations are made unique, so that they can be joined as
in other traces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.base.columns import MISSING
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, Spool, row_type, windows

# Process of tasks that belong to no single process.
_NO_PROCESS = -1
_LATEST = np.iinfo(np.int64).max
_ID_BITS = 40
_FIRST_CODE = 2
_RENUMBERED_FROM = 100
_PREFIX = re.compile(r"(.*[^0-9A-Za-z])\d+", re.DOTALL)
_SUFFIX = re.compile(r"\d+([^0-9A-Za-z].*)", re.DOTALL)

# If more than 1 of this many tasks of two devices have equal ids, two processes launched them.
_RIVAL_FRACTION = 20
# If others launched more than 1 of this many tasks of a device, several processes share it.
_SHARED_FRACTION = 4
_ANY, _COPY, _SET, _KERNEL = range(4)
_MAKES = (("graph", _ANY), ("memcpy", _COPY), ("memset", _SET), ("launch", _KERNEL))
_KINDS = np.full(r.GRAPH + 1, _KERNEL)
_KINDS[[r.COPY, r.SET, r.GRAPH]] = _COPY, _SET, _ANY

# Calls: `process` is an index of processes, `makes` the kind of task that such a call launches.
_MADE = row_type("correlation i8, start i8, external i8, process i4, makes i1")


def label_of(pid: str) -> str:
    """Return the label that a merging tool added to a pid, such as `[TP01] ` in `[TP01] 4242`."""
    match = _PREFIX.fullmatch(pid) or _SUFFIX.fullmatch(pid)
    return match[1] if match else pid


class Labels:
    """Labels that merging tools wrote into the pids of devices and processes."""

    def __init__(self) -> None:
        self.texts: list[str] = []  # The labels by number.
        self._numbers: dict[str, int] = {}
        self._devices: dict[tuple[str, int], int] = {}
        self._taken: set[int] = set()

    @property
    def are_used(self) -> bool:
        """True if a pid had a label."""
        return bool(self.texts or self._devices)

    def code(self, pid: object) -> int:
        """Return the code of a pid's label, stored in `process` until `separate` replaces it."""
        if not isinstance(pid, str) or pid.isdecimal():
            return MISSING
        label = label_of(pid)
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self.texts)
            self.texts.append(label)
        return -_FIRST_CODE - number

    def device(self, pid: object, device: int) -> int:
        """Return the device number, made unique if another rank uses the same number."""
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


def separate(parts: Parts, calling: Iterable[int], labels: Labels) -> None:
    """Assign each task to its process, and make ids unique if several processes use the same ids.

    `calling` contains the numbers of the threads with runtime calls.
    """
    ids = parts.threads.process_ids
    callers = sorted(
        {ids[thread] for thread in calling}, key=lambda process: process != parts.main_process
    )
    if len(callers) > 1 or labels.texts:
        _Separation(parts, callers, labels).run()


class _Separation:
    """Separates the processes of one trace; index 0 is the process with the most events."""

    def __init__(self, parts: Parts, callers: list[int], labels: Labels) -> None:
        self._parts = parts
        self._callers = len(callers)
        self._processes = list(dict.fromkeys((*callers, *parts.threads.process_ids)))
        index = {process: number for number, process in enumerate(self._processes)}
        self._index = np.array([index[p] for p in parts.threads.process_ids], dtype=np.int64)
        self._by_label: dict[str, set[int]] = {}
        for number, spellings in zip(self._index.tolist(), parts.threads.spellings, strict=True):
            if number < self._callers:
                for pid, _ in spellings:
                    self._by_label.setdefault(label_of(str(pid)), set()).add(number)
        self._labels = labels.texts
        self._places: dict[tuple[int, int], int] = {}
        self._costs: list[Ints] = []
        self._lost: list[int] = []
        self._tasks: Counter[int] = Counter()
        self._rivals: Counter[tuple[int, int]] = Counter()
        self._first_task: dict[int, int] = {}
        self._first_call: dict[int, int] = {}
        self._shared = 0

    def run(self) -> None:
        """Choose the process of each device, and rewrite the ids."""
        with self._call_spool() as call_spool:
            for calls, tasks in windows(call_spool, self._parts.gpu):
                self._count_possible(calls, tasks)
            owners = self._owners()
            if self._shared or self._labels:
                self._parts.replace("gpu", self._unique_tasks(call_spool, owners))
        if not self._shared:
            return
        detail = f"calls of {len(self._processes)} processes: ids made unique"
        self._parts.sink.anomaly("shared_correlations", self._shared, detail)
        self._parts.replace("calls", self._unique(self._parts.calls, "correlation", "external"))
        self._parts.replace("host", self._unique(self._parts.host, "external"))
        self._parts.max_correlation = len(self._processes) << _ID_BITS

    def _call_spool(self) -> Spool:
        """Return the calls, sorted by correlation id and start."""
        spool = self._parts.new_spool(_MADE, "correlation")
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
            spool.append(rows)
        return spool

    def _count_possible(self, calls: Rows, tasks: Rows) -> None:
        """Count the tasks of each device that each process cannot have launched."""
        same = calls["correlation"][1:] == calls["correlation"][:-1]
        self._shared += int(np.count_nonzero(same & (np.diff(calls["process"]) != 0)))
        places = self._place_numbers(tasks)
        for place in np.unique(places).tolist():
            _keep_minimum(self._first_task, place, tasks["start"][places == place])
        known = tasks["correlation"] > 0
        tasks, places = tasks[known], places[known]
        if not len(tasks):
            return
        self._tasks.update(places.tolist())
        impossible = np.ones((self._callers, len(tasks)), dtype=bool)
        for process in range(self._callers):
            process_calls = calls[calls["process"] == process]
            _keep_minimum(self._first_call, process, process_calls["start"])
            impossible[process] = ~_possible(process_calls, tasks)
        for place in np.unique(places).tolist():
            chosen = places == place
            of_place = impossible[:, chosen]
            self._costs[place] += np.count_nonzero(of_place, axis=1)
            self._lost[place] += int(np.count_nonzero(of_place.all(axis=0)))
        self._count_rivals(tasks["correlation"], places)

    def _count_rivals(self, ids: Ints, places: Ints) -> None:
        """Count the correlation ids that devices share (a process uses each id only once)."""
        distance = 1
        while distance < len(ids):
            same = ids[distance:] == ids[:-distance]
            if not same.any():
                break
            later, earlier = places[distance:][same], places[:-distance][same]
            pairs = zip(later.tolist(), earlier.tolist(), strict=True)
            self._rivals.update((min(pair), max(pair)) for pair in pairs)
            distance += 1

    def _place_numbers(self, tasks: Rows) -> Ints:
        """Return the index of each task's device; devices with different labels are distinct."""
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

    def _owners(self) -> Ints:
        """Return the process that owns each device, `_NO_PROCESS` if processes share it."""
        owners = np.full(len(self._costs), _NO_PROCESS)
        candidates: dict[int, set[int]] = {}
        for (code, _), place in self._places.items():
            # Processes with the label of the device's pid, if it has one.
            label = self._labels[-_FIRST_CODE - code] if code <= -_FIRST_CODE else None
            labeled = set() if label is None else self._by_label.get(label, set())
            candidates[place] = labeled or set(range(self._callers))
        while candidates:
            best = {place: self._best(place, choices) for place, choices in candidates.items()}
            place = max(best, key=lambda place: best[place][1])
            owner, margin = best[place]
            if not margin:
                place, owner = self._owner_by_start(candidates)
            owners[place] = owner
            del candidates[place]
            for other, choices in candidates.items():
                if self._are_rivals(place, other):
                    choices.discard(owner)
        return owners

    def _best(self, place: int, choices: set[int]) -> tuple[int, float]:
        """Return the process that best matches a device, and its margin over the second best."""
        if len(choices) == 1:
            return next(iter(choices)), np.inf
        order = sorted(choices, key=lambda process: int(self._costs[place][process]))
        if not order:
            return _NO_PROCESS, 0
        best, second = (int(self._costs[place][process]) for process in order[:2])
        return (order[0], second - best) if not self._is_shared(place, best) else (_NO_PROCESS, 0)

    def _is_shared(self, place: int, best: int) -> bool:
        """Return True if other processes launched too many tasks of a device."""
        launched = self._tasks[place] - self._lost[place]
        return _SHARED_FRACTION * (best - self._lost[place]) > launched

    def _owner_by_start(self, candidates: dict[int, set[int]]) -> tuple[int, int]:
        """Return the device and the process that started first, if no other rule assigns them."""
        for place in sorted(candidates, key=lambda place: self._first_task[place]):
            choices = candidates[place]
            costs = {process: int(self._costs[place][process]) for process in choices}
            best = min(costs.values(), default=0)
            equal = [process for process, cost in costs.items() if cost == best]
            rivals = any(self._are_rivals(place, other) for other in candidates if other != place)
            if rivals and len(equal) > 1 and not self._is_shared(place, best):
                detail = "the process of a device: assigned by order of start"
                self._parts.sink.anomaly("unsure_process", 1, detail)
                return place, min(equal, key=lambda p: (self._first_call.get(p, _LATEST), p))
        return next(iter(candidates)), _NO_PROCESS

    def _are_rivals(self, first: int, second: int) -> bool:
        common = self._rivals[min(first, second), max(first, second)]
        return _RIVAL_FRACTION * common > min(self._tasks[first], self._tasks[second])

    def _unique_tasks(self, call_spool: Spool, owners: Ints) -> Iterator[Rows]:
        """Yield the tasks with their process, and with unique ids if processes share ids."""
        ambiguous = 0
        for calls, tasks in windows(call_spool, self._parts.gpu):
            rows = tasks.copy()
            process = owners[self._place_numbers(tasks)] if len(tasks) else np.empty(0, np.int64)
            if self._shared:
                is_open = (process == _NO_PROCESS) & (tasks["correlation"] > 0)
                for at in np.flatnonzero(is_open).tolist():
                    process[at], is_certain = _launching_process(calls, tasks[at])
                    ambiguous += not is_certain
                for field in ("correlation", "external"):
                    rows[field] = _unique_ids(tasks[field], np.maximum(process, 0))
            rows["process"] = np.array([*self._processes, MISSING])[process]  # _NO_PROCESS: last
            yield rows
        detail = "matched by kind, operation and time"
        self._parts.sink.anomaly("ambiguous_launch", ambiguous, detail)

    def _unique(self, spool: Spool, *fields: str) -> Iterator[Rows]:
        """Yield rows of host threads with unique ids in some fields."""
        for (old,) in windows(spool):
            rows = old.copy()
            for field in fields:
                rows[field] = _unique_ids(old[field], self._index[old["thread"]])
            yield rows


def _keep_minimum(minima: dict[int, int], key: int, values: Ints) -> None:
    if len(values):
        minima[key] = min(int(values.min()), minima.get(key, _LATEST))


def _unique_ids(ids: Ints, process: Ints) -> Ints:
    """Return ids that are unique across processes; ids of the first process do not change."""
    fits = (ids > 0) & (ids < 1 << _ID_BITS)
    return np.where(fits, process << _ID_BITS | ids, ids)


def _possible(calls: Rows, tasks: Rows) -> Bools:
    """Return a mask of the tasks that a call can have launched, judged by id, kind and time."""
    if not len(calls):
        return np.zeros(len(tasks), dtype=bool)
    first = np.searchsorted(calls["correlation"], tasks["correlation"])
    at = np.minimum(first, len(calls) - 1)
    wanted, makes = _KINDS[tasks["kind"]], calls["makes"][at]
    fits = (wanted == makes) | (wanted == _ANY) | (makes == _ANY)
    fits &= calls["correlation"][at] == tasks["correlation"]
    return np.asarray(fits & (calls["start"][at] <= tasks["start"]))


def _launching_process(calls: Rows, task: Rows) -> tuple[int, bool]:
    """Return the process that launched a task on a shared device, and True if it is certain."""
    key, column = task["correlation"], calls["correlation"]
    choices = calls[np.searchsorted(column, key, "left") : np.searchsorted(column, key, "right")]
    if len(choices) < 2:
        return (int(choices["process"][0]) if len(choices) else _NO_PROCESS), True
    tasks = np.array([task])
    possible = np.array([_possible(choices[i : i + 1], tasks)[0] for i in range(len(choices))])
    choices = choices[possible] if possible.any() else choices
    same = choices[choices["external"] == task["external"]]
    choices = same if len(same) else choices
    last = choices[np.argmax(choices["start"])]
    return int(last["process"]), len(np.unique(choices["process"])) == 1
