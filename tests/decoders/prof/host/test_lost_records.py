"""Records that a complete file lacks are counted by kind."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.decoders.prof.memory_sink import MemorySink
from tests.decoders.prof.test_goldens import CASES
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import write_file
from unified_prof.cli.app import app
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.recording import decode_recording

RECIPE = Recipe(operators=60, collectives=40, copies=3, host_slice_records=90)


def lost(path: Path) -> dict[str, int]:
    sink = MemorySink()
    decode_recording(ProfDirectory(path), sink)
    return {name: count for name, count in sink.anomalies.items() if name.startswith("lost_")}


def drop(path: Path, kind: str, share: float = 0.15) -> int:
    """Remove records of calls with a description at random; return their number."""
    rng, dropped = np.random.default_rng(4), 0
    for file in (path / "host" / "data").glob(f"*.{kind}.slice_*[0-9]"):
        records = np.fromfile(file, record_type(kind))
        keep = rng.random(len(records)) >= share
        if kind == "task_track":
            names = records.dtype.names
            assert names is not None
            keep |= records["kernel_name"] == 0  # copies
        dropped += int((~keep).sum())
        write_file(file, records[keep].tobytes())
    assert dropped
    return dropped


@pytest.mark.slow
@pytest.mark.parametrize("platform", [1, 4, 5, 7, 15])
def test_complete_recordings_lack_no_records(tmp_path: Path, platform: int) -> None:
    recipe = replace(RECIPE, platform=platform, devices=(0, 1))
    assert not lost(generate(tmp_path / "described", recipe).path)
    assert not lost(generate(tmp_path / "bare", replace(recipe, described=False)).path)


@pytest.mark.parametrize("kind", ["node_basic_info", "tensor_info", "hccl_info", "task_track"])
@pytest.mark.parametrize("platform", [5, 15])
def test_lost_records_are_counted(tmp_path: Path, platform: int, kind: str) -> None:
    path = generate(tmp_path, replace(RECIPE, platform=platform)).path
    dropped = drop(path, kind)
    assert lost(path) == {f"lost_{kind}": dropped}


def test_each_operator_type_decides_whether_tensors_are_lost(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=60)).path
    # Half of the operators or more have none: they may have none.
    drop(path, "tensor_info", share=0.8)
    assert not lost(path)


def test_operators_in_graphs_need_no_launches(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=60)).path
    drop(path, "task_track", share=0.8)
    assert "lost_task_track" not in lost(path)


def test_commands_show_lost_records(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=60)).path
    dropped = drop(path, "task_track")
    report = str(tmp_path / "report.db")

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result

    assert "lost_task_track" in run("convert", str(path), "-o", report).output
    words = f"({dropped} times)"
    assert words in run("report", report).output
    assert "lost_task_track" in run("db", "check", report).output
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == 1


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("case", CASES)
def test_exporters_recordings_lack_what_is_dropped(case: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "goldens" / case
    with tarfile.open(next(source.glob("PROF_*.tar.xz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    arguments = json.loads((source / "case.json").read_text())
    found = set(lost(next(tmp_path.glob("PROF_*")))) - {"lost_slice"}
    # `devonly` writes the calls of some launches, but not their task_track records.
    assert found == ({"lost_task_track"} if "devonly" in str(arguments) else set())
