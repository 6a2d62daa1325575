"""The JSON of `rocprofv3 --output-format json`, as the tables of a rocpd database.

The tables of one session of a recording, by their plain names.

A table's name ends in the session's uuid (`rocpd_region_00006e7b_...`), and views of the plain
names join the sessions of a file. Views are not read: ids are a session's own, and so each session
is read from its tables.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from unified_prof.base.columns import Cells, Sink, Tables
from unified_prof.decoders import compression
from unified_prof.decoders.gpu.memory import MISSING
from unified_prof.errors import RawFormatError

TOOL = "rocprofiler-sdk-tool"
"""The one key of such a file."""

_ROWS = 1 << 14
_INT64 = range(-(2**63), 2**63)
_CPU, _GPU = 1, 2
_HOST_RECORDS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_ALLOCATIONS = ("ALLOC", "FREE")

Row = dict[str, Any]


class JsonTables:
    """`columns.Tables` of a JSON recording, which is held in memory as a whole."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            RawFormatError: it is damaged, or no recording of rocprofv3.
        """
        document = compression.read_json(path)
        sessions = document.get(TOOL) if isinstance(document, dict) else None
        if not isinstance(sessions, list):
            raise RawFormatError(
                f"{path} is no recording of rocprofv3",
                hint=f"expected a key {TOOL!r}",
                slug="not-a-recording",
            )
        self._tables: dict[str, list[Row]] = {}
        self._unreadable: Counter[str] = Counter()
        for number, session in enumerate(one for one in sessions if isinstance(one, dict)):
            for table, rows in _Converted(session).tables.items():
                self._tables[f"rocpd_{table}_{number}"] = rows

    @property
    def names(self) -> Sequence[str]:
        """What tables there are."""
        return tuple(self._tables)

    @property
    def unreadable(self) -> Mapping[str, int]:
        """How many values so far were not what was asked for."""
        return self._unreadable

    def columns(self, table: str) -> Collection[str]:
        """Return the names of the columns of `table`."""
        rows = self._tables.get(table)
        return tuple(rows[0]) if rows else ()

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of `table`, see `columns.Tables`."""
        rows = self._tables.get(table, [])
        if only is not None:
            name, wanted = only
            rows = [
                row
                for row in rows
                if row.get(name) is not None and (wanted is None or row[name] in wanted)
            ]
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            cells: dict[str, Any] = {
                name: self._whole(f"{table}.{name}", [row.get(name) for row in part], default)
                for name, default in numbers.items()
            }
            cells |= {name: self._real(table, name, part) for name in reals}
            cells |= {
                name: [value if isinstance(value := row.get(name), str) else None for row in part]
                for name in texts
            }
            yield cells

    def _whole(self, place: str, values: list[Any], default: int) -> Any:
        whole = [value if type(value) is int and value in _INT64 else None for value in values]
        odd = sum(
            given is not None and value is None for given, value in zip(values, whole, strict=True)
        )
        if odd:
            self._unreadable[place] += odd
        return np.array([default if value is None else value for value in whole], np.int64)

    def _real(self, table: str, name: str, rows: list[Row]) -> Any:
        values = [row.get(name) for row in rows]
        known = [value if _is_real(value) else None for value in values]
        odd = sum(
            given is not None and value is None for given, value in zip(values, known, strict=True)
        )
        if odd:
            self._unreadable[f"{table}.{name}"] += odd
        return np.array([math.nan if value is None else float(value) for value in known])


