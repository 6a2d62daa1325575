import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import training_step
from tests.export.builders import DatabaseBuilder
from tests.export.conftest import Export
from unified_prof.export.mindstudio import registry, timeline_events

Event = dict[str, Any]
PROCESS = 77


def _read(folder: Path, kind: str = "msprof") -> list[Event]:
    (path,) = folder.glob(f"{kind}_2*.json")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("[{")
    found: list[Event] = json.loads(text)
    return found


def _of(found: list[Event], layer: tuple[int, str] | int, phase: str) -> list[Event]:
    place = layer if isinstance(layer, int) else layer[0]
    return [one for one in found if one["pid"] >> 5 & 31 == place and one["ph"] == phase]


def _names(found: list[Event], layer: tuple[int, str] | int) -> dict[tuple[int, int], str]:
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in _of(found, layer, "M")
        if one["name"] == "thread_name"
    }


def test_timeline_does_not_depend_on_the_block_size(
    database: DatabaseBuilder, out: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database:
        for number in range(7):
            database.op(number * 10, number * 10 + 5, stream=number)
            database.call(number, number + 1, "launch")
    export(database.path)
    whole = _read(out)
    for path in out.iterdir():
        path.unlink()
    monkeypatch.setattr(registry, "BLOCK_ROWS", 2)
    export(database.path)
    by_text = [
        Counter(json.dumps(one, sort_keys=True) for one in found) for found in (whole, _read(out))
    ]
    assert by_text[0] == by_text[1]


def test_process_ids_fit_into_32_bits(tmp_path: Path, out: Path, export: Export) -> None:
    """The largest process number of Linux does not fit beside layer and device."""
    with DatabaseBuilder(tmp_path / "d.db") as database:
        values = {
            "startNs": 0, "endNs": 1, "type": 5000, "globalTid": ((1 << 22) + 1) << 32,
            "connectionId": 1, "name": "x",
        }  # fmt: skip
        database.row("CANN_API", values, ("name",))
    export(database.path)
    assert {one["pid"] for one in _read(out)} == {1 << 10 | 7 << 5 | 31}


@given(st.lists(st.integers(0, 2**53), max_size=10))
def test_durations_are_parsed_back_exactly(durations: list[int]) -> None:
    texts = timeline_events.decimals(np.array(durations, np.int64))
    assert [float(one) for one in texts] == [one / 1000 for one in durations]
    assert all("." in one for one in texts)


def test_unknown_ids_of_a_task_are_null(tmp_path: Path, out: Path, export: Export) -> None:
    export(training_step(tmp_path / "msprof_1.db"))
    (task, *_) = _of(_read(out), timeline_events.HARDWARE, "X")
    assert [task["args"][name] for name in ("Model Id", "Task Id", "Subtask Id")] == [None] * 3
