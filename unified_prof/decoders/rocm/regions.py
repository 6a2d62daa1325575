"""Reads calls, marks, ranges, allocations and hardware counters of one session."""

from __future__ import annotations

import json
import re
from itertools import compress

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, find
from unified_prof.base.columns import NOT_AVAILABLE, Cells
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.call_chains import as_operation
from unified_prof.decoders.gpu.host_tables import RANGE_EVENT, write_annotations
from unified_prof.decoders.gpu.memory import MISSING, Int64s
from unified_prof.decoders.gpu.rows import INTERVAL, NO_TIME
from unified_prof.decoders.rocm.session import Session

_MARK_EVENT = 0
_CALLS = re.compile(r"HIP|HSA|RCCL|ROCDECODE|ROCJPEG")
_MARKS = re.compile(r"MARKER")


class Regions:
    """Reads the regions of a session."""

    def __init__(self, session: Session) -> None:
        self.operations = 0
        """Number of operations marked by emit_nvtx."""
        self._session, self._parts = session, session.parts

    def read(self) -> None:
        """Read all regions into `Parts`."""
        wanted = dict.fromkeys(("start", "end"), NO_TIME)
        wanted |= dict.fromkeys(("pid", "tid", "name_id", "event_id"), MISSING)
        for cells in self._session.tables.slices("region", wanted):
            categories = self._session.events.categories(cells["event_id"])
            kinds = np.zeros(len(categories), np.int8)
            for number in np.unique(categories).tolist():
                text = self._session.strings.get(number, "")
                kind = 1 if _MARKS.match(text) else 2 if not _CALLS.match(text) and text else 0
                kinds[categories == number] = kind
            for kind, read in ((0, self._api_calls), (1, self._marks), (2, self._other_regions)):
                chosen = kinds == kind
                if chosen.any():
                    read({name: column[chosen] for name, column in cells.items()})

    def _api_calls(self, cells: Cells) -> None:
        rows, valid = self._session.timed(cells, r.CALL, "runtime_call")
        rows["thread"] = self._session.thread_numbers(cells)
        rows["name"] = self._session.names(cells["name_id"], self._session.strings)
        rows["correlation"] = self._session.events.correlations(cells["event_id"])
        rows = rows[valid]
        self._parts.see_correlations(rows)
        self._parts.calls.append(rows)

    def _marks(self, cells: Cells) -> None:
        """Read roctx ranges and marks; ranges of emit_nvtx are added as operations."""
        texts = self._messages(cells)
        parsed = [as_operation(text) for text in texts]
        chosen = np.array([operation is not None for operation in parsed], bool)
        threads = self._session.thread_numbers(cells)
        operations = list(filter(None, parsed))
        if operations:
            marked = {name: column[chosen] for name, column in cells.items()}
            rows, valid = self._session.timed(marked, r.HOST, "operation")
            rows["thread"] = threads[chosen]
            self._parts.add_marked_operations(rows, valid, operations)
            self.operations += int(np.count_nonzero(valid))
        rest = ~chosen
        if rest.any():
            others = {name: column[rest] for name, column in cells.items()}
            messages = list(compress(texts, rest.tolist()))
            self._annotations(others, threads[rest], messages)

    def _messages(self, cells: Cells) -> list[str]:
        """Return the messages of marks; if missing, the names of the regions."""
        wanted = set(cells["event_id"].tolist())
        messages: dict[int, str] = {}
        markers = {number for number, text in self._session.strings.items() if _MARKS.match(text)}
        slices = self._session.tables.slices(
            "event", {"id": MISSING}, ["extdata"], only=("category_id", markers)
        )
        for events in slices:
            for number, text in zip(events["id"].tolist(), events["extdata"], strict=True):
                if number in wanted and text and "message" in text:
                    messages[number] = _message(text)
        return [
            messages.get(event) or self._session.strings.get(name, NOT_AVAILABLE)
            for event, name in zip(
                cells["event_id"].tolist(), cells["name_id"].tolist(), strict=True
            )
        ]

    def _annotations(self, cells: Cells, threads: Int64s, messages: list[str]) -> None:
        names = self._parts.names
        times, valid = self._session.timed(cells, INTERVAL, "annotation")
        instant = times["start"] == times["end"]
        write_annotations(
            self._parts,
            times[valid],
            np.array([names[text] for text in messages], np.int64)[valid],
            threads[valid],
            0,
            kinds=np.where(instant, _MARK_EVENT, RANGE_EVENT)[valid],
        )

    def _other_regions(self, cells: Cells) -> None:
        rows, valid = self._session.timed(cells, r.OTHER, "other_region")
        categories = self._session.events.categories(cells["event_id"])
        rows["category"] = self._session.names(categories, self._session.strings)
        rows["name"] = self._session.names(cells["name_id"], self._session.strings)
        places = self._parts.places
        rows["place"] = [
            places.setdefault(
                (self._session.pids.get(pid, pid), self._session.tids.get(tid, tid)), len(places)
            )
            for pid, tid in zip(cells["pid"].tolist(), cells["tid"].tolist(), strict=True)
        ]
        rows["args_at"] = rows["args_size"] = 0
        self._parts.other.append(rows[valid])