class _Converted:
    """The rows of one session, by table of the rocpd schema."""

    def __init__(self, session: Mapping[str, Any]) -> None:
        self.tables: dict[str, list[Row]] = {
            name: []
            for name in (
                *("metadata", "string", "event", "region", "kernel_dispatch", "memory_copy"),
                *("memory_allocate", "info_agent", "info_process", "info_kernel_symbol"),
                *("info_pmc", "pmc_event"),
            )
        }
        self._strings: dict[str, int] = {}
        self._events = 0
        self._dispatches: dict[Any, int] = {}
        """Events of dispatches by the number that the runtime gave them."""
        self._pid = _get(session, "metadata", "pid")
        self.tables["metadata"].append({"tag": "schema_version", "value": "rocprofv3 JSON"})
        self._agents(session.get("agents"))
        self._symbols(session.get("kernel_symbols"))
        self._kinds, self._operations = _named(_within(session, "strings", "buffer_records"))
        self._marks = {
            _get(one, "key"): _get(one, "value")
            for one in _mappings(_within(session, "strings", "marker_api"))
            if isinstance(_get(one, "key"), int)
        }
        records = session.get("buffer_records")
        records = records if isinstance(records, dict) else {}
        for name in _HOST_RECORDS:
            for record in _mappings(records.get(name)):
                self._region(record)
        for record in _mappings(records.get("kernel_dispatch")):
            self._dispatch(record)
        self._counters(session)
        for record in _mappings(records.get("memory_copy")):
            self._copy(record)
        for record in _mappings(records.get("memory_allocation")):
            self._allocation(record)
        self.tables["string"] = [
            {"id": number, "string": text} for text, number in self._strings.items()
        ]

    def _agents(self, agents: Any) -> None:
        counts: Counter[str] = Counter()
        for agent in _mappings(agents):
            kind = {_CPU: "CPU", _GPU: "GPU"}.get(_get(agent, "type"), "")
            told = {
                name: _get(agent, name)
                for name in ("product_name", "name", "model_name", "vendor_name")
            }
            index = _get(agent, "logical_node_type_id")
            self.tables["info_agent"].append(
                {
                    "id": _get(agent, "id", "handle"),
                    "type": kind,
                    "type_index": index if isinstance(index, int) and index >= 0 else counts[kind],
                    **told,
                }
            )
            counts[kind] += 1

    def _symbols(self, symbols: Any) -> None:
        for symbol in _mappings(symbols):
            self.tables["info_kernel_symbol"].append(
                {
                    "id": _get(symbol, "kernel_id"),
                    "display_name": _get(symbol, "formatted_kernel_name"),
                    "kernel_name": _get(symbol, "kernel_name"),
                    "sgpr_count": _get(symbol, "sgpr_count"),
                    "arch_vgpr_count": _get(symbol, "arch_vgpr_count"),
                    "accum_vgpr_count": _get(symbol, "accum_vgpr_count"),
                }
            )

    def _text(self, text: Any) -> int | None:
        if not isinstance(text, str):
            return None
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _event(self, record: Mapping[str, Any], message: Any = None) -> int:
        self._events += 1
        said = None
        if isinstance(message, str):
            said = msgspec.json.encode({"message": message}).decode()
        self.tables["event"].append(
            {
                "id": self._events,
                "stack_id": _get(record, "correlation_id", "internal"),
                "correlation_id": 0,
                "category_id": self._text(self._kinds.get(_get(record, "kind"))),
                "extdata": said,
            }
        )
        return self._events

    def _common(self, record: Mapping[str, Any]) -> Row:
        return {
            "start": _get(record, "start_timestamp"),
            "end": _get(record, "end_timestamp"),
            "pid": self._pid,
            "tid": _get(record, "thread_id"),
        }

    def _region(self, record: Mapping[str, Any]) -> None:
        kind, operation = _get(record, "kind"), _get(record, "operation")
        message = None
        if "MARKER" in self._kinds.get(kind, ""):
            message = self._marks.get(_get(record, "correlation_id", "internal"))
        self.tables["region"].append(
            {
                **self._common(record),
                "name_id": self._text(self._operations.get((kind, operation))),
                "event_id": self._event(record, message),
            }
        )

    def _dispatch(self, record: Mapping[str, Any]) -> None:
        info = record.get("dispatch_info")
        sizes = {
            f"{what}_{axis}": _get(info, what, axis)
            for what in ("grid_size", "workgroup_size")
            for axis in "xyz"
        }
        event = self._event(record)
        if (number := _get(info, "dispatch_id")) is not None:
            self._dispatches[number] = event
        self.tables["kernel_dispatch"].append(
            {
                **self._common(record),
                "agent_id": _get(info, "agent_id", "handle"),
                "kernel_id": _get(info, "kernel_id"),
                "queue_id": _get(info, "queue_id", "handle"),
                "stream_id": _get(record, "stream_id", "handle"),
                "group_segment_size": _get(info, "group_segment_size"),
                "event_id": event,
                **sizes,
            }
        )

    def _counters(self, session: Mapping[str, Any]) -> None:
        """Read counters; a dispatch that was not traced besides is told by them alone."""
        for counter in _mappings(session.get("counters")):
            self.tables["info_pmc"].append(
                {
                    "id": _get(counter, "id", "handle"),
                    "agent_id": _get(counter, "agent_id", "handle"),
                    "name": _get(counter, "name"),
                }
            )
        for record in _mappings(_within(session, "callback_records", "counter_collection")):
            told = record.get("dispatch_data")
            if not isinstance(told, dict):
                continue
            number = _get(told, "dispatch_info", "dispatch_id")
            if number is None or number not in self._dispatches:
                self._dispatch({"thread_id": _get(record, "thread_id"), **told})
                event = self._events
            else:
                event = self._dispatches[number]
            for one in _mappings(record.get("records")):
                self.tables["pmc_event"].append(
                    {
                        "event_id": event,
                        "pmc_id": _get(one, "counter_id", "handle"),
                        "value": _get(one, "value"),
                    }
                )

    def _copy(self, record: Mapping[str, Any]) -> None:
        self.tables["memory_copy"].append(
            {
                **self._common(record),
                "src_agent_id": _get(record, "src_agent_id", "handle"),
                "dst_agent_id": _get(record, "dst_agent_id", "handle"),
                "stream_id": _get(record, "stream_id", "handle"),
                "size": _get(record, "bytes"),
                "event_id": self._event(record),
            }
        )

    def _allocation(self, record: Mapping[str, Any]) -> None:
        operation = self._operations.get((_get(record, "kind"), _get(record, "operation"))) or ""
        kind = "FREE" if "FREE" in operation else "ALLOC" if "ALLOC" in operation else None
        address = _get(record, "address")
        if isinstance(address, str):  # hexadecimal in some versions
            try:
                address = int(address, 16)
            except ValueError:
                address = None
        self.tables["memory_allocate"].append(
            {
                **self._common(record),
                "agent_id": _get(record, "agent_id", "handle"),
                "type": kind,
                "level": "VIRTUAL" if "VMEM" in operation else "REAL",
                "address": address,
                "size": _get(record, "allocation_size"),
            }
        )


