"""Files beside a report in the layout of torch_npu."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.ascend_pt.builders import Framework
from tests.pipeline.test_sources import MAKERS
from tests.pipeline.two_stages import pipeline
from tests.prof_generator import Recipe, generate
from tests.sql import execute
from unified_prof.pipeline import analysis_db
from unified_prof.pipeline.convert import convert, convert_all
from unified_prof.pipeline.sources import Match, by_kind


def test_converted_prof_directory_has_the_files_of_viewers(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3, collectives=2)).path
    convert(prof)
    names = [
        row[0]
        for row in execute(
            prof / "analyze" / "communication_analyzer.db",
            "SELECT name FROM sqlite_master ORDER BY 1",
        )
    ]
    assert names == ["CommAnalyzerBandwidth", "CommAnalyzerMatrix", "CommAnalyzerTime"]
    own = execute(
        prof / "analyze" / "communication_analyzer.db", "SELECT count(*) FROM CommAnalyzerTime"
    )[0]
    assert execute(prof / "analysis.db", "SELECT count(*) FROM CommAnalyzerTime")[0] == own
    assert execute(prof / "analysis.db", "SELECT count(*) FROM StepTraceTime")[0] != (0,)
    assert own != (0,)


def test_existing_analysis_is_kept_without_force(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3, collectives=2)).path
    existing = prof / "analyze" / "communication_analyzer.db"
    existing.parent.mkdir()
    existing.write_bytes(b"existing")
    convert(prof)
    assert existing.read_bytes() == b"existing"
    convert(prof, force=True)
    assert existing.read_bytes() != b"existing"


def test_prof_directory_without_collectives_gets_a_report_only(tmp_path: Path) -> None:
    prof = generate(tmp_path, Recipe(operators=3)).path
    before = {path.name for path in prof.iterdir()}
    conversion = convert(prof)
    assert {path.name for path in prof.iterdir()} == before | {conversion.database.name}


def test_output_directory_names_its_devices_and_is_no_recording(tmp_path: Path) -> None:
    recordings = [
        generate(tmp_path / f"in{n}", Recipe(operators=3, devices=(n,))).path for n in (0, 1)
    ]
    for recording in recordings:
        for info in recording.glob("device_*/info.json.?"):
            content = json.loads(info.read_text())
            content.pop("rank_id", None)
            info.write_text(json.dumps(content))
    found = list(convert_all(recordings, tmp_path / "out"))
    assert [outcome.error for outcome in found] == [None, None]
    for number, outcome in enumerate(found):
        assert outcome.conversion is not None
        folder = outcome.conversion.database.parent
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        device = f"device_{number}/info.json.{number}"
        assert names == {outcome.conversion.database.name, "analysis.db", device}
        assert json.loads((folder / device).read_text())["rank_id"] == -1
        assert by_kind("prof").sniff(folder) is Match.NO
        assert by_kind("prof").sniff(recordings[number]) is Match.CERTAIN
    assert execute(folder / "analysis.db", "SELECT DISTINCT deviceId FROM StepTraceTime") == [(1,)]


@pytest.mark.parametrize(("level", "analyzed"), [("Level1", True), ("Level_none", False)])
def test_torch_npu_directory_keeps_its_layout(level: str, analyzed: bool, tmp_path: Path) -> None:
    folder = torch_npu_folder(tmp_path, metadata={"a": 1})
    info = folder / "profiler_info_2.json"
    info.write_text(info.read_text().replace("Level1", level))
    found = list(convert_all([folder], tmp_path / "out"))
    assert [outcome.error for outcome in found] == [None]
    base = tmp_path / "out" / folder.name
    names = {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}
    assert names == {
        "profiler_info_2.json",
        "profiler_metadata.json",
        "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_2.db",
        *(["ASCEND_PROFILER_OUTPUT/analysis.db"] if analyzed else []),
    }
    again = list(convert_all([folder], tmp_path / "out"))
    assert "already exists" in str(again[0].error)


def torch_npu_folder(path: Path, **options: Any) -> Path:
    framework = Framework()
    framework.operator("aten::mm", 1, 2)
    folder = framework.write(path / "host_1_20260101_ascend_pt", rank=2, **options)
    generate(folder, Recipe(operators=3)).path.rename(folder / "PROF_000001_20260101_ABC")
    return folder


def gpu_trace(path: Path) -> Path:
    return pipeline(path / "trace.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "layout", "database"),
    [
        (torch_npu_folder, "plain", "ascend_pytorch_profiler_2.db"),
        (gpu_trace, "ascend-pt", "ascend_pytorch_profiler_6.db"),
    ],
)
def test_interrupted_analysis_leaves_no_report(
    make: Callable[[Path], Path], layout: str, database: str, tmp_path: Path
) -> None:
    recording, out = make(tmp_path), tmp_path / "out"
    child = os.fork()
    if not child:  # Exits after the report and before its analysis.
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(analysis_db, "write_analysis", lambda *_, **__: os._exit(9))
                list(convert_all([recording], out, layout=layout))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not list(out.rglob(database))
    (outcome,) = convert_all([recording], out, layout=layout)
    assert outcome.error is None
    assert outcome.conversion is not None
    assert outcome.conversion.database.name == database
    folder = outcome.conversion.database.parent
    assert sorted(path.name for path in folder.iterdir()) == ["analysis.db", database]


def test_directory_of_a_trace_describes_it(tmp_path: Path) -> None:
    groups = [{"pg_name": "pp_1", "pg_desc": "pp", "ranks": [2, 6]}]
    trace = pipeline(tmp_path / "trace.json")
    content = json.loads(trace.read_text())
    content["distributedInfo"]["pg_config"] = groups
    trace.write_text(json.dumps(content))
    (outcome,) = convert_all([trace], tmp_path / "out", layout="ascend-pt")
    assert outcome.conversion is not None
    folder = outcome.conversion.database.parents[1]
    assert sorted(path.name for path in folder.iterdir()) == [
        "ASCEND_PROFILER_OUTPUT",
        "profiler_info_6.json",
        "profiler_metadata.json",
    ]
    info = json.loads((folder / "profiler_info_6.json").read_text())
    assert info["rank_id"] == 6
    assert info["config"]["common_config"]["activities"] == [
        "ProfilerActivity.CPU",
        "ProfilerActivity.NPU",
    ]
    assert "torch.profiler" in info["made_by"]
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    expected = {"group_name": "pp", "group_rank": 1, "global_ranks": [2, 6]}
    assert metadata == {"parallel_group_info": {"pp_1": expected}}


def test_directory_of_a_trace_is_replaced_if_the_rank_changed(tmp_path: Path) -> None:
    for rank in (6, None, 2):
        trace = pipeline(tmp_path / "trace.json", rank=rank)
        (outcome,) = convert_all([trace], tmp_path / "out", layout="ascend-pt", force=True)
        assert outcome.conversion is not None
        number = "" if rank is None else f"_{rank}"
        folder = outcome.conversion.database.parents[1]
        assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
            "analysis.db",
            f"ascend_pytorch_profiler{number}.db",
            f"profiler_info{number}.json",
            "profiler_metadata.json",
        ]


@pytest.mark.parametrize("kind", ["nsys", "rocm", "ascend_pt", "ascend_text"])
def test_other_recordings_get_the_same_layout(kind: str, tmp_path: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    (outcome,) = convert_all([recording], tmp_path / "out", layout="ascend-pt")
    assert outcome.error is None
    assert outcome.conversion is not None
    database = outcome.conversion.database
    assert database.parents[1].name.endswith("_ascend_pt")
    assert database.with_name("analysis.db").exists()
    infos = [path.name for path in database.parents[1].glob("profiler_info*.json")]
    number = database.stem.removeprefix("ascend_pytorch_profiler")
    assert infos == [f"profiler_info{number}.json"]