def _message(text: str) -> str:
    try:
        message = json.loads(text).get("message")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""


_COMPONENT = "ROCm"


def read_allocations(session: Session) -> None:
    """Read device memory allocations and frees; the size of a free is that of its allocation."""
    live: dict[tuple[int, int], int] = {}
    wanted = {**dict.fromkeys(("start", "end"), NO_TIME), "size": 0}
    wanted |= dict.fromkeys(("pid", "tid", "agent_id", "address"), MISSING)
    unsized = 0
    for cells in session.tables.slices("memory_allocate", wanted, ["type", "level"]):
        times, valid = session.timed(cells, INTERVAL, "allocation")
        rows = np.empty(len(times), r.ALLOCATION)
        rows["start"] = times["start"]
        rows["thread"] = session.thread_numbers(cells)
        rows["device"] = session.agents.numbers_of_devices(cells["agent_id"])
        rows["address"] = cells["address"]
        rows["owner"] = session.number
        rows["total_allocated"] = rows["total_reserved"] = MISSING
        sizes = []
        for kind, level, device, address, size in zip(
            cells["type"],
            cells["level"],
            rows["device"].tolist(),
            cells["address"].tolist(),
            cells["size"].tolist(),
            strict=True,
        ):
            signed = 0
            if level in (None, "REAL") and kind == "ALLOC" and 0 < size < 2**53:
                live[device, address] = signed = size
            elif kind == "FREE":
                # A free may lack the agent.
                signed = -live.pop((device, address), 0)
                unsized += not signed
            sizes.append(signed)
        rows["size"] = sizes
        on_device = rows["device"] != MISSING
        session.parts.memory_component, session.parts.adds_up_allocations = _COMPONENT, True
        session.parts.allocations.append(rows[valid & (rows["size"] != 0) & on_device])
    if unsized:
        session.parts.sink.anomaly(
            "release_without_allocation", unsized, "allocated before the recording"
        )


class SessionCounters:
    """Reads the hardware counters of a session, after its tasks."""

    def __init__(self, session: Session) -> None:
        self._session, self._parts = session, session.parts
        self._names: dict[int, str] = {}
        self._agents: dict[int, int] = {}

    def read(self, task_events: Int64s) -> None:
        """Add counters of tasks to `Parts.counters`, and write sampled counters.

        Args:
            task_events: Event ids of the session's tasks.
        """
        self._counters()
        samples = self._samples()
        without = 0
        tasks = np.unique(task_events)
        for cells in self._session.tables.slices(
            "pmc_event", {"event_id": MISSING, "pmc_id": MISSING}, reals=["value"]
        ):
            events, values = cells["event_id"], cells["value"]
            names = self._session.names(cells["pmc_id"], self._names)
            known = ~np.isnan(values)
            of_task = known & (find(tasks, events) != NOWHERE)
            self._parts.counters.add(
                self._session.events.key(events[of_task]), names[of_task], values[of_task]
            )
            rest = known & ~of_task
            sampled = np.zeros(len(events), bool)
            if samples is not None and rest.any():
                at = find(samples[0], events)
                agents = [self._agents.get(number, MISSING) for number in cells["pmc_id"].tolist()]
                devices = self._session.agents.numbers_of_devices(np.array(agents, np.int64))
                sampled = rest & (at != NOWHERE) & (devices != MISSING)
                sample_times = samples[1][at][sampled]
                timed = {"start": sample_times, "end": sample_times}
                times, valid = self._session.timed(timed, INTERVAL, "gpu_metric")
                self._parts.sink.write(
                    "UPROF_GPU_METRICS",
                    {
                        "timestampNs": times["start"][valid],
                        "deviceId": devices[sampled][valid],
                        "name": names[sampled][valid],
                        "value": values[sampled][valid],
                    },
                )
            without += int(np.count_nonzero(~of_task & ~sampled))
        if without:
            self._parts.sink.anomaly(
                "counter_without_task",
                without,
                "values that belong to neither a dispatch nor a GPU sample",
            )

    def _counters(self) -> None:
        for cells in self._session.tables.slices(
            "info_pmc", {"id": MISSING, "agent_id": MISSING}, ["name", "symbol"]
        ):
            for at, row in enumerate(cells["id"].tolist()):
                self._names[row] = cells["name"][at] or cells["symbol"][at] or NOT_AVAILABLE
                self._agents[row] = int(cells["agent_id"][at])

    def _samples(self) -> tuple[Int64s, Int64s] | None:
        """Return the sorted event ids of samples, and their times."""
        parts = [
            (cells["event_id"], cells["timestamp"])
            for cells in self._session.tables.slices(
                "sample", {"event_id": MISSING, "timestamp": NO_TIME}
            )
        ]
        if not parts:
            return None
        events, times = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(events, kind="stable")
        return events[order], times[order]
