"""The host side of a session: calls, marks and ranges of the program, other regions.

Allocations of device memory in a session.

Hardware counters of a session: of dispatches, and samples over time.
"""

from __future__ import annotations

import json
import re

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, find
from unified_prof.base.columns import Cells
from unified_prof.base.vocabulary import NOT_AVAILABLE
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
        """Operations of torch that were marked."""
        self._session, self._parts = session, session.parts

    def read(self) -> None:
        """Put all regions into the parts."""
        wanted = dict.fromkeys(("start", "end"), NO_TIME)
        wanted |= dict.fromkeys(("pid", "tid", "name_id", "event_id"), MISSING)
        for cells in self._session.tables.slices("region", wanted):
            categories = self._session.events.categories(cells["event_id"])
            kinds = np.zeros(len(categories), np.int8)
            for number in np.unique(categories).tolist():
                text = self._session.strings.get(number, "")
                kind = 1 if _MARKS.match(text) else 2 if not _CALLS.match(text) and text else 0
                kinds[categories == number] = kind
            for kind, take in ((0, self._api_calls), (1, self._marks), (2, self._other_regions)):
                chosen = kinds == kind
                if chosen.any():
                    take({name: column[chosen] for name, column in cells.items()})

    def _api_calls(self, cells: Cells) -> None:
        rows, valid = self._session.timed(cells, r.CALL, "runtime_call")
        rows["thread"] = self._session.thread_numbers(cells)
        rows["name"] = self._session.names(cells["name_id"], self._session.strings)
        rows["correlation"] = self._session.events.correlations(cells["event_id"])
        rows = rows[valid]
        self._parts.see_correlations(rows)
        self._parts.calls.append(rows)

    def _marks(self, cells: Cells) -> None:
        """Take ranges and marks of roctx; those of torch's emit_nvtx are operations."""
        texts = self._messages(cells)
        told = [as_operation(text) for text in texts]
        chosen = np.array([one is not None for one in told], bool)
        threads = self._session.thread_numbers(cells)
        operations = [one for one in told if one is not None]
        if operations:
            some = {name: column[chosen] for name, column in cells.items()}
            rows, valid = self._session.timed(some, r.HOST, "operation")
            rows["thread"] = threads[chosen]
            self._parts.add_marked_operations(rows, valid, operations)
            self.operations += int(np.count_nonzero(valid))
        rest = ~chosen
        if rest.any():
            some = {name: column[rest] for name, column in cells.items()}
            messages = [text for text, one in zip(texts, rest.tolist(), strict=True) if one]
            self._annotations(some, threads[rest], messages)

    def _messages(self, cells: Cells) -> list[str]:
        """Return what programs wrote on their marks: in the event, else the region's name."""
        wanted = set(cells["event_id"].tolist())
        said: dict[int, str] = {}
        markers = {number for number, text in self._session.strings.items() if _MARKS.match(text)}
        slices = self._session.tables.slices(
            "event", {"id": MISSING}, ["extdata"], only=("category_id", markers)
        )
        for events in slices:
            for number, text in zip(events["id"].tolist(), events["extdata"], strict=True):
                if number in wanted and text and "message" in text:
                    said[number] = _message(text)
        return [
            said.get(event) or self._session.strings.get(name, NOT_AVAILABLE)
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
        said = json.loads(text).get("message")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""


_COMPONENT = "ROCm"


def read_allocations(session: Session) -> None:
    """Read allocations of device memory; a release does not say its size."""
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
                # The release of a block may not say whose memory it was.
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


_ENTRIES = "pmc_event"


class SessionCounters:
    """Reads the counters of a session; its tasks have to be read before."""

    def __init__(self, session: Session) -> None:
        self._session, self._parts = session, session.parts
        self._names: dict[int, str] = {}
        self._agents: dict[int, int] = {}

    def read(self, counted: Int64s) -> None:
        """Put the values of tasks into `Parts.counters`, and write those of samples.

        Args:
            counted: The events of the session's tasks.
        """
        self._counters()
        samples = self._samples()
        without = 0
        tasks = np.unique(counted)
        for cells in self._session.tables.slices(
            _ENTRIES, {"event_id": MISSING, "pmc_id": MISSING}, reals=["value"]
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
                agents = [self._agents.get(one, MISSING) for one in cells["pmc_id"].tolist()]
                devices = self._session.agents.numbers_of_devices(np.array(agents, np.int64))
                sampled = rest & (at != NOWHERE) & (devices != MISSING)
                moments = samples[1][at]
                timed = {"start": moments[sampled], "end": moments[sampled]}
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
                "counter_without_task", without, "values of no dispatch and no sample of a GPU"
            )

    def _counters(self) -> None:
        for cells in self._session.tables.slices(
            "info_pmc", {"id": MISSING, "agent_id": MISSING}, ["name", "symbol"]
        ):
            for at, row in enumerate(cells["id"].tolist()):
                self._names[row] = cells["name"][at] or cells["symbol"][at] or NOT_AVAILABLE
                self._agents[row] = int(cells["agent_id"][at])

    def _samples(self) -> tuple[Int64s, Int64s] | None:
        """Return events of samples, in order, and when each was taken."""
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
