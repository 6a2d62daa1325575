"""Trace metadata in reports, without secrets."""

import json
from pathlib import Path
from typing import Any

from tests.decoders.kineto.builders import RowSink, operation, write
from unified_prof import open_report
from unified_prof.decoders import kineto
from unified_prof.pipeline.convert import convert

TOKEN = "hf_" + "aBcDeFgHiJ" * 3


def decode_facts(tmp_path: Path, **metadata: Any) -> dict[str, Any]:
    trace = write(tmp_path / "t.json", [operation("aten::mm", 1, 2)], **metadata)
    return dict(kineto.decode(trace, RowSink()).facts)


def test_profiler_metadata_is_kept(tmp_path: Path) -> None:
    metadata = {
        "record_shapes": 1,
        "cuda_runtime_version": 12090,
        "trace_id": "C3AB6FAA14D646299C1D8365B14308AD",
        "distributedInfo": {"backend": "nccl", "rank": 1, "pg_config": [{"pg_name": "0"}]},
        "INFO": ["CuptiActivityProfiler.cpp:9 enabled"],
    }
    facts = decode_facts(tmp_path, **metadata)
    assert facts["trace_metadata"] == {"schemaVersion": 1} | metadata
    assert "trace_metadata_left_out" not in facts


def test_only_names_of_user_metadata_are_kept(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": TOKEN, "HOME": "/home/me"}
    facts = decode_facts(tmp_path, env=environment, argv="train.py --lr 1", wandb_key="0123")
    assert facts["trace_metadata"] == {"schemaVersion": 1}
    assert facts["trace_metadata_left_out"] == ["argv", "env", "wandb_key"]


def test_secret_values_of_known_keys_are_masked(tmp_path: Path) -> None:
    facts = decode_facts(
        tmp_path,
        traceName=f"https://me:pa55word@host/x?token={TOKEN}",
        distributedInfo={"store_password": "x", "backend": "nccl", "nested": [{"api_key": "y"}]},
        evil_version={"HF_TOKEN": TOKEN},
    )
    text = json.dumps(facts)
    assert TOKEN not in text
    assert "pa55word" not in text
    assert facts["trace_metadata"]["distributedInfo"] == {
        "store_password": "***",
        "backend": "nccl",
        "nested": [{"api_key": "***"}],
    }


def test_secrets_of_user_metadata_are_not_in_the_report_file(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.json",
        [operation("aten::mm", 1, 2)],
        environment={"GITHUB_TOKEN": "ghp_" + "a1B2" * 9, "PLAIN": "visible-value"},
    )
    report = convert(trace, tmp_path / "r.db").database
    content = report.read_bytes()
    assert b"ghp_" not in content
    assert b"visible-value" not in content
    with open_report(report) as opened:
        facts = dict(opened.rows("SELECT name, value FROM UPROF_RUN"))
    assert json.loads(facts["trace_metadata_left_out"]) == ["environment"]


def test_trace_without_cuda_graphs_has_no_graph_strings(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [operation("aten::mm", 1, 2)])
    convert(trace, tmp_path / "t.db")
    with open_report(tmp_path / "t.db") as report:
        texts = {text for (text,) in report.rows("SELECT value FROM STRING_IDS")}
    assert {"KERNEL", "MEMSET"} <= texts
    assert "CUDA_GRAPH" not in texts


def test_deeply_nested_metadata_is_cut(tmp_path: Path) -> None:
    value: object = "inside"
    for _ in range(400):
        value = {"a": [value]}
    facts = decode_facts(tmp_path, distributedInfo=value)
    text = json.dumps(facts["trace_metadata"]["distributedInfo"])
    assert text == '{"a": [' * 10 + "null" + "]}" * 10
