"""`on_trace_ready` converts a profiler's recording before the training continues."""

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
    """The part of torch's profiler that a handler uses."""

    step_num = 12

    def __init__(self, content: object = EVENTS) -> None:
        self._content = content

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(gzip.compress(json.dumps(self._content).encode()))


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_named_by_rank_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    trace_handler(tmp_path / "new" / "out")(Profiler())
    assert file_names(tmp_path / "new" / "out") == ["rank3_step12.db", "rank3_step12.json.gz"]
    database = sqlite3.connect(tmp_path / "new" / "out" / "rank3_step12.db")
    assert database.execute("SELECT count(*) FROM PYTORCH_API").fetchone() == (1,)


def test_existing_files_are_kept(tmp_path: Path) -> None:
    handler = trace_handler(tmp_path)
    handler(Profiler())
    handler(Profiler())
    stems = {name.partition(".")[0] for name in file_names(tmp_path)}
    assert stems == {"rank0_step12", "rank0_step12_2"}


@pytest.mark.parametrize(
    ("options", "files"),
    [({"now": False}, ["rank0_step12.json.gz"]), ({"keep_trace": False}, ["rank0_step12.db"])],
)
def test_options_select_the_kept_files(
    options: dict[str, bool], files: list[str], tmp_path: Path
) -> None:
    trace_handler(tmp_path, **options)(Profiler())
    assert file_names(tmp_path) == files


def test_unconvertible_trace_is_kept_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="cannot convert"):
        trace_handler(tmp_path, keep_trace=False)(Profiler(content=["no trace"]))
    assert file_names(tmp_path) == ["rank0_step12.json.gz"]


def test_unwritable_trace_is_a_warning(tmp_path: Path) -> None:
    class FullDisk(Profiler):
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_bytes(b"half of")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(RuntimeWarning, match="cannot write .*: No space left on device"):
        trace_handler(tmp_path)(FullDisk())
    assert file_names(tmp_path) == []


def test_ranks_of_an_initialized_process_group_have_their_own_names(
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
    assert file_names(tmp_path) == ["rank3_step12.json.gz"]


def test_torch_npu_uses_its_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch_npu names its directory when the handler is created and must not analyze it itself."""
    calls: list[tuple[str, bool]] = []

    def tensorboard_trace_handler(folder: str, *, analyse_flag: bool) -> Any:
        calls.append((folder, analyse_flag))

        def ready(profiler: object) -> None:
            (Path(folder) / "host_1_20260101000000000_ascend_pt").mkdir()

        return ready

    npu = ModuleType("torch_npu")
    npu.profiler = SimpleNamespace(  # type: ignore[attr-defined]
        tensorboard_trace_handler=tensorboard_trace_handler
    )
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    handler = trace_handler(tmp_path / "out")
    assert calls == [(str(tmp_path / "out"), False)]
    profiler_type = type("profile", (), {"__module__": "torch_npu.profiler.profiler"})
    with pytest.warns(RuntimeWarning, match="cannot convert .*_ascend_pt"):
        handler(profiler_type())
    handler(Profiler())
    assert "rank0_step12.db" in file_names(tmp_path / "out"), (
        "torch's own profiler is still handled"
    )


@pytest.mark.slow
def test_torch_profiler_accepts_the_handler(tmp_path: Path) -> None:
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
    assert [name for name in file_names(tmp_path) if name.endswith(".db")] == [
        "rank0_step4.db",
        "rank0_step8.db",
    ]
