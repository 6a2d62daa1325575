"""speedscope's own format: all measures in one file, each a profile of sampled stacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unified_prof.analysis.views.stacks import Stacks
from unified_prof.export.stacks.written import Written, as_written
from unified_prof.plain import printable
from unified_prof.version import VERSION

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
    """Write each part as a profile that its title names."""
    numbers: dict[Written, int] = {}
    profiles = []
    for title, stacks in parts:
        samples = [
            [numbers.setdefault(as_written(frame), len(numbers)) for frame in sample.frames]
            for sample in stacks.samples
        ]
        profiles.append(
            {
                "type": "sampled",
                "name": printable(title),
                "unit": stacks.measure.unit,
                "startValue": 0,
                "endValue": stacks.total,
                "samples": samples,
                "weights": [sample.weight for sample in stacks.samples],
            }
        )
    document = {
        "$schema": _SCHEMA,
        "exporter": f"uprof {VERSION}",
        "name": printable(parts[0][0]),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in numbers]},
        "profiles": profiles,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def _frame(frame: Written) -> dict[str, Any]:
    name, file, line = frame
    found: dict[str, Any] = {"name": printable(name)}
    return found if file is None else found | {"file": printable(file), "line": line}
