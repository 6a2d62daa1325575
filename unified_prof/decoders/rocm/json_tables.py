"""Reads rocprofv3 tables: rocpd databases session by session, and JSON in the same layout.

The name of a rocpd table ends in the UUID of its session (`rocpd_region_00006e7b_...`). The views
of a database join all sessions, but ids are unique only within a session, so the tables are read
instead of the views.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from unified_prof.base.columns import MISSING, Cells, Query, Tables
from unified_prof.decoders import compression
from unified_prof.errors import RawFormatError

# The only key of a JSON recording.
TOOL = "rocprofiler-sdk-tool"
_ROWS = 1 << 14
_INT64 = range(-(2**63), 2**63)
_CPU, _GPU = 1, 2
_HOST_RECORDS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_ALLOCATIONS = ("ALLOC", "FREE")
Row = dict[str, Any]


class JsonTables(Tables):
    """Implementation of `columns.Tables` for a JSON recording, loaded into memory."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises RawFormatError if the file is damaged, or is not a rocprofv3 recording.
        """
        document = compression.read_json(path)
        sessions = document.get(TOOL) if isinstance(document, dict) else None
        if not isinstance(sessions, list):
            raise RawFormatError(
                f"{path} is not a recording of rocprofv3",
                hint=f"expected a key {TOOL!r}",
                slug="not-a-recording",
            )
        self._tables: dict[str, list[Row]] = {}
        for number, session in enumerate(_mappings(sessions)):
            for table, rows in _SessionConverter(session).tables.items():
                self._tables[f"rocpd_{table}_{number}"] = rows
        super().__init__(self._tables)

    def columns(self, table: str) -> Collection[str]:
        """Return the column names of `table`."""
        rows = self._tables.get(table)
        return tuple(rows[0]) if rows else ()

    def count(self, table: str) -> int:
        """Return the number of rows of `table`."""
        return len(self._tables.get(table, ()))

    def read(self, query: Query) -> Iterator[Cells]:
        """Yield the rows of a table; see `columns.Tables`."""
        rows = self._tables[query.table]
        if query.only is not None:
            name, wanted = query.only
            rows = [
                row
                for row in rows
                if row[name] is not None and (wanted is None or row[name] in wanted)
            ]
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            cells = query.missing_columns(len(part))
            for column in query.found:
                values = [row[column] for row in part]
                place = f"{query.table}.{column}"
                if column in query.numbers:
                    cells[column] = self._integers(place, values, query.numbers[column])
                elif column in query.reals:
                    cells[column] = self._floats(place, values)
                else:
                    cells[column] = [value if isinstance(value, str) else None for value in values]
            yield cells

    def _integers(self, place: str, values: list[Any], default: int) -> Any:
        known = [value if type(value) is int and value in _INT64 else None for value in values]
        self._count_unreadable(place, values, known)
        return np.array([default if value is None else value for value in known], np.int64)

    def _floats(self, place: str, values: list[Any]) -> Any:
        known = [value if _is_real(value) else None for value in values]
        self._count_unreadable(place, values, known)
        return np.array([math.nan if value is None else float(value) for value in known])

    def _count_unreadable(self, place: str, values: list[Any], known: list[Any]) -> None:
        pairs = zip(values, known, strict=True)
        if count := sum(value is not None and read is None for value, read in pairs):
            self.unreadable[place] += count


# Columns of rocpd tables, and the keys of a JSON record that hold them.
_Paths = Mapping[str, tuple[str, ...]]


def _paths(text: str) -> _Paths:
    """Parse columns such as `size=bytes`, with the nested keys joined by dots; equal if omitted."""
    pairs = (item.partition("=") for item in text.split())
    return {column: tuple((path or column).split(".")) for column, _, path in pairs}


_COMMON = "start=start_timestamp end=end_timestamp tid=thread_id "
_AGENT = _paths("id=id.handle product_name name model_name vendor_name")
_SYMBOL = _paths(
    "id=kernel_id display_name=formatted_kernel_name kernel_name sgpr_count arch_vgpr_count"
    " accum_vgpr_count"
)
_REGION = _paths(_COMMON)
_DISPATCH = {
    **_paths(
        f"{_COMMON} agent_id=dispatch_info.agent_id.handle kernel_id=dispatch_info.kernel_id"
        " queue_id=dispatch_info.queue_id.handle stream_id=stream_id.handle"
        " group_segment_size=dispatch_info.group_segment_size"
    ),
    **{
        f"{size}_{axis}": ("dispatch_info", size, axis)
        for size in ("grid_size", "workgroup_size")
        for axis in "xyz"
    },
}
_COUNTER = _paths("id=id.handle agent_id=agent_id.handle name")
_COPY = _paths(
    f"{_COMMON} src_agent_id=src_agent_id.handle dst_agent_id=dst_agent_id.handle"
    " stream_id=stream_id.handle size=bytes"
)
_ALLOCATION = _paths(f"{_COMMON} agent_id=agent_id.handle address size=allocation_size")


def _row(record: Any, paths: _Paths) -> Row:
    return {column: _get(record, *keys) for column, keys in paths.items()}


class _SessionConverter:
    """Converts one session of a JSON recording to rows of rocpd tables."""

    def __init__(self, session: Mapping[str, Any]) -> None:
        self.tables: defaultdict[str, list[Row]] = defaultdict(list)
        self._strings: dict[str, int] = {}
        self._events = 0
        self._dispatches: dict[Any, int] = {}  # Dispatch id of the runtime -> event.
        self._pid = {"pid": _get(session, "metadata", "pid")}
        self.tables["metadata"].append({"tag": "schema_version", "value": "rocprofv3 JSON"})
        self._add_agents(session.get("agents"))
        self.tables["info_kernel_symbol"] = [
            _row(symbol, _SYMBOL) for symbol in _mappings(session.get("kernel_symbols"))
        ]
        self._kinds, self._operations = _names(_within(session, "strings", "buffer_records"))
        self._marks = {
            _get(mark, "key"): _get(mark, "value")
            for mark in _mappings(_within(session, "strings", "marker_api"))
            if isinstance(_get(mark, "key"), int)
        }
        records = session.get("buffer_records")
        records = records if isinstance(records, dict) else {}
        for name in _HOST_RECORDS:
            for record in _mappings(records.get(name)):
                self._add_region(record)
        for record in _mappings(records.get("kernel_dispatch")):
            self._add_dispatch(record)
        self._add_counters(session)
        self.tables["memory_copy"] = [
            {**_row(record, _COPY), **self._pid, "event_id": self._add_event(record)}
            for record in _mappings(records.get("memory_copy"))
        ]
        for record in _mappings(records.get("memory_allocation")):
            self._add_allocation(record)
        self.tables["string"] = [
            {"id": number, "string": text} for text, number in self._strings.items()
        ]

    def _add_agents(self, agents: Any) -> None:
        counts: Counter[str] = Counter()
        for agent in _mappings(agents):
            kind = {_CPU: "CPU", _GPU: "GPU"}.get(_get(agent, "type"), "")
            index = _get(agent, "logical_node_type_id")
            index = index if isinstance(index, int) and index >= 0 else counts[kind]
            row = {**_row(agent, _AGENT), "type": kind, "type_index": index}
            self.tables["info_agent"].append(row)
            counts[kind] += 1

    def _string_id(self, text: Any) -> int | None:
        if not isinstance(text, str):
            return None
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _add_event(self, record: Mapping[str, Any], message: Any = None) -> int:
        self._events += 1
        is_text = isinstance(message, str)
        self.tables["event"].append(
            {
                "id": self._events,
                "stack_id": _get(record, "correlation_id", "internal"),
                "correlation_id": 0,
                "category_id": self._string_id(self._kinds.get(_get(record, "kind"))),
                "extdata": msgspec.json.encode({"message": message}).decode() if is_text else None,
            }
        )
        return self._events

    def _add_region(self, record: Mapping[str, Any]) -> None:
        kind, operation = _get(record, "kind"), _get(record, "operation")
        message = None
        if "MARKER" in self._kinds.get(kind, ""):
            message = self._marks.get(_get(record, "correlation_id", "internal"))
        self.tables["region"].append(
            {
                **_row(record, _REGION),
                **self._pid,
                "name_id": self._string_id(self._operations.get((kind, operation))),
                "event_id": self._add_event(record, message),
            }
        )

    def _add_dispatch(self, record: Mapping[str, Any]) -> None:
        event = self._add_event(record)
        if (number := _get(record, "dispatch_info", "dispatch_id")) is not None:
            self._dispatches[number] = event
        row = {**_row(record, _DISPATCH), **self._pid, "event_id": event}
        self.tables["kernel_dispatch"].append(row)

    def _add_counters(self, session: Mapping[str, Any]) -> None:
        """Add counters, and dispatches that are recorded only with counters."""
        self.tables["info_pmc"] = [
            _row(counter, _COUNTER) for counter in _mappings(session.get("counters"))
        ]
        for record in _mappings(_within(session, "callback_records", "counter_collection")):
            dispatch = record.get("dispatch_data")
            if not isinstance(dispatch, dict):
                continue
            number = _get(dispatch, "dispatch_info", "dispatch_id")
            if number is None or number not in self._dispatches:
                self._add_dispatch({"thread_id": _get(record, "thread_id"), **dispatch})
                event = self._events
            else:
                event = self._dispatches[number]
            for value in _mappings(record.get("records")):
                counter, number = _get(value, "counter_id", "handle"), _get(value, "value")
                row = {"event_id": event, "pmc_id": counter, "value": number}
                self.tables["pmc_event"].append(row)

    def _add_allocation(self, record: Mapping[str, Any]) -> None:
        operation = self._operations.get((_get(record, "kind"), _get(record, "operation"))) or ""
        row = {**_row(record, _ALLOCATION), **self._pid}
        row["type"] = next((kind for kind in ("FREE", "ALLOC") if kind in operation), None)
        row["level"] = "VIRTUAL" if "VMEM" in operation else "REAL"
        if isinstance(row["address"], str):  # hexadecimal in some versions
            try:
                row["address"] = int(row["address"], 16)
            except ValueError:
                row["address"] = None
        self.tables["memory_allocate"].append(row)


def _is_real(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)


def _names(kinds: Any) -> tuple[dict[Any, str], dict[tuple[Any, Any], str]]:
    """Return number -> name of record kinds, and (kind, number) -> name of operations."""
    names: dict[Any, str] = {}
    operations: dict[tuple[Any, Any], str] = {}
    for number, kind in enumerate(kinds if isinstance(kinds, list) else ()):
        name = _get(kind, "kind")
        if isinstance(name, str):
            names[number] = name
        listed = _within(kind, "operations")
        for place, operation in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(operation, str):
                operations[number, place] = operation
    return names, operations


def _get(value: Any, *keys: str) -> Any:
    """Return the number or string at nested keys, None if there is none."""
    found = _within(value, *keys)
    return None if isinstance(found, dict | list) else found


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _mappings(values: Any) -> Iterable[Mapping[str, Any]]:
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )


PREFIX = "rocpd_"
_SESSION = re.compile(r"rocpd_metadata(.*)", re.DOTALL)


def sessions_of(tables: Tables) -> list[str]:
    """Return the suffix of the table names for each session."""
    return [match[1] for name in tables.names if (match := _SESSION.fullmatch(name))]


class SessionTables:
    """Tables of one session, whose names end in `session`."""

    def __init__(self, tables: Tables, session: str) -> None:
        self._tables, self._session = tables, session

    def slices(
        self, table: str, numbers: Mapping[str, int], texts: Sequence[str] = (), **others: Any
    ) -> Iterator[Cells]:
        """Yield the rows of a table, named without session; see `columns.Tables.slices`."""
        name = f"{PREFIX}{table}{self._session}"
        return self._tables.slices(name, numbers, texts=texts, **others)

    def numbers(self, table: str, column: str) -> dict[int, int]:
        """Return row id -> number for a column."""
        values: dict[int, int] = {}
        for cells in self.slices(table, {"id": MISSING, column: MISSING}):
            values.update(zip(cells["id"].tolist(), cells[column].tolist(), strict=True))
        return values

    def texts(self, table: str, column: str) -> dict[int, str]:
        """Return row id -> string for a column."""
        values: dict[int, str] = {}
        for cells in self.slices(table, {"id": MISSING}, [column]):
            values.update(
                (number, text)
                for number, text in zip(cells["id"].tolist(), cells[column], strict=True)
                if text is not None
            )
        return values
