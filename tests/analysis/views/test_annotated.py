"""Device time by annotation in traces of torch.profiler."""

import json
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import Event, call, complete, copy, kernel, write
from unified_prof.cli.app import main
from unified_prof.explain.api import open_analyses
from unified_prof.pipeline.convert import convert
from unified_prof.recording.model import Breakdown

BATCH = "execute_context_1(8)_generation_0(0)"


def device_annotation(name: str, ts: int, dur: int, stream: int = 7) -> Event:
    args = {"device": 0, "stream": stream}
    return complete("gpu_user_annotation", name, ts, dur, pid=0, tid=stream, args=args)


def tasks() -> list[Event]:
    """Two kernels and a copy launched between 100 and 200, one kernel launched after 200."""
    launches = [call(at, 5, number) for number, at in enumerate((110, 120, 130, 210), start=1)]
    name = "Memcpy DtoH (Device -> Pageable)"
    return [
        *launches,
        kernel(300, 10, 1),
        kernel(305, 10, 2, args={"stream": 8}),
        copy(320, 4, 3, name, 64),
        kernel(340, 50, 4),
    ]


def uprof(*arguments: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


def annotation_breakdown(path: Path, *events: Event) -> Breakdown:
    report = path / "r.db"
    convert(write(path / "trace.json", events), report)
    with open_analyses(report) as (analysis,):
        return analysis.breakdown("annotation")


def test_device_annotations_count_for_each_enclosing_range(tmp_path: Path) -> None:
    found = annotation_breakdown(
        tmp_path,
        *tasks(),
        complete("user_annotation", BATCH, 100, 100),
        device_annotation(BATCH, 300, 24),
        device_annotation(BATCH, 305, 10, stream=8),
        device_annotation("inner", 320, 4),
        device_annotation("ProfilerStep#7", 290, 200),
    )
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [BATCH, "inner"]
    assert (rows[BATCH].count, rows[BATCH].total_ns) == (2, 19_000)
    # The tokens count once, although two streams have a range.
    tokens = {"prefill_tokens": 8, "decode_tokens": 0, "time_ns_per_token": 3_000}
    times = {"window_ns": 24_000, "compute_ns": 15_000, "communication_ns": 0, "copy_ns": 4_000}
    assert rows[BATCH].extra == times | tokens
    assert rows["inner"].total_ns == 4_000
    assert found.total_ns == 69_000, "all device work, to which shares refer"


def test_annotation_counts_its_tasks_without_device_ranges(tmp_path: Path) -> None:
    found = annotation_breakdown(
        tmp_path, *tasks(), complete("user_annotation", "step[DECODE]", 100, 100)
    )
    (row,) = found.rows
    assert (row.name, row.count, row.total_ns) == ("step[DECODE]", 1, 19_000)
    assert row.extra["window_ns"] == 100_000
    assert row.detail == "tasks launched in the range"


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("execute_context_1(8)_generation_3(3)", 8, 3),
        ("execute_40_context_2(sq32sk64sqsq9sqsk9)_generation_8(sq8sk77sqsq8sqsk77)", 32, 8),
        ("step[DECODE bs=19]", 0, 19),
        ("step[EXTEND bs=2 toks=19]", 19, 0),
        ("step[EXTEND bs=2]", None, None),
        ("execute_context_0(0)_generation_0(0)", None, None),
        ("training step 12", None, None),
    ],
)
def test_batches_of_servers_have_tokens_and_their_time(
    tmp_path: Path, name: str, prefill: int | None, decode: int | None
) -> None:
    found = annotation_breakdown(tmp_path, *tasks(), complete("user_annotation", name, 100, 100))
    extra = found.rows[0].extra
    assert (extra.get("prefill_tokens"), extra.get("decode_tokens")) == (prefill, decode)
    time_ns = None if prefill is None else 19_000 / (prefill + (decode or 0))
    assert extra.get("time_ns_per_token") == time_ns


def test_text_and_json_have_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.db"
    convert(write(tmp_path / "trace.json", [*tasks(), device_annotation(BATCH, 300, 24)]), report)
    assert uprof("report", report, "--by", "annotation") == 0
    assert BATCH in capsys.readouterr().out
    assert uprof("report", report, "--format", "json") == 0
    (figures,) = json.loads(capsys.readouterr().out)["reports"]
    assert figures["breakdowns"]["annotation"]["rows"][0]["name"] == BATCH


def test_annotation_is_refused_if_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.db"
    convert(write(tmp_path / "trace.json", tasks()), report)
    assert uprof("report", report, "--by", "annotation") == 2
    assert "no annotated ranges were recorded" in capsys.readouterr().err
