"""Counters that the trace shows over time: frequency, memory, bandwidths."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unified_prof.columns import Sink
from unified_prof.decoders.ascend_text.columns import number
from unified_prof.decoders.ascend_text.events import Event
from unified_prof.decoders.ascend_text.layers import Layer

_KIB, _MB = 1024, 1_000_000
_WHOLE = -1
"""AICORE_FREQ.dieId of a device that is not divided."""
_MEMORY = re.compile(r"(APP|Device)/(DDR|HBM)")
_HBM = re.compile(r"HBM (\d{1,3})/(Read|Write)")
_LLC = re.compile(r"LLC (\d{1,3}) (Read|Write)/(Throughput|Hit Rate)")
_LEVELS = {"Mata Bw Level": "mataBwLevel", "L2 Buffer Bw Level": "l2BufferBwLevel"}
_ACCELERATOR = {
    "read_bandwidth": "readBwLevel",
    "write_band_width": "writeBwLevel",
    "read_ost": "readOstLevel",
    "write_ost": "writeOstLevel",
}
_QOS = "QoS "


class Counters:
    """Takes samples; those that are shown twice count once."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[tuple[object, ...], dict[str, object]]] = {}

    def take(self, event: Event, at_ns: int, layer: Layer) -> bool:
        """Take a sample; tell whether its kind is known."""
        args = event.args or {}
        name, place = event.name, {"timestampNs": at_ns, "deviceId": layer.device}
        if name == "AI Core Freq":
            self._row(
                "AICORE_FREQ", place, {}, {"freq": number(args.get("MHz"), -1), "dieId": _WHOLE}
            )
        elif found := _MEMORY.fullmatch(name):
            used = _scaled(args.get("KB"), _KIB)
            self._row("NPU_MEM", place, {"type": found[1].lower()}, {found[2].lower(): used})
        elif found := _HBM.fullmatch(name):
            kind = found[2]
            speed = _scaled(args.get(f"{kind}(MB/s)"), _MB)
            keys = {"hbmId": int(found[1]), "type": kind.lower()}
            self._row("HBM", place, keys, {"bandwidth": speed})
        elif found := _LLC.fullmatch(name):
            keys = {"llcId": int(found[1]), "mode": found[2].lower()}
            if found[3] == "Throughput":
                speed = _scaled(args.get("Throughput(MB/s)"), _MB)
                self._row("LLC", place, keys, {"throughput": speed})
            else:
                self._row("LLC", place, keys, {"hitRate": args.get("Hit Rate(%)")})
        elif name in _LEVELS:
            self._row("SOC_BANDWIDTH_LEVEL", place, {}, {_LEVELS[name]: args.get(name)})
        elif name in _ACCELERATOR:
            keys = {"accId": number(args.get("acc_id"), -1)}
            self._row("ACC_PMU", place, keys, {_ACCELERATOR[name]: args.get("value")})
        elif name.startswith(_QOS):
            speed = _scaled(args.get("value"), _MB)
            self._row("QOS", place, {"eventName": name.removeprefix(_QOS)}, {"bandwidth": speed})
        else:
            return name.endswith("/Memory")  # the sum of both memories
        return True

    def _row(
        self,
        table: str,
        place: Mapping[str, object],
        keys: Mapping[str, object],
        values: Mapping[str, object],
    ) -> None:
        rows = self._tables.setdefault(table, {})
        key = (*place.values(), *keys.values())
        row = rows.setdefault(key, {**place, **keys})
        row.update({name: value for name, value in values.items() if _is_number(value)})

    def write(self, sink: Sink) -> None:
        """Write the tables of all counters."""
        for table, rows in self._tables.items():
            names = {name: None for row in rows.values() for name in row}
            columns: dict[str, list[object]] = {
                name: [row.get(name) for row in rows.values()] for name in names
            }
            for name in ("type", "eventName", "mode"):
                if name in columns:
                    columns[name] = [sink.strings.intern(str(text)) for text in columns[name]]
            sink.write(table, columns)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scaled(value: object, unit: int) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    scaled = value * unit
    return int(scaled) if float(scaled).is_integer() else scaled
