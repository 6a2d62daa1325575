"""Communication groups, as databases of both vendors describe them."""

import json
from pathlib import Path

import pytest

from tests.sql import execute
from unified_prof import open_report
from unified_prof.base.columns import group_hash
from unified_prof.recording import collectives
from unified_prof.sqlite.writer import ReportWriter


def _report(path: Path, *values: str) -> Path:
    with ReportWriter(path) as writer:
        for value in values:
            writer.write("META_DATA", {"name": "parallel_group_info", "value": value})
    return path


def _groups(path: Path) -> collectives.Groups:
    with open_report(path) as report:
        return collectives.load_groups(report)


def test_communicator_has_its_group(tmp_path: Path) -> None:
    info = {
        "10.0.0.1%eth0_60000_0_17": {"group_name": "tp", "group_rank": 1, "global_ranks": [4, 5]},
        "hccl_world_group": {"group_name": "default_group", "global_ranks": [0, 1, 2]},
        "7": {"group_name": "undefined", "global_ranks": [3]},
    }
    found = _groups(_report(tmp_path / "r.db", json.dumps(info)))
    assert found["10.0.0.1%eth0_60000_0_17"] == collectives.Group(
        "10.0.0.1%eth0_60000_0_17", "tp", "tp", (4, 5), 1
    )
    assert [group.label for group in found.values()] == ["tp", "world", "group 7"]
    assert found["hccl_world_group"].ranks == (0, 1, 2)


def test_hash_of_a_communicator_identifies_its_group(tmp_path: Path) -> None:
    info = {"abc": {"group_name": "pp", "global_ranks": [0]}}
    found = _groups(_report(tmp_path / "r.db", json.dumps(info)))
    assert found[str(group_hash("abc"))] is found["abc"]
    assert found.get("something else") is None
    assert list(found) == ["abc"]


def test_doubly_encoded_json_is_read(tmp_path: Path) -> None:
    info = {"abc": {"group_name": "dp", "global_ranks": [0, 1]}}
    found = _groups(_report(tmp_path / "r.db", json.dumps(json.dumps(info))))
    assert found["abc"].kind == "dp"


@pytest.mark.parametrize(
    "value", ["no JSON", "[1]", "{}", '{"a": 3}', "null", 7, None, "[" * 100_000]
)
def test_invalid_group_table_is_ignored(tmp_path: Path, value: object) -> None:
    path = _report(tmp_path / "r.db", "{}")
    execute(path, "UPDATE META_DATA SET value = ? WHERE name = 'parallel_group_info'", value)
    assert len(_groups(path)) == 0


@pytest.mark.parametrize("ranks", [None, "0,1", [0, "1"], [0, -1], [0, True], {"0": 1}])
def test_invalid_ranks_of_a_group_are_ignored(tmp_path: Path, ranks: object) -> None:
    info = {"abc": {"group_name": None, "global_ranks": ranks}}
    (group,) = _groups(_report(tmp_path / "r.db", json.dumps(info))).values()
    assert group == collectives.Group("abc", "", "other", ())


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("mesh_tp", "tp"),
        ("tp:0", "tp"),
        ("dp", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("dp_cp", "dp"),
        ("mesh_fsdp", "dp"),
        ("dp_modulo_exp", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("pp", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("exp", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("TensorParallel", "tp"),
        ("default_pg", "world"),
        ("default_group", "world"),
        ("mp", "other"),
        ("tp_exp", "other"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "other"),
        ("embd", "other"),
        ("update", "other"),
        ("", "other"),
    ],
)
def test_group_kind_is_derived_from_its_title(title: str, kind: str) -> None:
    assert collectives.kind_of(title) == kind


def test_file_without_group_table_has_no_groups(tmp_path: Path) -> None:
    with ReportWriter(tmp_path / "r.db"):
        pass
    assert len(_groups(tmp_path / "r.db")) == 0
