"""How a recording of msprof's came to be: who made it, on which host and devices, with what set."""

from __future__ import annotations

import json

from unified_prof.analysis.read.source import Source, recorded_facts, without_secrets
from unified_prof.analysis.read.strings import NOTHING_KNOWN

Facts = list[tuple[str, str]]


def facts(source: Source) -> Facts:
    """Return provenance; what uprof recorded itself goes before what others left."""
    recorded = recorded_facts(source)
    known = {name for name, _ in recorded}
    producer = source.detection.producer
    return [
        *recorded,
        *([("made by", producer)] if producer and "producer" not in known else []),
        *_devices(source),
        *(_ranks(source) if "rank" not in known else []),
        *(_hosts(source) if "host" not in known else []),
        *_meta_data(source),
    ]


def _devices(source: Source) -> Facts:
    return [
        (f"device {number}", str(name))
        for number, name in source.rows("SELECT id, name FROM NPU_INFO")
        if isinstance(number, int) and number >= 0 and name not in NOTHING_KNOWN
    ]


def _ranks(source: Source) -> Facts:
    return [
        (
            f"rank of device {device}" if isinstance(device, int) and device >= 0 else "rank",
            str(rank),
        )
        for rank, device in source.rows("SELECT rankId, deviceId FROM RANK_DEVICE_MAP")
        if isinstance(rank, int) and rank >= 0
    ]


def _hosts(source: Source) -> Facts:
    return [
        ("host", str(name))
        for (name,) in source.rows("SELECT hostName FROM HOST_INFO")
        if name not in NOTHING_KNOWN
    ]


def _meta_data(source: Source) -> Facts:
    found: Facts = []
    for name, value in source.rows("SELECT name, value FROM META_DATA"):
        if name == "SCHEMA_VERSION":
            found.append(("schema version", str(value)))
        elif name == "ENV_VARIABLES" and value:
            found += _environment(str(value))
    return found


def _environment(text: str) -> Facts:
    """Return the variables that were set, of the JSON that torch_npu writes."""
    try:
        variables = json.loads(text)
    except ValueError:
        return []
    if not isinstance(variables, dict):
        return []
    return [
        (str(name), without_secrets(str(name), str(value)))
        for name, value in variables.items()
        if value not in ("", None)
    ]
