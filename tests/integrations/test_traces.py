"""`on_trace_ready`: what a profiler has recorded is a database before the training goes on."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sqlite3
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import unified_prof
from unified_prof.integrations.measurement import trace_handler

EVENTS = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0}
    ],
    "schemaVersion": 1,
}


class Profiler:
    """As far as a handler asks torch's."""

    step_num = 12

    def __init__(self, content: object = EVENTS) -> None:
        self._content = content

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(gzip.compress(json.dumps(self._content).encode()))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_recording_becomes_a_trace_and_a_database_named_after_rank_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    trace_handler(tmp_path / "new" / "out")(Profiler())
    assert names(tmp_path / "new" / "out") == ["rank3_step12.db", "rank3_step12.json.gz"]
    database = sqlite3.connect(tmp_path / "new" / "out" / "rank3_step12.db")
    assert database.execute("SELECT count(*) FROM PYTORCH_API").fetchone() == (1,)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    handler = trace_handler(tmp_path)
    handler(Profiler())
    handler(Profiler())
    stems = {name.partition(".")[0] for name in names(tmp_path)}
    assert stems == {"rank0_step12", "rank0_step12_2"}


@pytest.mark.parametrize(
    ("options", "left"),
    [({"now": False}, ["rank0_step12.json.gz"]), ({"keep_trace": False}, ["rank0_step12.db"])],
)
def test_what_stays_is_the_users_choice(
    options: dict[str, bool], left: list[str], tmp_path: Path
) -> None:
    trace_handler(tmp_path, **options)(Profiler())
    assert names(tmp_path) == left


def test_what_cannot_be_converted_stays_and_the_training_goes_on(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="cannot convert"):
        trace_handler(tmp_path, keep_trace=False)(Profiler(content=["no trace"]))
    assert names(tmp_path) == ["rank0_step12.json.gz"]


def test_a_trace_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    class FullDisk(Profiler):
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_bytes(b"half of")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(RuntimeWarning, match="cannot write .*: No space left on device"):
        trace_handler(tmp_path)(FullDisk())
    assert names(tmp_path) == []


def test_ranks_that_a_program_made_by_itself_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 8,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    trace_handler(tmp_path, now=False)(Profiler())
    assert names(tmp_path) == ["rank3_step12.json.gz"]


def test_under_torch_npu_its_own_handler_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch_npu names its folder when the handler is made, and must not analyse it itself."""
    made: list[tuple[str, bool]] = []

    def tensorboard_trace_handler(folder: str, *, analyse_flag: bool) -> Any:
        made.append((folder, analyse_flag))

        def ready(profiler: object) -> None:
            (Path(folder) / "host_1_20260101000000000_ascend_pt").mkdir()

        return ready

    npu = ModuleType("torch_npu")
    npu.profiler = SimpleNamespace(  # type: ignore[attr-defined]
        tensorboard_trace_handler=tensorboard_trace_handler
    )
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    handler = trace_handler(tmp_path / "out")
    assert made == [(str(tmp_path / "out"), False)]
    ours = type("profile", (), {"__module__": "torch_npu.profiler.profiler"})()
    with pytest.warns(RuntimeWarning, match="cannot convert .*_ascend_pt"):
        handler(ours)
    handler(Profiler())
    assert "rank0_step12.db" in names(tmp_path / "out"), "torch's own profiler as ever"


@pytest.mark.slow
def test_torchs_profiler_takes_it(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=unified_prof.trace_handler(tmp_path),
    ) as profiler:
        for _ in range(9):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    assert [name for name in names(tmp_path) if name.endswith(".db")] == [
        "rank0_step4.db",
        "rank0_step8.db",
    ]
