"""Text of documents: wrapping, columns and findings."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from msgspec import structs

from tests.analysis.builders import memory_report, run_time_report
from tests.cli.test_report import uprof
from unified_prof.explain.api import open_reports
from unified_prof.recording.model import Advice, Finding, Totals
from unified_prof.report.advice import add_advice
from unified_prof.report.composition import composition
from unified_prof.report.document import Column, Document
from unified_prof.report.figures import peak_parts
from unified_prof.report.names import finding_cost, finding_summary
from unified_prof.report.terminal import render_text


def fact_lines(text: str, width: int | None = None) -> list[str]:
    document = Document()
    document.fact("idle", text)
    return render_text(document, width=width).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, None])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_facts_are_wrapped_and_units_stay_in_place(count: int, width: int | None) -> None:
    text = "; ".join(f"idle for reason {number} 1.00 ms (10.0 %)" for number in range(count))
    lines = fact_lines(text, width)
    assert " ".join(line[14:] for line in lines) == text
    assert all(line.startswith(" " * 14) for line in lines[1:])
    assert all(len(line) <= (width or 120) for line in lines)
    assert not any(line.strip().startswith(("ms", "%")) for line in lines)


def test_parts_of_a_bar_can_be_told_apart() -> None:
    totals = Totals(
        peak_bytes=60,
        weight_bytes=10,
        optimizer_state_bytes=20,
        gradient_bytes=10,
        activation_bytes=15,
    )
    document = Document()
    document.fact("memory", "peak", peak_parts(totals).items())
    bar = render_text(document, width=80).splitlines()[1].strip()
    assert [len(list(same)) for _, same in groupby(bar)] == [10, 20, 10, 15, 5]


def test_long_word_is_not_broken_in_a_pipe() -> None:
    assert fact_lines("x" * 500) == [f"idle          {'x' * 500}"]


def test_long_path_is_broken_behind_a_slash_and_a_word_anywhere() -> None:
    document = Document()
    document.note("undecoded data: /recordings/run_1/PROF_000001/device_0/data/qos.data of x")
    lines = render_text(document, width=40).splitlines()
    assert lines == [
        "undecoded data:",
        "/recordings/run_1/PROF_000001/device_0/",
        "data/qos.data of x",
    ]


def test_empty_columns_are_dropped_first_on_a_narrow_terminal() -> None:
    document = Document()
    document.table(
        [
            Column("device", ("device 0 (Ascend910B4)",), is_name=True),
            Column("steps", ("152 ms",)),
            Column("copies", ("1.00 ms (0.7 %)",), importance=6),
            Column("overlapped", ("-",), importance=9),
            Column("communication", ("101 ms (66.6 %)",), importance=7),
        ]
    )
    header = render_text(document, width=45).splitlines()[0]
    assert header.split() == ["device", "steps", "communication"]


def headings_at(width: int, *columns: Column) -> list[str]:
    document = Document()
    document.table(columns)
    return render_text(document, width=width).splitlines()


def test_remark_in_names_and_one_line_headings_go_before_figures() -> None:
    columns = [
        Column("device", ("device 0 (Ascend910B4)", "device 1 (Ascend910B4)"), is_name=True),
        Column("exposed communication", ("1.00 ms (0.7 %)", "2.00 ms (1.4 %)"), importance=9),
        Column("idle", ("3.00 ms", "4.00 ms"), importance=3),
    ]
    assert headings_at(60, *columns)[0].split() == ["device", "exposed", "communication", "idle"]
    assert headings_at(34, *columns) == [
        "                  exposed",
        "device      communication     idle",
        "device 0  1.00 ms (0.7 %)  3.00 ms",
        "device 1  2.00 ms (1.4 %)  4.00 ms",
    ]
    assert headings_at(33, *columns)[0].split() == ["device", "exposed", "communication"]


def test_less_important_column_is_shown_if_only_it_fits() -> None:
    columns = [
        Column("name", ("x" * 20,), is_name=True),
        Column("line", ("y" * 40,), is_name=True, importance=5),
        Column("average", ("1.00 ms",), importance=3),
    ]
    assert headings_at(46, *columns)[0].split() == ["name", "line"]
    assert headings_at(45, *columns)[0].split() == ["name", "average"]


def advice_of(text: str, *evidence: str) -> Advice:
    rows = tuple({"name": name} for name in evidence)
    found = Finding("kind", (), (), (), (), 6.6, text, evidence=rows)
    return Advice((found,), judged=("kind",), steps=2, step_ms=50.0)


def test_finding_is_shortened_at_the_end_of_a_clause() -> None:
    long = "the device is idle 87 % of the time because nothing is enqueued (60 gaps)"
    advice = advice_of(
        f"{long}; {'10 % of it is something else ' * 5}; saves up to 6.60 ms per step"
    )
    (found,) = advice.findings
    assert finding_cost(found, advice) == "6.60 ms/step (13.2 %)"
    slow = replace(found, cost_ms_per_step=120.0)  # steps that take longer than all others
    assert finding_cost(slow, advice) == "120 ms/step"
    assert finding_summary(found) == f"{long} (certain)"


def test_sizes_in_evidence_have_binary_units() -> None:
    document = Document()
    add_advice(document, advice_of("text", "all_reduce of 16,388,000 bytes"), top=None)
    assert "all_reduce of 15.6 MiB" in render_text(document)


def test_evidence_keeps_its_names_and_lines_before_operations_on_a_narrow_terminal() -> None:
    name, line = "trtllm_batch_context_with_kv_cache", "flashinfer/prefill.py:3330"
    row = {"name": name, "count": 72, "total_ns": 9_590_000, "line": line}
    finding = Finding(
        "kind",
        (),
        (),
        (),
        (),
        6.6,
        "text",
        evidence=(row | {"next": "vllm::unified_attention_with_output"},),
    )
    document = Document()
    add_advice(document, Advice((finding,), judged=("kind",)), top=None)
    (shown,) = (text for text in render_text(document, width=84).splitlines() if "9.59" in text)
    assert shown.split() == [name, "72", "9.59", "ms", line]


def test_sentences_in_a_table_are_wrapped() -> None:
    document = Document()
    sentence = "parallelism is not judged on a host"
    document.table([Column("why", (sentence,), is_name=True, is_prose=True)])
    lines = render_text(document, width=20).splitlines()
    assert lines == ["why", "parallelism is not", "judged on a host"]


def first_column(*cells: str, width: int) -> list[str]:
    document = Document()
    document.table([Column("name", cells, is_name=True)])
    return render_text(document, width=width).splitlines()[1:]


def test_shortened_names_in_a_table_stay_different() -> None:
    names = [f"sm80_gemm_f32f32_f32_tn_n_tilesize{size}_stage3_kernel_5x" for size in (64, 128)]
    shown = first_column(*names, width=40)
    assert [name.rpartition("...")[0].endswith(("64_stage3_ke", "128_stage3_k")) for name in shown]
    assert len(set(shown)) == 2
    assert all(len(name) <= 40 and name.startswith("sm80_gemm_f3") for name in shown)


def test_operations_that_differ_in_shapes_behind_a_long_word_stay_different() -> None:
    shapes = ("[32,256,14,14]", "[32,1024,14,14]", "[32,64,56,56]")
    operations = ("aten::cudnn_convolution_backward_input", "aten::cudnn_convolution")
    names = [f"{one} {shape} [64,64,3,3] fp32" for one in operations for shape in shapes]
    shown = first_column(*names, width=24)
    assert len(set(shown)) == len(names)
    assert max(map(len, shown)) <= 24


def test_part_that_was_left_out_before_has_one_mark() -> None:
    (shown,) = first_column("reduce_kernel<...ReduceOp<MeanOps>>", width=28)
    assert shown == "reduce_kernel<...<MeanOps>>"


def test_device_is_shortened_to_its_number() -> None:
    assert first_column("device 12 (AMD Instinct MI300X)", width=14) == ["device 12"]
    assert first_column("before aten::mm (+12) of x", width=14) == ["before ...of x"]


@pytest.mark.parametrize("backward", [None, 3.0])
def test_forward_is_shown_only_if_it_differs(tmp_path: Path, backward: float | None) -> None:
    operation = ("linear", 1.5, backward, [("model.py", 12)])
    text = uprof("report", run_time_report(tmp_path / "run_time.sqlite", [operation])).stdout
    (headings,) = (line.split() for line in text.splitlines() if line.startswith("operation "))
    assert ("forward" in headings) == (backward is not None)


def test_nothing_is_said_about_the_time_of_operations_that_was_not_measured(tmp_path: Path) -> None:
    with open_reports(memory_report(tmp_path / "memory.sqlite")) as opened:
        (analysis,) = opened.analyses
        breakdown = structs.replace(analysis.breakdown("operation"), whole_ns=1_000_000)
        assert composition(analysis.summary, [breakdown], advice_of("text")) == []


def test_time_outside_of_operations_is_that_of_the_measured_parts(tmp_path: Path) -> None:
    parts = {"forward": 20, "backward": 35, "optimizer": 40, "zero_grad": 1, "other": 4}
    operations = [("linear", 10.0, 15.0, [("model.py", 12)])]
    with open_reports(run_time_report(tmp_path / "run_time.sqlite", operations)) as opened:
        (analysis,) = opened.analyses
        totals = analysis.summary.totals
        ns = {name: ms * 1_000_000 for name, ms in (parts | {"waiting_for_cpu": 300}).items()}
        measured = structs.replace(
            analysis.summary, totals=structs.replace(totals, iteration_parts_ns=ns)
        )
        breakdown = structs.replace(
            analysis.breakdown("operation"), whole_ns=sum(parts.values()) * 10**6
        )
        said = {
            one: composition(summary, [breakdown], advice_of("text"))[0]
            for one, summary in (("parts", measured), ("none", analysis.summary))
        }
    # 100 ms without the wait, of which the passes take 55 and operations 25.
    assert said["parts"] == (
        "operations take 25.0 % of the time, optimizer 40.0 %, "
        "code between operations of the passes 30.0 %"
    )
    assert said["none"].endswith("25.0 % of the time, the other code of the program takes the rest")


def test_wrapped_item_is_indented_to_its_text() -> None:
    document = Document()
    document.line("- step 60 took 3.08 s, 14.8 times the median")
    lines = render_text(document, width=30).splitlines()
    assert [line[:6] for line in lines] == ["- step", "  14.8"]
