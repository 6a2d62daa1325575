"""Decodes one snapshot: its devices one after the other, and what it says of all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_prof.columns import Sink
from unified_prof.decoders import json_files
from unified_prof.decoders.gpu import description
from unified_prof.decoders.memory_snapshot import plain_pickle
from unified_prof.decoders.memory_snapshot.callers import Callers
from unified_prof.decoders.memory_snapshot.history import MOST_US, History
from unified_prof.decoders.memory_snapshot.rows import Tables
from unified_prof.decoders.memory_snapshot.values import NONE, mappings, whole
from unified_prof.errors import RawFormatError
from unified_prof.units import NS_PER_US

NAME = "memory_snapshot"

_PICKLE = b"\x80"
_DEVICES = range(2**31)
_DETAILS = {
    "no_times": "torch before 2.2 records none: they are numbered, a microsecond each",
    "malformed_entry": "without a time, a size or an action, left out",
    "allocation_without_release": "allocated again before",
    "release_without_allocation": "allocated before the history",
    "unknown_action": "of the allocator, left out",
}


@dataclass(frozen=True, slots=True)
class DecodedSnapshot:
    """What was found in one snapshot."""

    entries: int
    """Actions of the allocator."""
    blocks: int
    """Allocations, those among them that were not seen to begin."""
    facts: Mapping[str, Any]
    """Provenance."""


def decode(
    path: Path, sink: Sink, *, progress: Callable[[str], None] = lambda message: None
) -> DecodedSnapshot:
    """Decode a snapshot, pickle or JSON; it is held in memory as a whole.

    Raises:
        RawFormatError: it is none, is damaged, or asks for more than plain data.
    """
    progress("reading the snapshot")
    snapshot = _read(path)
    if not isinstance(snapshot, dict) or not (
        isinstance(snapshot.get("device_traces"), list)
        or isinstance(snapshot.get("segments"), list)
    ):
        raise RawFormatError(
            f"{path} is no snapshot of PyTorch's allocator",
            hint="expected a mapping with segments and device_traces, as "
            "torch.cuda.memory._dump_snapshot() writes it",
            slug="not-a-recording",
        )
    progress("following allocations")
    return _decoded(snapshot, sink)


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            if file.read(1) == _PICKLE:
                return plain_pickle.load(path)
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    return json_files.read(path)


def _decoded(snapshot: dict[Any, Any], sink: Sink) -> DecodedSnapshot:
    tables = Tables(sink)
    callers = Callers(sink)
    odd: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    segments, histories = _by_device(snapshot)
    devices = sorted(segments.keys() | histories.keys())
    for device in devices:
        history = History(device, sink, tables, callers, odd)
        history.follow(histories.get(device, []), segments.get(device, []))
        actions += history.actions
    _annotations(snapshot.get("external_annotations"), tables, odd)
    tables.flush()
    callers.write()
    if not histories:
        sink.anomaly(
            "no_history",
            1,
            "only what was in use at the end is known; call "
            "torch.cuda.memory._record_memory_history() before",
        )
    for name, count in (+odd).items():
        sink.anomaly(name, count, _DETAILS.get(name, ""))
    description.write(
        sink,
        start_ns=tables.first_ns or 0,
        end_ns=tables.last_ns or 0,
        host_name=None,
        device_names=dict.fromkeys(devices),
        rank=None,
    )
    return DecodedSnapshot(
        entries=actions.total(),
        blocks=tables.blocks.count,
        facts={
            "decoder": NAME,
            "device_kind": "gpu",
            "events": dict(sorted(actions.items())),
            "allocator_settings": _settings(snapshot.get("allocator_settings")),
        },
    )


def _by_device(
    snapshot: dict[Any, Any],
) -> tuple[dict[int, list[dict[Any, Any]]], dict[int, list[dict[Any, Any]]]]:
    """Return segments and histories, each by the number of the device."""
    segments: dict[int, list[dict[Any, Any]]] = {}
    for segment in mappings(snapshot.get("segments")):
        device = whole(segment.get("device"), 0)
        if device in _DEVICES:
            segments.setdefault(device, []).append(segment)
    traces = snapshot.get("device_traces")
    histories = {
        device: list(mappings(trace))
        for device, trace in enumerate(traces if isinstance(traces, list) else ())
        if isinstance(trace, list) and trace
    }
    return segments, histories


def _annotations(annotations: Any, tables: Tables, odd: Counter[str]) -> None:
    for one in mappings(annotations):
        at_us, name = whole(one.get("time_us"), NONE), one.get("name")
        if 0 <= at_us < MOST_US and isinstance(name, str):
            device = whole(one.get("device"), NONE)
            args = {"stage": str(one.get("stage"))}
            tables.instant(at_us * NS_PER_US, "annotation", name, device, args)
        else:
            odd["malformed_entry"] += 1


def _settings(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return None
    plain = {
        str(name): value
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str)
    }
    return json.dumps(plain, sort_keys=True)[:2000]
