"""Decodes one rocprofv3 recording, session by session.

Ids of processes, threads, agents (CPUs and GPUs), queues and streams are row numbers within the
session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, find, mapped
from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Cells, Sink, Tables
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu import task_tables as gpu_tables
from unified_prof.decoders.gpu.host_tables import RANGE_EVENT, write_annotations
from unified_prof.decoders.gpu.rows import INTERVAL, GpuRecording, Parts, as_operation
from unified_prof.decoders.gpu.task_tables import NO_OPTIONS, Options
from unified_prof.decoders.rocm.json_tables import PREFIX, SessionTables, sessions_of
from unified_prof.decoders.spool import Rows
from unified_prof.errors import RawFormatError

_INT32 = range(-(2**31), 2**31)


class Agents:
    """Agents (CPUs and GPUs) of a session by row number."""

    def __init__(self, tables: SessionTables) -> None:
        self.devices: dict[int, dict[str, Any]] = {}  # Device number -> properties of the GPU.
        # Row number -> (CPU or GPU, index among agents of this type).
        self._agents: dict[int, tuple[str, int]] = {}
        wanted = r.null_values("", "id type_index logical_index")
        names = ["type", "product_name", "name", "model_name", "vendor_name"]
        for cells in tables.slices("info_agent", wanted, names):
            for at, row in enumerate(cells["id"].tolist()):
                kind = (cells["type"][at] or "").upper()
                index = int(cells["type_index"][at])
                if index not in _INT32 or index < 0:
                    index = MISSING
                self._agents[row] = (kind, index)
                if kind == "GPU" and index != MISSING:
                    known = {name: cells[name][at] for name in names[1:] if cells[name][at]}
                    known["name"] = known.get("product_name") or known.get("name") or NOT_AVAILABLE
                    self.devices.setdefault(index, known)

    def numbers_of_devices(self, agents: Ints) -> Ints:
        """Return the device number of each agent, MISSING if it is not a GPU."""

        def number(agent: int) -> int:
            kind, index = self._agents.get(agent, ("", MISSING))
            return index if kind == "GPU" else MISSING

        return mapped(number, agents)

    def direction(self, source: int, target: int) -> tuple[str, int]:
        """Return the name of a copy between two agents, and the device that it belongs to."""
        unknown = ("", MISSING)
        kinds = (self._agents.get(source, unknown), self._agents.get(target, unknown))
        device = next((index for kind, index in reversed(kinds) if kind == "GPU"), MISSING)
        letters = [{"CPU": "H", "GPU": "D"}.get(kind) for kind, _ in kinds]
        if None in letters:
            return "Memcpy Unknown", device
        if letters == ["D", "D"] and source != target:
            return "Memcpy PtoP", device
        return f"Memcpy {letters[0]}to{letters[1]}", device


# Ids of a session must be below this, so that ids of several sessions are distinct.
_MAX_ID = 2**40


class Events:
    """Events of a session, which join calls with tasks and contain the category of regions.

    The number of the session makes keys unique across sessions.
    """

    def __init__(self, tables: SessionTables, session: int) -> None:
        self._first_key = session * _MAX_ID
        wanted = {"id": MISSING, "stack_id": 0, "correlation_id": 0, "category_id": MISSING}
        parts: list[tuple[Ints, ...]] = [
            tuple(cells[name] for name in wanted) for cells in tables.slices("event", wanted)
        ]
        columns = [np.empty(0, np.int64)] * len(wanted)
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        self._ids, stacks, correlations, categories = (column[order] for column in columns)
        keys = np.where(stacks > 0, stacks, correlations)
        self._keys = np.where((keys > 0) & (keys < _MAX_ID), keys, MISSING)
        self._categories = categories

    def categories(self, events: Ints) -> Ints:
        """Return the string ids of categories, MISSING if unknown."""
        return self._lookup(events, self._categories)

    def correlations(self, events: Ints) -> Ints:
        """Return the key that a call shares with its tasks, MISSING if unknown."""
        keys = self._lookup(events, self._keys)
        return np.where(keys == MISSING, MISSING, self._first_key + keys)

    def key(self, events: Ints) -> Ints:
        """Return event numbers that are unique across sessions, MISSING for invalid ids."""
        known = (events > 0) & (events < _MAX_ID)
        return np.where(known, self._first_key + events, MISSING)

    def _lookup(self, events: Ints, values: Ints) -> Ints:
        place = find(self._ids, events)
        result = np.full(len(events), MISSING)
        known = place != NOWHERE
        result[known] = values[place[known]]
        return result


class Session:
    """One session of a recording: its tables, ids and number."""

    def __init__(self, parts: Parts, tables: SessionTables, number: int) -> None:
        self.parts, self.tables, self.number = parts, tables, number
        self.strings = tables.texts("string", "string")
        self.pids = tables.numbers("info_process", "pid")
        self.tids = tables.numbers("info_thread", "tid")
        self.agents = Agents(tables)
        self.events = Events(tables, number)
        self.schema: str | None = None
        for cells in tables.slices("metadata", {}, ["tag", "value"]):
            for tag, value in zip(cells["tag"], cells["value"], strict=True):
                if tag == "schema_version":
                    self.schema = value
        threads = parts.threads
        for cells in tables.slices("info_thread", {"id": MISSING, "pid": MISSING}, ["name"]):
            for row, pid, name in zip(
                cells["id"].tolist(), cells["pid"].tolist(), cells["name"], strict=True
            ):
                if name and row in self.tids and pid in self.pids:
                    threads.thread_names[self.pids[pid], self.tids[row]] = name

    def thread_numbers(self, cells: Cells) -> Ints:
        """Return the thread number of each row, and count the events of the threads."""
        threads, pids, tids = self.parts.threads, self.pids, self.tids
        found = mapped(
            lambda pid, tid: threads[pids.get(pid, pid), tids.get(tid, tid)],
            cells["pid"],
            cells["tid"],
        )
        self.parts.activity.update(dict(enumerate(np.bincount(found).tolist())))
        return found

    def names(self, ids: Ints, texts: Mapping[int, str]) -> Ints:
        """Convert ids of `texts` to ids of the string pool."""
        names = self.parts.names
        return mapped(lambda number: names[texts.get(number, NOT_AVAILABLE)], ids)


_MARK_EVENT = 0
_CALLS = re.compile(r"HIP|HSA|RCCL|ROCDECODE|ROCJPEG")
_MARKS = re.compile(r"MARKER")


class Regions:
    """Reads the regions of a session."""

    def __init__(self, session: Session) -> None:
        self.operations = 0  # Number of operations marked by emit_nvtx.
        self._session, self._parts = session, session.parts

    def read(self) -> None:
        """Read all regions into `Parts`."""
        wanted = r.null_values("start end", "pid tid name_id event_id")
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
        rows, valid = self._parts.new_rows(cells, r.CALL, "runtime_call")
        rows["thread"] = self._session.thread_numbers(cells)
        rows["name"] = self._session.names(cells["name_id"], self._session.strings)
        rows["correlation"] = self._session.events.correlations(cells["event_id"])
        rows = rows[valid]
        self._parts.note_correlations(rows)
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
            rows, valid = self._parts.new_rows(marked, r.HOST, "operation")
            rows["thread"] = threads[chosen]
            self._parts.add_marked_operations(rows, valid, operations)
            self.operations += int(np.count_nonzero(valid))
        if chosen.all():
            return
        rest = ~chosen
        others = {name: column[rest] for name, column in cells.items()}
        names = self._parts.names
        messages = [names[text] for text in compress(texts, rest.tolist())]
        times, valid = self._parts.new_rows(others, INTERVAL, "annotation")
        instant = times["start"] == times["end"]
        write_annotations(
            self._parts,
            times[valid],
            np.array(messages, np.int64)[valid],
            threads[rest][valid],
            kinds=np.where(instant, _MARK_EVENT, RANGE_EVENT)[valid],
        )

    def _messages(self, cells: Cells) -> list[str]:
        """Return the messages of marks; if missing, the names of the regions."""
        wanted = set(cells["event_id"].tolist())
        messages: dict[int, str] = {}
        markers = {number for number, text in self._session.strings.items() if _MARKS.match(text)}
        slices = self._session.tables.slices
        only = ("category_id", markers)
        for events in slices("event", {"id": MISSING}, ["extdata"], only=only):
            for number, text in zip(events["id"].tolist(), events["extdata"], strict=True):
                if number in wanted and text and "message" in text:
                    messages[number] = _message(text)
        rows = zip(cells["event_id"].tolist(), cells["name_id"].tolist(), strict=True)
        return [
            messages.get(event) or self._session.strings.get(name, NOT_AVAILABLE)
            for event, name in rows
        ]

    def _other_regions(self, cells: Cells) -> None:
        rows, valid = self._parts.new_rows(cells, r.OTHER, "other_region")
        categories = self._session.events.categories(cells["event_id"])
        rows["category"] = self._session.names(categories, self._session.strings)
        rows["name"] = self._session.names(cells["name_id"], self._session.strings)
        places, pids, tids = self._parts.places, self._session.pids, self._session.tids
        rows["place"] = [
            places.setdefault((pids.get(pid, pid), tids.get(tid, tid)), len(places))
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
    wanted = r.null_values("start end", "pid tid agent_id address", size=0)
    unsized = 0
    for cells in session.tables.slices("memory_allocate", wanted, ["type", "level"]):
        times, valid = session.parts.new_rows(cells, INTERVAL, "allocation")
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
    detail = "allocated before the recording"
    session.parts.sink.anomaly("release_without_allocation", unsized, detail)


def read_counters(session: Session, task_events: Ints) -> None:
    """Add counters of tasks (given by event ids) to `Parts`, and write sampled counters."""
    titles: dict[int, str] = {}
    agents: dict[int, int] = {}
    for cells in session.tables.slices(
        "info_pmc", r.null_values("", "id agent_id"), ["name", "symbol"]
    ):
        for at, row in enumerate(cells["id"].tolist()):
            titles[row] = cells["name"][at] or cells["symbol"][at] or NOT_AVAILABLE
            agents[row] = int(cells["agent_id"][at])
    # Event ids of samples, and their times.
    slices = session.tables.slices("sample", r.null_values("timestamp", "event_id"))
    parts = [(_NO_ROWS, _NO_ROWS), *((cells["event_id"], cells["timestamp"]) for cells in slices)]
    sampled_events, sample_times = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(sampled_events, kind="stable")
    sampled_events, sample_times = sampled_events[order], np.append(sample_times[order], 0)
    without = 0
    tasks = np.unique(task_events)
    wanted = r.null_values("", "event_id pmc_id")
    for cells in session.tables.slices("pmc_event", wanted, reals=["value"]):
        events, values = cells["event_id"], cells["value"]
        names = session.names(cells["pmc_id"], titles)
        known = ~np.isnan(values)
        of_task = known & (find(tasks, events) != NOWHERE)
        session.parts.counters.add(
            session.events.key(events[of_task]), names[of_task], values[of_task]
        )
        sample = find(sampled_events, events)
        of_counters = mapped(lambda number: agents.get(number, MISSING), cells["pmc_id"])
        devices = session.agents.numbers_of_devices(of_counters)
        sampled = known & ~of_task & (sample != NOWHERE) & (devices != MISSING)
        if sampled.any():
            times_ns = sample_times[sample[sampled]]
            timed = {"start": times_ns, "end": times_ns}
            times, valid = session.parts.new_rows(timed, INTERVAL, "gpu_metric")
            session.parts.sink.write(
                "UPROF_GPU_METRICS",
                {
                    "timestampNs": times["start"][valid],
                    "deviceId": devices[sampled][valid],
                    "name": names[sampled][valid],
                    "value": values[sampled][valid],
                },
            )
        without += int(np.count_nonzero(~of_task & ~sampled))
    detail = "values that belong to neither a dispatch nor a GPU sample"
    session.parts.sink.anomaly("counter_without_task", without, detail)


_NO_ROWS = np.empty(0, np.int64)

# Tables of names, which no event table would hold.
_DESCRIPTIVE = (
    "string metadata track arg info_node info_process info_thread info_agent info_queue "
    "info_stream info_kernel_symbol info_code_object info_pmc"
).split()
_GEOMETRY = tuple(f"{size}_{axis}" for size in ("grid_size", "workgroup_size") for axis in "xyz")
_PLACE_IDS = "pid tid queue_id stream_id event_id"


def read_tasks(session: Session) -> Ints:
    """Read all tasks into `Parts.gpu`; return the event ids of all dispatches."""
    dispatches = [np.empty(0, np.int64), *_kernels(session)]
    _copies(session)
    return np.concatenate(dispatches)


def _kernels(session: Session) -> Iterator[Ints]:
    symbols = r.null_values("", "id sgpr_count arch_vgpr_count", accum_vgpr_count=0)
    texts = ["display_name", "kernel_name"]
    names: dict[int, str] = {}
    registers: dict[int, int] = {}
    for cells in session.tables.slices("info_kernel_symbol", symbols, texts):
        for at, row in enumerate(cells["id"].tolist()):
            names[row] = cells["display_name"][at] or cells["kernel_name"][at] or NOT_AVAILABLE
            count = int(cells["arch_vgpr_count"][at])
            more = max(0, int(cells["accum_vgpr_count"][at]))
            registers[row] = count + more if 0 <= count <= count + more < 2**31 else MISSING
    ids = f"{_PLACE_IDS} agent_id kernel_id group_segment_size {' '.join(_GEOMETRY)}"
    wanted = r.null_values("start end", ids)
    for cells in session.tables.slices("kernel_dispatch", wanted):
        rows, valid = _task(session, cells, "kernel")
        rows["device"] = session.agents.numbers_of_devices(cells["agent_id"])
        kernels = cells["kernel_id"]
        rows["name"] = session.names(kernels, names)
        rows["kind"] = r.KERNEL
        rows["kind"][session.parts.are_communication(rows["name"])] = r.COMMUNICATION
        rows["registers"] = mapped(lambda number: registers.get(number, MISSING), kernels)
        rows["shared_memory"] = cells["group_segment_size"]
        rows["geometry"] = _geometry_numbers(session, cells)
        rows["counted"] = session.events.key(cells["event_id"])
        session.parts.add_gpu_tasks(rows[valid])
        yield cells["event_id"][valid]


def _geometry_numbers(session: Session, cells: Cells) -> Ints:
    """Return the numbers of launch sizes, converted from work items to blocks."""

    def number(*sizes: int) -> int:
        if min(sizes) <= 0:
            return MISSING
        items, group = sizes[:3], sizes[3:]
        blocks = [-(-size // width) for size, width in zip(items, group, strict=True)]
        texts = [json.dumps(part).encode() for part in (blocks, group)]
        return session.parts.geometries[texts[0], texts[1]]

    return mapped(number, *(cells[name] for name in _GEOMETRY))


def _copies(session: Session) -> None:
    wanted = r.null_values("start end", f"{_PLACE_IDS} src_agent_id dst_agent_id size name_id")
    direction, names = session.agents.direction, session.parts.names
    for cells in session.tables.slices("memory_copy", wanted):
        rows, valid = _task(session, cells, "copy")
        ends = cells["src_agent_id"], cells["dst_agent_id"]
        rows["name"] = mapped(lambda *pair: names[direction(*pair)[0]], *ends)
        rows["device"] = mapped(lambda *pair: direction(*pair)[1], *ends)
        rows["kind"] = r.COPY
        rows["size"] = cells["size"]
        session.parts.add_gpu_tasks(rows[valid])


def _task(session: Session, cells: Cells, what: str) -> tuple[Rows, Bools]:
    rows, valid = session.parts.new_rows(cells, r.GPU_TASK, what)
    stream = cells["stream_id"]
    rows["stream"] = np.where(stream == MISSING, cells["queue_id"], stream)
    rows["correlation"] = session.events.correlations(cells["event_id"])
    pids = session.pids

    def process(row: int) -> int:
        pid = pids.get(row, row)
        return pid if pid in _INT32 else MISSING

    rows["process"] = mapped(process, cells["pid"])
    return rows, valid


NAME = "rocm"


def decode(path: object, tables: Tables, sink: Sink, options: Options = NO_OPTIONS) -> GpuRecording:
    """Decode the tables of a recording with one or more sessions.

    `path` is used in messages. Raises RawFormatError if the recording contains no events, and
    UprofError if the file is damaged.
    """
    sessions = sessions_of(tables)
    if not sessions:
        message = f"{path}: has no table rocpd_metadata and is not a rocpd database"
        raise RawFormatError(message, slug="not-a-recording")
    options.progress("reading events")
    with Parts(sink) as parts:
        devices: dict[int, dict[str, Any]] = {}
        schema: str | None = None
        operations = 0
        for number, name in enumerate(sessions):
            session = Session(parts, SessionTables(tables, name), number)
            regions = Regions(session)
            regions.read()
            read_counters(session, read_tasks(session))
            read_allocations(session)
            operations += regions.operations
            for device, properties in session.agents.devices.items():
                devices.setdefault(device, properties)
            schema = schema if session.schema is None else session.schema
        if parts.span is None:
            message = f"{path}: has no events, its tables are empty"
            raise RawFormatError(message, slug="empty-recording")
        joined = gpu_tables.write(parts, options)
        sink.anomaly("relative_times", 1, "rocprofv3 does not record the start of its clock")
        gpu_tables.write_coverage(parts, tables, [f"{PREFIX}{name}" for name in _DESCRIPTIVE])
        first, last = parts.span
        names = {number: properties.get("name") for number, properties in devices.items()}
        host_tables.write_metadata(
            sink,
            start_ns=first,
            end_ns=last,
            host_name=None,
            device_names={device: names.get(device) for device in parts.devices},
            rank=None,
        )
        host_tables.write_device_properties(sink, devices)
        facts = {
            "decoder": NAME,
            "device_kind": "gpu" if parts.devices else "cpu",
            "device_vendor": "AMD",
            "base_time_ns": 0,
            "rocpd_schema": schema,
            "rocpd_sessions": len(sessions),
        }
        return parts.recording(joined, operations, facts)
