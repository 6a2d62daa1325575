"""Spellings of threads in traces, and their packed ids."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import PID, TID, decode_events, operation
from unified_prof.pipeline.convert import convert

LABEL = {"ph": "M", "name": "thread_name", "pid": PID, "tid": str(TID), "args": {"name": "main"}}


def test_thread_spelled_as_text_and_number_is_one_thread(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::outer", 0, 50),
        operation("aten::inner", 10, 5, tid=str(TID)),
        operation("aten::other", 20, 5, tid=TID + 1),
        LABEL,
    )
    packed = PID << 32 | TID
    assert [row["globalTid"] for row in sink.tables["UPROF_THREADS"]] == [packed, packed + 1]
    assert sink.tables["UPROF_THREADS"][0]["threadName"] == "main"
    assert {row["globalTid"] for row in sink.tables["PYTORCH_API"]} == {packed, packed + 1}


def test_label_matches_its_thread_in_any_spelling(tmp_path: Path) -> None:
    process = {"ph": "M", "name": "process_name", "pid": str(PID), "tid": 0, "args": {"name": "p"}}
    sink = decode_events(tmp_path, operation("aten::mm", 0, 5, tid=float(TID)), LABEL, process)
    assert sink.rows("UPROF_THREADS", "processName", "threadName") == [("p", "main")]


@pytest.mark.slow
def test_v100_trace_with_text_thread_ids_is_imported(shared: Path, tmp_path: Path) -> None:
    trace = shared / "samples" / "kineto" / "v100_resnet50_text_tid.json.gz"
    conversion = convert(trace, tmp_path / "r.db")
    assert conversion.rows["PYTORCH_API"] == 20_556
    assert conversion.result.figures["device_tasks_joined"] == 9_258
