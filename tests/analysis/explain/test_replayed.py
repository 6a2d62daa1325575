"""Kernels of replayed graphs count for the operations in the recording of the capture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.analysis.builders import Device
from tests.decoders.kineto import builders as kineto
from unified_prof.cli.app import app
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_reports
from unified_prof.explain.report_questions import Analysis
from unified_prof.pipeline.convert import convert
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest

MM, ADD = ("aten::mm", "cudaLaunchKernel"), ("aten::add", "cuLaunchKernelEx")


def write_capture(path: Path, *graphs: Sequence[tuple[str, str]], bounds: bool = True) -> Path:
    """Write graph captures, as (operation, call) of each launch, and one eager launch."""
    with Device(path) as device:
        at, connection = 1000, 100
        device.chain(1, "/w/net.py(9): f", "/w/train.py(3): run")
        device.call(10, 60, "aten::fill_", launches=1)
        device.runtime(20, 30, "cudaLaunchKernel", 1)
        device.task(40, 50, connection=1, kernel=("fill", "K"))
        for launches in graphs:
            if bounds:
                device.runtime(at, at + 10, "cudaStreamBeginCapture_v10000", 50 + at)
            for operation, call in launches:
                at, connection = at + 100, connection + 1
                device.call(at, at + 90, operation, launches=connection, chain=1)
                device.runtime(at + 10, at + 20, call, connection)
            at += 200
            if bounds:
                device.runtime(at, at + 10, "cudaStreamEndCapture", 50 + at)
            at += 100
    return path


def write_replay(
    path: Path, *graphs: Sequence[tuple[int, int | None]], copies: Sequence[int] = ()
) -> Path:
    """Write graph replays, as (duration, node number) of each kernel, and one eager kernel."""
    with Device(path) as device:
        device.call(0, 10, "aten::relu", launches=1)
        device.runtime(2, 6, "cudaLaunchKernel", 1)
        device.task(20, 27, connection=1, kernel=("relu", "K"))
        start = 1000
        for number, kernels in enumerate(graphs):
            device.runtime(100 + 50 * number, 140 + 50 * number, "cudaGraphLaunch", 10 + number)
            for place, (lasted, node) in enumerate(kernels):
                start += 1000
                work: dict[str, Any] = {"kernel": (f"k{place}", "K")}
                if place in copies:
                    work = {"copy": 64, "task_type": "MEMCPY_ASYNC"}
                task = device.task(start, start + lasted, connection=10 + number, **work)
                if node is not None:
                    write_node(device, task, node)
    return path


def write_node(device: Device, task: int, node: int) -> None:
    unused = {"name": 0, "operation": 0, "gridDim": 0, "blockDim": 0}
    device.row("UPROF_GPU_TASKS", globalTaskId=task, graphId=7, graphNodeId=node, **unused)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "replay.db", tmp_path / "capture.db"


def operations(analysis: Analysis) -> dict[str, tuple[int, int | None]]:
    return {row.name: (row.count, row.total_ns) for row in analysis.breakdown("operation").rows}


def operations_and_anomalies(
    replayed: Path, captured: Path
) -> tuple[dict[str, tuple[int, int | None]], list[str]]:
    with open_reports(replayed, capture=captured) as opened:
        (analysis,) = opened.analyses
        found = operations(analysis)
        return found, [one.name for one in analysis.summary.anomalies]


def test_nth_kernel_of_a_replay_is_the_nth_captured_one(paths: tuple[Path, Path]) -> None:
    kernels = [(30, None), (5, None), (40, None)]
    write_replay(paths[0], kernels, kernels)
    write_capture(paths[1], [MM, ADD, MM])
    found, anomalies = operations_and_anomalies(*paths)
    assert found == {"aten::mm": (4, 140), "aten::add": (2, 10), "aten::relu": (1, 7)}
    assert anomalies == []


@pytest.mark.parametrize(("captured", "share"), [(False, 0.93), (True, 0.0)])
def test_share_without_operations(paths: tuple[Path, Path], captured: bool, share: float) -> None:
    write_replay(paths[0], [(93, None)])
    capture = write_capture(paths[1], [MM]) if captured else None
    with open_reports(paths[0], capture=capture) as opened:
        (analysis,) = opened.analyses
        assert analysis.advice().replayed_share == share


def replay_hint(database: Path, command: str) -> str:
    done = CliRunner().invoke(app, [command, str(database)])
    assert done.exit_code == 0, done.stderr
    (line,) = (one for one in done.stdout.splitlines() if "graph replays" in one)
    return line.partition(": ")[2]


@pytest.mark.parametrize("command", ["advise", "report"])
def test_capture_beside_a_replay_is_named(paths: tuple[Path, Path], command: str) -> None:
    write_replay(paths[0], [(93, None)])
    capture = write_capture(paths[1].with_name("b graph.db"), [MM])
    write_replay(paths[1].with_name("a.db"), [(93, None)])
    (paths[1].parent / "0.db").write_text("no database")
    hint = replay_hint(paths[0], command)
    assert hint == f"`uprof report {paths[0]} --with '{capture}'` shows operations"
    # Of several captures, the one that is named like the replay; without such a one, none.
    other = write_capture(paths[1].with_name("c.db"), [MM])
    assert f"report {paths[0]} --with CAPTURE`" in replay_hint(paths[0], command)
    for number in range(20):
        (paths[1].parent / f"0{number}.db").write_text("no database")
    alike = write_capture(paths[0].with_name(f"{paths[0].stem}_capture.db"), [MM])
    assert str(alike) in replay_hint(paths[0], command)
    for one in (capture, other, alike):
        one.unlink()
    assert f"report {paths[0]} --with CAPTURE`" in replay_hint(paths[0], command)


def test_recording_that_only_captures_a_graph_says_so(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "capture.db", [MM])
    with Device(path.with_name("whole.db")) as device:
        device.runtime(0, 10, "cudaStreamBeginCapture", 1)
        device.runtime(900, 910, "cudaLaunchKernel", 2)
        device.task(20, 30, kernel=("relu", "K"))
        device.task(2_000, 2_010, connection=2, kernel=("relu", "K"))
    done = CliRunner().invoke(app, ["report", str(path.with_name("whole.db"))])
    said = "the device is idle 99.0 % of the time: the program captures a device graph"
    assert said in done.stdout


def test_recording_without_replays_names_no_capture(paths: tuple[Path, Path]) -> None:
    with Device(paths[0]) as device:
        device.call(0, 10, "aten::relu", launches=1)
        device.runtime(2, 6, "cudaLaunchKernel", 1)
        device.task(20, 27, connection=1, kernel=("relu", "K"))
    write_capture(paths[1], [MM])
    with open_reports(paths[0]) as opened:
        assert opened.analyses[0].advice().capture is None


def test_trace_named_as_a_capture_beside_a_converted_trace_is_named(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "rank0_Capture.json.gz").touch()
    (traces / "capture.txt").touch()
    (traces / "other_capture.json.gz").touch()
    events = [
        kineto.operation("aten::relu", 0, 10),
        kineto.complete("cuda_runtime", "cudaGraphLaunch", 20, 5, args={"correlation": 7}),
        kineto.kernel(40, 50, 7),
    ]
    trace = kineto.write(traces / "rank0.json", events)
    database = convert(trace, tmp_path / "out.db").database
    expected = f"report {database} --convert --with rank0_Capture.json.gz`"
    assert expected in replay_hint(database, "advise")


def test_recorded_node_numbers_assign_kernels_to_launches(paths: tuple[Path, Path]) -> None:
    # On two streams the second node started first.
    write_replay(paths[0], [(5, 902), (30, 901), (40, 903)])
    write_capture(paths[1], [MM, ADD, MM])
    assert operations_and_anomalies(*paths)[0] == {
        "aten::mm": (2, 70),
        "aten::add": (1, 5),
        "aten::relu": (1, 7),
    }


def test_collectives_are_nodes_and_keep_their_row(paths: tuple[Path, Path]) -> None:
    with Device(paths[0]) as device:
        device.runtime(100, 140, "cudaGraphLaunch", 10)
        for number, name in enumerate(("k0", "nccl", "k1")):
            task = device.task(
                1000 + 100 * number,
                1010 + 100 * number,
                "KERNEL" if name != "nccl" else "NCCL",
                connection=10,
                kernel=(name, "K") if name != "nccl" else None,
                stream=7 + (name == "nccl"),
            )
            write_node(device, task, number + 1)
        device.collective(1100, 1110, "all_reduce_1", "all_reduce")
    write_capture(paths[1], [MM, ("c10d::allreduce_", "cuLaunchKernelEx"), ADD])
    found, anomalies = operations_and_anomalies(*paths)
    assert found == {"aten::mm": (1, 10), "all_reduce": (1, 10), "aten::add": (1, 10)}
    assert anomalies == []


def test_kernels_on_two_streams_without_nodes_not_assigned(paths: tuple[Path, Path]) -> None:
    with Device(paths[0]) as device:
        device.runtime(100, 140, "cudaGraphLaunch", 10)
        device.task(1000, 1010, connection=10, stream=7, kernel=("k0", "K"))
        device.task(1005, 1020, connection=10, stream=8, kernel=("k1", "K"))
    write_capture(paths[1], [MM, ADD])
    found, anomalies = operations_and_anomalies(*paths)
    assert set(found) == {"K"}
    assert anomalies == ["replay_without_nodes"]


def test_kernels_of_a_replay_without_capture_keep_their_type(paths: tuple[Path, Path]) -> None:
    write_replay(paths[0], [(30, None), (5, None)])
    with open_reports(paths[0]) as opened:
        assert set(operations(opened.analyses[0])) == {"K", "aten::relu"}


def test_graphs_are_distinguished_by_their_launches(paths: tuple[Path, Path]) -> None:
    write_replay(paths[0], [(30, None), (5, None)], [(1, None), (2, None), (3, None)], copies=[1])
    write_capture(paths[1], [MM, MM], [ADD, ("aten::copy_", "cudaMemcpyAsync")], [MM, ADD, MM])
    found, anomalies = operations_and_anomalies(*paths)
    assert found["aten::add"] == (1, 30)
    assert found["aten::copy_"] == (1, 5)
    assert anomalies == ["replay_without_capture"]


def test_ambiguous_captures_are_not_assigned(paths: tuple[Path, Path]) -> None:
    write_replay(paths[0], [(30, None), (5, None)])
    write_capture(paths[1], [MM, ADD], [ADD, MM])
    found, anomalies = operations_and_anomalies(*paths)
    assert "aten::mm" not in found
    assert anomalies == ["replay_of_several_captures"]
    # If the captures have the same operations, it does not matter which one was replayed.
    paths[1].unlink()
    write_capture(paths[1], [MM, ADD], [MM, ADD])
    assert operations_and_anomalies(*paths) == (
        {"aten::mm": (1, 30), "aten::add": (1, 5), "aten::relu": (1, 7)},
        [],
    )


def test_capture_without_begin_and_end_has_no_tasks(paths: tuple[Path, Path]) -> None:
    write_replay(paths[0], [(30, None), (5, None)])
    write_capture(paths[1], [MM, ADD], bounds=False)
    assert operations_and_anomalies(*paths)[0]["aten::mm"] == (1, 30)


def test_lines_kernels_and_totals_use_the_captured_operations(paths: tuple[Path, Path]) -> None:
    write_replay(paths[0], [(30, None), (5, None)])
    write_capture(paths[1], [MM, ADD])
    with open_reports(paths[0], capture=paths[1]) as opened:
        (analysis,) = opened.analyses
        lines = {row.name: row.total_ns for row in analysis.breakdown("line").rows}
        assert lines == {"net.py:9": 35, "(no source line)": 7}
        pairs = {(name, row.name) for name, row in analysis.kernels_of_operations()}
        assert pairs == {("aten::mm", "k0"), ("aten::add", "k1"), ("aten::relu", "relu")}
        launches = analysis.statistics("operation")
        assert launches["aten::mm", "operation"]["launches"] == 1
        assert analysis.summary.totals.total_ns == analysis.breakdown("kernel").total_ns == 42
        assert "aten::mm" in report_formats.produce_text(opened, ReportRequest())


def test_recording_without_operations_is_refused(paths: tuple[Path, Path], tmp_path: Path) -> None:
    write_replay(paths[0], [(30, None)])
    with Device(paths[1]) as device:
        device.task(0, 1, kernel=("k", "K"))
    with pytest.raises(UsageError, match="no operations"):
        operations_and_anomalies(*paths)
    result = CliRunner().invoke(app, ["report", str(paths[0]), "--with", str(tmp_path / "no.db")])
    assert result.exit_code != 0
    with pytest.raises(UsageError, match="cannot be its own capture"):
        operations_and_anomalies(paths[0], paths[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "operation", "pieces"),
    [("vllm", "vllm::moe_forward", 24), ("sglang", "aiter::gemm_a16w16", 144)],
)
def test_replays_of_inference_servers_are_attributed(
    server: str, operation: str, pieces: int, shared: Path, tmp_path: Path
) -> None:
    folders = {}
    for part in ("replay", "capture"):
        trace = shared / "samples" / "kineto" / f"{server}_decode_graph_{part}.json.gz"
        folders[part] = tmp_path / part
        done = CliRunner().invoke(app, ["import", str(trace), "-o", str(folders[part]), "-q"])
        assert done.exit_code == 0, done.output
    found, anomalies = operations_and_anomalies(folders["replay"], folders["capture"])
    assert found[operation][0] == pieces
    assert anomalies == []
    rest = sum(count for name, (count, _) in found.items() if "::" not in name)
    assert rest < 0.4 * sum(count for count, _ in found.values())
