"""Decodes one recording of rocprofv3 into a sink, from the tables of its rocpd schema.

A table's name ends in the session's uuid (`rocpd_region_00006e7b_...`), and views of the plain
names join the sessions of a file. Views are not read: ids are a session's own, and so each session
is read from its tables. Ids of processes, threads, agents, queues and streams are row numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unified_prof.arrays.distinct import distinct_rows
from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.columns import Cells, Sink, Tables
from unified_prof.decoders.gpu import description
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu import tables as gpu_tables
from unified_prof.decoders.gpu.found import Found
from unified_prof.decoders.gpu.marked import SOME_FORWARD_THREAD, as_operation, is_backward
from unified_prof.decoders.gpu.numbers import MISSING, Bools, Int64s
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.spool import Rows
from unified_prof.errors import RawFormatError
from unified_prof.vocabulary import HOST_ONLY_CONNECTION, NO_CATEGORY, NOT_AVAILABLE

NAME = "rocm"

PREFIX = "rocpd_"
_NO_TIME = -(2**63)
_SANE_NS = 2**62
_MOST_ID = 2**40
_INT32 = range(-(2**31), 2**31)
_SESSION = re.compile(r"rocpd_metadata(.*)", re.DOTALL)
_RANGE_EVENT, _MARK_EVENT = 2, 0
_COMPONENT = "ROCm"
_CALLS = re.compile(r"HIP|HSA|RCCL|ROCDECODE|ROCJPEG")
_MARKS = re.compile(r"MARKER")
_READ = frozenset(
    "metadata string info_node info_process info_thread info_agent info_queue info_stream "
    "info_kernel_symbol info_code_object info_pmc event region kernel_dispatch memory_copy "
    "memory_allocate arg track".split()
)
_GEOMETRY = (
    *("grid_size_x", "grid_size_y", "grid_size_z"),
    *("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
)
_PLACE = {
    "start": _NO_TIME,
    "end": _NO_TIME,
    "pid": MISSING,
    "tid": MISSING,
    "queue_id": MISSING,
    "stream_id": MISSING,
    "event_id": MISSING,
}


def decode(
    path: object,
    tables: Tables,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Found:
    """Decode the tables of a recording.

    Args:
        path: What messages call it.
        tables: Its tables, of as many sessions as there are.
        sink: Takes the rows of the msprof tables and of those of torch_npu and uprof.
        has_column: Whether the revision being written has (table, column).
        data_types: ENUM_HCCL_DATA_TYPE of that revision, name -> id.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: it holds nothing that can be shown.
        UprofError: the file is damaged.
    """
    sessions = [match[1] for name in tables.names if (match := _SESSION.fullmatch(name))]
    if not sessions:
        raise RawFormatError(f"{path}: holds no table rocpd_metadata, as every rocpd database does")
    progress("reading events")
    with Parts(sink) as parts:
        found = _Common()
        for number, session in enumerate(sessions):
            _Session(parts, tables, session, number, found).read()
        if parts.span is None:
            raise RawFormatError(f"{path}: holds no event, its tables are empty")
        joined = gpu_tables.write(
            parts, 0, has_column=has_column, data_types=data_types, progress=progress
        )
        sink.anomaly("relative_times", 1, "rocprofv3 does not record when its clock began")
        _tell_unread(tables, sessions, sink)
        first, last = parts.span
        names = {number: properties.get("name") for number, properties in found.devices.items()}
        description.write(
            sink,
            start_ns=first,
            end_ns=last,
            host_name=None,
            device_names={device: names.get(device) for device in parts.devices},
            rank=None,
        )
        description.write_device_properties(sink, found.devices)
        return Found(
            events=sum(parts.counts.values()),
            counts=dict(parts.counts),
            tasks=parts.gpu.rows,
            tasks_joined=joined,
            operations=found.operations,
            facts={
                "decoder": NAME,
                "device_kind": "gpu" if parts.devices else "cpu",
                "device_vendor": "AMD",
                "base_time_ns": 0,
                "rocpd_schema": found.schema,
                "rocpd_sessions": len(sessions),
                "events": dict(sorted(parts.counts.items())),
            },
        )


class _Common:
    """What the sessions of a recording have in common."""

    def __init__(self) -> None:
        self.devices: dict[int, dict[str, Any]] = {}
        self.schema: str | None = None
        self.operations = 0


def _tell_unread(tables: Tables, sessions: list[str], sink: Sink) -> None:
    unread = set()
    for name in tables.names:
        for session in sorted(sessions, key=len, reverse=True):
            if name.startswith(PREFIX) and name.endswith(session):
                plain = name.removesuffix(session).removeprefix(PREFIX)
                if plain not in _READ and next(iter(tables.slices(name, {})), None) is not None:
                    unread.add(PREFIX + plain)
                break
    if unread:
        sink.anomaly("table_not_read", len(unread), ", ".join(sorted(unread))[:2000])
    for place, count in tables.unreadable.items():
        sink.anomaly("unreadable_number", count, place)


class _Session:
    """One session of a file: its tables end in one uuid."""

    def __init__(
        self, parts: Parts, tables: Tables, session: str, number: int, found: _Common
    ) -> None:
        self._parts = parts
        self._tables = tables
        self._session = session
        self._number = number
        self._found = found
        self._strings = self._texts("string", "string")
        self._pids = self._numbers("info_process", "pid")
        self._tids = self._numbers("info_thread", "tid")
        self._agents: dict[int, tuple[str, int]] = {}
        """Row -> (CPU or GPU, number among those of its type)."""
        self._threads: dict[tuple[int, int], int] = {}
        self._geometries: dict[tuple[int, ...], int] = {}

    def read(self) -> None:
        """Put all events into the parts."""
        for cells in self._slices("metadata", {}, ["tag", "value"]):
            for tag, value in zip(cells["tag"], cells["value"], strict=True):
                if tag == "schema_version":
                    self._found.schema = value
        self._read_agents()
        self._read_events()
        self._read_names_of_threads()
        self._regions()
        self._kernels()
        self._copies()
        self._allocations()

    # ---- what rows refer to

    def _slices(
        self, table: str, numbers: Mapping[str, int], texts: list[str] | None = None
    ) -> Any:
        return self._tables.slices(f"{PREFIX}{table}{self._session}", numbers, texts=texts or [])

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        found: dict[int, int] = {}
        for cells in self._slices(table, {"id": MISSING, column: MISSING}):
            found.update(zip(cells["id"].tolist(), cells[column].tolist(), strict=True))
        return found

    def _texts(self, table: str, column: str) -> dict[int, str]:
        found: dict[int, str] = {}
        for cells in self._slices(table, {"id": MISSING}, [column]):
            found.update(
                (number, text)
                for number, text in zip(cells["id"].tolist(), cells[column], strict=True)
                if text is not None
            )
        return found

    def _read_agents(self) -> None:
        wanted = {"id": MISSING, "type_index": MISSING, "logical_index": MISSING}
        names = ["type", "product_name", "name", "model_name", "vendor_name"]
        for cells in self._slices("info_agent", wanted, names):
            for at, row in enumerate(cells["id"].tolist()):
                kind = (cells["type"][at] or "").upper()
                index = int(cells["type_index"][at])
                if index not in _INT32 or index < 0:
                    index = MISSING
                self._agents[row] = (kind, index)
                if kind == "GPU" and index != MISSING:
                    told = {name: cells[name][at] for name in names[1:] if cells[name][at]}
                    told["name"] = told.get("product_name") or told.get("name") or NOT_AVAILABLE
                    self._found.devices.setdefault(index, told)

    def _read_events(self) -> None:
        """Read what ties calls and tasks together, and which kind of call a region is."""
        wanted = {"id": MISSING, "stack_id": 0, "correlation_id": 0, "category_id": MISSING}
        parts: list[tuple[Int64s, ...]] = [
            tuple(cells[name] for name in wanted) for cells in self._slices("event", wanted)
        ]
        columns = (
            [np.concatenate(column) for column in zip(*parts, strict=True)]
            if parts
            else [np.empty(0, np.int64)] * len(wanted)
        )
        order = np.argsort(columns[0], kind="stable")
        self._event_ids, stacks, correlations, categories = (column[order] for column in columns)
        keys = np.where(stacks > 0, stacks, correlations)
        self._event_keys = np.where((keys > 0) & (keys < _MOST_ID), keys, MISSING)
        self._event_categories = categories

    def _of_events(self, events: Int64s, values: Int64s) -> Int64s:
        place = find(self._event_ids, events)
        found = np.full(len(events), MISSING)
        there = place != NOWHERE
        found[there] = values[place[there]]
        return found

    def _correlations(self, events: Int64s) -> Int64s:
        keys = self._of_events(events, self._event_keys)
        return np.where(keys == MISSING, MISSING, self._number * _MOST_ID + keys)

    def _read_names_of_threads(self) -> None:
        threads = self._parts.threads
        for cells in self._slices("info_thread", {"id": MISSING, "pid": MISSING}, ["name"]):
            for row, pid, name in zip(
                cells["id"].tolist(), cells["pid"].tolist(), cells["name"], strict=True
            ):
                if name and row in self._tids and pid in self._pids:
                    threads.thread_names[self._pids[pid], self._tids[row]] = name

    def _thread_numbers(self, cells: Cells, *, active: bool = True) -> Int64s:
        first, inverse = distinct_rows(cells["pid"], cells["tid"])
        numbers = []
        for at in first.tolist():
            key = (int(cells["pid"][at]), int(cells["tid"][at]))
            if key not in self._threads:
                pid, tid = self._pids.get(key[0], key[0]), self._tids.get(key[1], key[1])
                self._threads[key] = self._parts.threads[pid, tid]
            numbers.append(self._threads[key])
        found = np.array(numbers, np.int64)[inverse]
        if active:
            self._parts.activity.update(dict(enumerate(np.bincount(found).tolist())))
        return found

    def _timed(self, cells: Cells, dtype: np.dtype[Any], what: str) -> tuple[Rows, Bools]:
        start, end = cells["start"], cells["end"]
        rows = np.empty(len(start), dtype)
        rows["start"], rows["end"] = start, end
        sane = (np.abs(start) < _SANE_NS) & (np.abs(end) < _SANE_NS)
        sane &= (start != _NO_TIME) & (end != _NO_TIME)
        negative = sane & (end < start)
        for name, odd in (("event_without_time", ~sane), ("negative_duration", negative)):
            if odd.any():
                self._parts.sink.anomaly(name, int(np.count_nonzero(odd)), f"{what}, left out")
        valid = sane & ~negative
        if valid.any():
            self._parts.see(int(start[valid].min()), int(end[valid].max()))
        self._parts.counts[what] += len(rows)
        return rows, valid

    def _names(self, ids: Int64s, texts: Mapping[int, str]) -> Int64s:
        names = self._parts.names
        distinct, inverse = np.unique(ids, return_inverse=True)
        found = [names[texts.get(number, NOT_AVAILABLE)] for number in distinct.tolist()]
        return np.array(found, np.int64)[inverse]

    # ---- the host

    def _regions(self) -> None:
        wanted = {
            "start": _NO_TIME,
            "end": _NO_TIME,
            "pid": MISSING,
            "tid": MISSING,
            "name_id": MISSING,
            "event_id": MISSING,
        }
        for cells in self._slices("region", wanted):
            categories = self._of_events(cells["event_id"], self._event_categories)
            kinds = np.zeros(len(categories), np.int8)
            for number in np.unique(categories).tolist():
                text = self._strings.get(number, "")
                kind = 1 if _MARKS.match(text) else 2 if not _CALLS.match(text) and text else 0
                kinds[categories == number] = kind
            for kind, take in ((0, self._api_calls), (1, self._marks), (2, self._other_regions)):
                chosen = kinds == kind
                if chosen.any():
                    take({name: column[chosen] for name, column in cells.items()})

    def _api_calls(self, cells: Cells) -> None:
        rows, valid = self._timed(cells, r.CALL, "runtime_call")
        rows["thread"] = self._thread_numbers(cells)
        rows["name"] = self._names(cells["name_id"], self._strings)
        rows["correlation"] = self._correlations(cells["event_id"])
        for field in (
            *("external", "size", "geometry", "shared_memory"),
            *("operation", "operation_name", "signature", "collective"),
        ):
            rows[field] = MISSING
        rows = rows[valid]
        self._parts.see_correlations(rows)
        self._parts.calls.append(rows)

    def _marks(self, cells: Cells) -> None:
        """Take ranges and marks of roctx; those of torch's emit_nvtx are operations."""
        texts = self._messages(cells)
        told = [as_operation(text) for text in texts]
        chosen = np.array([one is not None for one in told], bool)
        threads = self._thread_numbers(cells)
        operations = [one for one in told if one is not None]
        if operations:
            some = {name: column[chosen] for name, column in cells.items()}
            rows, valid = self._timed(some, r.HOST, "operation")
            rows["thread"] = threads[chosen]
            rows["is_operation"] = rows["finished"] = 1
            signatures = self._parts.signatures
            for at, (name, sequence, number, sizes) in enumerate(operations):
                rows["name"][at] = self._parts.names[name]
                rows["sequence"][at], rows["external"][at] = sequence, number
                backward = sequence >= 0 and is_backward(name)
                rows["forward_thread"][at] = SOME_FORWARD_THREAD if backward else 0
                rows["signature"][at] = signatures[b"", sizes.encode(), b""] if sizes else MISSING
            for field in ("inputs", "module", "collective", "stack"):
                rows[field] = MISSING
            self._found.operations += int(np.count_nonzero(valid))
            self._parts.host.append(rows[valid])
        rest = ~chosen
        if rest.any():
            some = {name: column[rest] for name, column in cells.items()}
            messages = [text for text, one in zip(texts, rest.tolist(), strict=True) if one]
            self._annotations(some, threads[rest], messages)

    def _messages(self, cells: Cells) -> list[str]:
        """Return what programs wrote on their marks: in the event, else the region's name."""
        wanted = set(cells["event_id"].tolist())
        said: dict[int, str] = {}
        markers = {number for number, text in self._strings.items() if _MARKS.match(text)}
        slices = self._tables.slices(
            f"{PREFIX}event{self._session}",
            {"id": MISSING},
            texts=["extdata"],
            only=("category_id", markers),
        )
        for events in slices:
            for number, text in zip(events["id"].tolist(), events["extdata"], strict=True):
                if number in wanted and text and "message" in text:
                    said[number] = _message(text)
        return [
            said.get(event) or self._strings.get(name, NOT_AVAILABLE)
            for event, name in zip(
                cells["event_id"].tolist(), cells["name_id"].tolist(), strict=True
            )
        ]

    def _annotations(self, cells: Cells, threads: Int64s, messages: list[str]) -> None:
        names = self._parts.names
        times, valid = self._timed(cells, _INTERVAL, "annotation")
        global_tids = np.array(self._parts.threads.global_tids, np.int64)[threads]
        message = np.array([names[text] for text in messages], np.int64)
        instant = times["start"] == times["end"]
        self._parts.sink.write(
            "MSTX_EVENTS",
            {
                "startNs": times["start"][valid],
                "endNs": times["end"][valid],
                "eventType": np.where(instant, _MARK_EVENT, _RANGE_EVENT)[valid],
                "rangeId": NO_CATEGORY,
                "category": NO_CATEGORY,
                "message": message[valid],
                "globalTid": global_tids[valid],
                "endGlobalTid": global_tids[valid],
                "domainId": names["default"],
                "connectionId": HOST_ONLY_CONNECTION,
            },
        )
        step = np.isin(message, list(names.steps)) & valid
        if step.any():
            numbers = [names.steps[number] for number in message[step].tolist()]
            times = times[step]
            self._parts.sink.write(
                "STEP_TIME", {"id": numbers, "startNs": times["start"], "endNs": times["end"]}
            )

    def _other_regions(self, cells: Cells) -> None:
        rows, valid = self._timed(cells, r.OTHER, "other_region")
        categories = self._of_events(cells["event_id"], self._event_categories)
        rows["category"] = self._names(categories, self._strings)
        rows["name"] = self._names(cells["name_id"], self._strings)
        places = self._parts.places
        rows["place"] = [
            places.setdefault((self._pids.get(pid, pid), self._tids.get(tid, tid)), len(places))
            for pid, tid in zip(cells["pid"].tolist(), cells["tid"].tolist(), strict=True)
        ]
        rows["args_at"] = rows["args_size"] = 0
        self._parts.other.append(rows[valid])

    # ---- devices

    def _kernels(self) -> None:
        symbols = {
            "id": MISSING,
            "sgpr_count": MISSING,
            "arch_vgpr_count": MISSING,
            "accum_vgpr_count": 0,
        }
        names: dict[int, str] = {}
        registers: dict[int, int] = {}
        for cells in self._slices("info_kernel_symbol", symbols, ["display_name", "kernel_name"]):
            for at, row in enumerate(cells["id"].tolist()):
                names[row] = cells["display_name"][at] or cells["kernel_name"][at] or NOT_AVAILABLE
                count = int(cells["arch_vgpr_count"][at])
                more = max(0, int(cells["accum_vgpr_count"][at]))
                registers[row] = count + more if count >= 0 else MISSING
        wanted = {
            **_PLACE,
            "agent_id": MISSING,
            "kernel_id": MISSING,
            "group_segment_size": MISSING,
            **dict.fromkeys(_GEOMETRY, MISSING),
        }
        for cells in self._slices("kernel_dispatch", wanted):
            rows, valid = self._task(cells, "kernel")
            rows["device"] = self._devices(cells["agent_id"])
            kernels = cells["kernel_id"]
            rows["name"] = self._names(kernels, names)
            rows["kind"] = r.KERNEL
            rows["kind"][self._parts.are_communication(rows["name"])] = r.COMMUNICATION
            distinct, inverse = np.unique(kernels, return_inverse=True)
            counts = [registers.get(number, MISSING) for number in distinct.tolist()]
            rows["registers"] = np.array(counts, np.int64)[inverse]
            rows["shared_memory"] = cells["group_segment_size"]
            rows["geometry"] = self._geometry_numbers(cells)
            self._put(rows, valid)

    def _geometry_numbers(self, cells: Cells) -> Int64s:
        """Return launch sizes. AMD counts work items where others count blocks."""
        first, inverse = distinct_rows(*(cells[name] for name in _GEOMETRY))
        numbers = []
        for at in first.tolist():
            sizes = tuple(int(cells[name][at]) for name in _GEOMETRY)
            number = self._geometries.get(sizes)
            if number is None:
                number = MISSING
                if min(sizes) > 0:
                    items, group = sizes[:3], sizes[3:]
                    blocks = tuple(
                        -(-size // width) for size, width in zip(items, group, strict=True)
                    )
                    texts = tuple(json.dumps(part).encode() for part in (blocks, group))
                    number = self._parts.geometries[texts[0], texts[1]]
                self._geometries[sizes] = number
            numbers.append(number)
        return np.array(numbers, np.int64)[inverse]

    def _copies(self) -> None:
        wanted = {
            **_PLACE,
            "src_agent_id": MISSING,
            "dst_agent_id": MISSING,
            "size": MISSING,
            "name_id": MISSING,
        }
        for cells in self._slices("memory_copy", wanted):
            rows, valid = self._task(cells, "copy")
            first, inverse = distinct_rows(cells["src_agent_id"], cells["dst_agent_id"])
            names, devices = [], []
            for at in first.tolist():
                name, device = self._direction(
                    int(cells["src_agent_id"][at]), int(cells["dst_agent_id"][at])
                )
                names.append(self._parts.names[name])
                devices.append(device)
            rows["name"] = np.array(names, np.int64)[inverse]
            rows["device"] = np.array(devices, np.int64)[inverse]
            rows["kind"] = r.COPY
            rows["size"] = cells["size"]
            self._put(rows, valid)

    def _direction(self, source: int, target: int) -> tuple[str, int]:
        nothing = ("", MISSING)
        kinds = (self._agents.get(source, nothing), self._agents.get(target, nothing))
        device = next((index for kind, index in reversed(kinds) if kind == "GPU"), MISSING)
        letters = [{"CPU": "H", "GPU": "D"}.get(kind) for kind, _ in kinds]
        if None in letters:
            return "Memcpy Unknown", device
        if letters == ["D", "D"] and source != target:
            return "Memcpy PtoP", device
        return f"Memcpy {letters[0]}to{letters[1]}", device

    def _allocations(self) -> None:
        """Read allocations of device memory; a release does not say its size."""
        live: dict[tuple[int, int], int] = {}
        wanted = {
            "start": _NO_TIME,
            "end": _NO_TIME,
            "pid": MISSING,
            "tid": MISSING,
            "agent_id": MISSING,
            "address": MISSING,
            "size": 0,
        }
        unsized = 0
        for cells in self._slices("memory_allocate", wanted, ["type", "level"]):
            times, valid = self._timed(cells, _INTERVAL, "allocation")
            rows = np.empty(len(times), r.ALLOCATION)
            rows["start"] = times["start"]
            rows["thread"] = self._thread_numbers(cells)
            rows["device"] = self._devices(cells["agent_id"])
            rows["address"] = cells["address"]
            rows["owner"] = self._number
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
            self._parts.memory_component, self._parts.adds_up_allocations = _COMPONENT, True
            self._parts.allocations.append(rows[valid & (rows["size"] != 0) & on_device])
        if unsized:
            self._parts.sink.anomaly(
                "release_without_allocation", unsized, "allocated before the recording"
            )

    def _devices(self, agents: Int64s) -> Int64s:
        distinct, inverse = np.unique(agents, return_inverse=True)
        found = []
        for agent in distinct.tolist():
            kind, index = self._agents.get(agent, ("", MISSING))
            found.append(index if kind == "GPU" else MISSING)
        return np.array(found, np.int64)[inverse]

    def _task(self, cells: Cells, what: str) -> tuple[Rows, Bools]:
        rows, valid = self._timed(cells, r.GPU_TASK, what)
        stream = cells["stream_id"]
        rows["stream"] = np.where(stream == MISSING, cells["queue_id"], stream)
        rows["correlation"] = self._correlations(cells["event_id"])
        distinct, inverse = np.unique(cells["pid"], return_inverse=True)
        pids = [self._pids.get(row, row) for row in distinct.tolist()]
        pids = [pid if pid in _INT32 else MISSING for pid in pids]
        rows["process"] = np.array(pids, np.int64)[inverse]
        for field in (
            *("external", "geometry", "queued", "registers", "shared_memory", "size", "graph"),
            *("connection", "thread", "operation_name", "signature", "collective"),
            *("graph_node", "context"),
        ):
            rows[field] = MISSING
        for field in ("blocks_per_sm", "warps_per_sm", "occupancy", "bandwidth"):
            rows[field] = np.nan
        return rows, valid

    def _put(self, rows: Rows, valid: Bools) -> None:
        rows = rows[valid]
        self._parts.see_correlations(rows)
        self._parts.devices.update(np.unique(rows["device"]).tolist())
        self._parts.gpu.append(rows)


_INTERVAL = np.dtype([("start", "i8"), ("end", "i8")])


def _message(text: str) -> str:
    try:
        said = json.loads(text).get("message")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""