def _is_real(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)


def _named(kinds: Any) -> tuple[dict[Any, str], dict[tuple[Any, Any], str]]:
    """Return names of kinds of records by number, and of operations by kind and number."""
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
    """Return the number or text under keys inside of keys; None where there is none."""
    found = _within(value, *keys)
    return None if isinstance(found, dict | list) else found


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _mappings(values: Any) -> Iterable[Mapping[str, Any]]:
    return (one for one in values if isinstance(one, dict)) if isinstance(values, list) else ()


PREFIX = "rocpd_"
_SESSION = re.compile(r"rocpd_metadata(.*)", re.DOTALL)
_READ = frozenset(
    "metadata string info_node info_process info_thread info_agent info_queue info_stream "
    "info_kernel_symbol info_code_object info_pmc event region kernel_dispatch memory_copy "
    "memory_allocate arg track pmc_event sample".split()
)


def sessions_of(tables: Tables) -> list[str]:
    """Return what the names of each session's tables end in."""
    return [match[1] for name in tables.names if (match := _SESSION.fullmatch(name))]


def tell_unread(tables: Tables, sessions: list[str], sink: Sink) -> None:
    """Tell of tables and values that nothing was made of."""
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


class SessionTables:
    """Tables of the session whose names end in `session`."""

    def __init__(self, tables: Tables, session: str) -> None:
        self._tables = tables
        self._session = session

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        texts: Sequence[str] = (),
        *,
        reals: Sequence[str] = (),
        only: tuple[str, Collection[int]] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of a table by its plain name, as `columns.Tables.slices` does."""
        return self._tables.slices(
            f"{PREFIX}{table}{self._session}", numbers, reals=reals, texts=texts, only=only
        )

    def numbers(self, table: str, column: str) -> dict[int, int]:
        """Return a column of numbers, by the number of the row."""
        found: dict[int, int] = {}
        for cells in self.slices(table, {"id": MISSING, column: MISSING}):
            found.update(zip(cells["id"].tolist(), cells[column].tolist(), strict=True))
        return found

    def texts(self, table: str, column: str) -> dict[int, str]:
        """Return a column of texts, by the number of the row."""
        found: dict[int, str] = {}
        for cells in self.slices(table, {"id": MISSING}, [column]):
            found.update(
                (number, text)
                for number, text in zip(cells["id"].tolist(), cells[column], strict=True)
                if text is not None
            )
        return found
