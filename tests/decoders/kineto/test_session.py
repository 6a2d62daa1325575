"""Facts of a trace in its report, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.decoders.kineto.made import KeepingSink, operation, write
from unified_prof import open_report
from unified_prof.decoders import kineto
from unified_prof.pipeline.convert import convert

TOKEN = "hf_" + "aBcDeFgHiJ" * 3


def facts_of(tmp_path: Path, **metadata: Any) -> dict[str, Any]:
    trace = write(tmp_path / "t.json", [operation("aten::mm", 1, 2)], **metadata)
    return dict(kineto.decode(trace, KeepingSink()).facts)


def test_metadata_of_the_profiler_is_kept(tmp_path: Path) -> None:
    said = {
        "record_shapes": 1,
        "cuda_runtime_version": 12090,
        "trace_id": "C3AB6FAA14D646299C1D8365B14308AD",
        "distributedInfo": {"backend": "nccl", "rank": 1, "pg_config": [{"pg_name": "0"}]},
        "INFO": ["CuptiActivityProfiler.cpp:9 enabled"],
    }
    facts = facts_of(tmp_path, **said)
    assert facts["trace_metadata"] == {"schemaVersion": 1} | said
    assert "trace_metadata_left_out" not in facts


def test_only_names_of_added_metadata_are_kept(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": TOKEN, "HOME": "/home/me"}
    facts = facts_of(tmp_path, env=environment, argv="train.py --lr 1", wandb_key="0123")
    assert facts["trace_metadata"] == {"schemaVersion": 1}
    assert facts["trace_metadata_left_out"] == ["argv", "env", "wandb_key"]


def test_values_that_look_secret_are_masked_in_known_keys_too(tmp_path: Path) -> None:
    facts = facts_of(
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


def test_no_secret_of_the_metadata_is_in_the_file(tmp_path: Path) -> None:
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


def test_a_trace_without_graphs_holds_no_text_about_them(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", [operation("aten::mm", 1, 2)])
    convert(trace, tmp_path / "t.db")
    with open_report(tmp_path / "t.db") as report:
        texts = {text for (text,) in report.rows("SELECT value FROM STRING_IDS")}
    assert {"KERNEL", "MEMSET"} <= texts
    assert "CUDA_GRAPH" not in texts
