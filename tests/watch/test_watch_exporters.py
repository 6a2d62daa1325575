"""Exporters: what the clients of other systems read back, and failures that disturb nothing."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, call

import pytest

from unified_prof.errors import UsageError
from unified_prof.integrations import watch_exporters
from unified_prof.integrations.watch_exporters import ADAPTERS, Exporter, Point, open_exporters
from unified_prof.sqlite.watch_file import StepRow, WatchEvent

FACTS = {"rank": "0", "world_size": "2", "host": "node-7", "workload": 'train "x".py'}
START_NS = 1_790_000_000_000_000_000
MIB = 1 << 20
# 100 steps of 50 ms: 5 ms data loading, 15 ms forward, no optimizer, 40 samples.
ROWS = [
    StepRow(
        step=step,
        start_ns=START_NS + step * 50_000_000,
        length_ns=50_000_000,
        data_ns=5_000_000,
        forward_ns=15_000_000,
        backward_ns=20_000_000,
        optimizer_ns=None,
        wait_ns=1_000_000,
        gc_ns=0,
        device_ns=None,
        allocated_bytes=300 * MIB + step % 3 - 1,
        reserved_bytes=None,
        samples=40,
        event=None,
    )
    for step in range(100)
]
EVENT = WatchEvent(0, START_NS, 50, "slow_step", "step 50 took 1 s")
LATER = WatchEvent(0, START_NS, 50, "slow_step", "step 50 took 1 s", "captures/0", "ready")


def export(name: str, folder: Path, **facts: str) -> None:
    """Export the steps in two calls, as during a run."""
    (exporter,) = open_exporters([name], folder, {**FACTS, **facts})
    exporter.export(ROWS[:50], [EVENT])
    exporter.export(ROWS[50:], [LATER])
    exporter.close()


def check_scalars(found: dict[str, float], prefix: str = "uprof/") -> None:
    assert found == pytest.approx(
        {
            f"{prefix}step_ms": 50,
            f"{prefix}data_loading_ms": 5,
            f"{prefix}forward_ms": 15,
            f"{prefix}backward_ms": 20,
            f"{prefix}host_wait_ms": 1,
            f"{prefix}garbage_collection_ms": 0,
            f"{prefix}memory_allocated_mib": 300,
            f"{prefix}samples_per_s": 800,
        }
    )


def test_prometheus_reads_the_file(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    (exporter,) = open_exporters([f"prometheus:{tmp_path}"], tmp_path / "no", FACTS)
    exporter._adapter.write(watch_exporters._point(ROWS, [EVENT]))
    path = tmp_path / "uprof_rank0.prom"

    def read() -> dict[tuple[str, str], float]:
        found = {}
        for family in parser.text_string_to_metric_families(path.read_text(encoding="utf-8")):
            for name, labels, value, *_ in family.samples:
                assert labels.pop("workload") == FACTS["workload"]
                assert (labels.pop("rank"), labels.pop("host")) == ("0", "node-7")
                found[name, ",".join(labels.values())] = value
        return found

    found = read()
    assert found["uprof_step_duration_seconds_bucket", "0.025"] == 0
    assert found["uprof_step_duration_seconds_bucket", "0.05"] == 100
    assert found["uprof_step_duration_seconds_bucket", "+Inf"] == 100
    assert found["uprof_step_duration_seconds_sum", ""] == pytest.approx(5.0)
    assert found["uprof_steps_total", ""] == 100
    assert found["uprof_samples_total", ""] == 4000
    assert found["uprof_events_total", "slow_step"] == 1
    assert found["uprof_step_part_seconds", "forward"] == pytest.approx(0.015)
    assert ("uprof_step_part_seconds", "optimizer") not in found
    assert found["uprof_memory_bytes", "allocated"] == 300 * MIB
    assert found["uprof_running", ""] == 1
    assert path.stat().st_mode & 0o044  # node_exporter is another user
    exporter.close()
    after = read()
    assert after["uprof_running", ""] == 0
    assert after["uprof_steps_total", ""] == 100
    assert not any(name == "uprof_step_part_seconds" for name, _ in after)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    export("tensorboard", tmp_path, rank="1")
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard" / "rank1"))
    events.Reload()
    points = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    assert all(len(values) == 1 for values in points.values())
    check_scalars({tag: values[0].value for tag, values in points.items()})
    last = points["uprof/step_ms"][0]
    assert (last.step, last.wall_time) == (99, pytest.approx(ROWS[-1].start_ns / 1e9))


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the endpoint of a server, and the bodies of its requests."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            zipped = self.headers.get("Content-Encoding") == "gzip"
            bodies.append(gzip.decompress(body) if zipped else body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_opentelemetry_sends_otlp_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=training,team=vision")
    with collector() as (endpoint, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        export("opentelemetry", tmp_path)
    (request,) = [service.ExportMetricsServiceRequest.FromString(body) for body in bodies]
    (resource,) = request.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "training"
    assert about["team"] == "vision"
    assert (about["uprof.rank"], about["host.name"]) == ("0", "node-7")
    metrics = {one.name: one for one in resource.scope_metrics[0].metrics}
    (length,) = metrics["uprof.step.duration"].histogram.data_points
    assert (length.count, length.sum) == (100, pytest.approx(5.0))
    assert tuple(length.explicit_bounds) == watch_exporters.BUCKETS_S
    parts = {
        point.attributes[0].value.string_value: point.as_double
        for point in metrics["uprof.step.part.duration"].gauge.data_points
    }
    assert parts["backward"] == pytest.approx(0.02)
    assert "optimizer" not in parts
    assert metrics["uprof.memory.usage"].unit == "By"
    assert metrics["uprof.steps"].sum.data_points[0].as_int == 100
    assert metrics["uprof.samples"].sum.data_points[0].as_int == 4000
    assert metrics["uprof.events"].sum.data_points[0].as_int == 1


def test_a_failing_endpoint_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector(status=400) as (endpoint, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        export("opentelemetry", tmp_path)
    assert len(bodies) == 1
    assert capfd.readouterr() == (
        "",
        "uprof: export to opentelemetry failed and stopped: the OTLP endpoint accepts no metrics\n",
    )


def wandb_records(folder: Path) -> list[Any]:
    """Read runs in LevelDB's log format: records in parts, none across a limit of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(folder.rglob("*.wandb")):
        content, place, record = path.read_bytes(), 7, b""
        while place + 7 <= len(content):
            if 0x8000 - place % 0x8000 < 7:
                place += 0x8000 - place % 0x8000
            size, part = struct.unpack_from("<HB", content, place + 4)
            record += content[place + 7 : place + 7 + size]
            place += 7 + size
            if part in (1, 4):  # complete, or the last part
                found.append(wandb_internal_pb2.Record.FromString(record))
                record = b""
    return found


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of complete runs; another process writes them."""
    deadline = time.monotonic() + 60
    while True:
        records = wandb_records(folder)
        ended = sum(one.WhichOneof("record_type") == "exit" for one in records)
        if ended == len([*folder.rglob("*.wandb")]):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in one.history.item
        }
        for one in records
        if one.WhichOneof("record_type") == "history"
    ]


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return pytest.importorskip("wandb")


@pytest.mark.slow
def test_wandb_joins_the_run_of_the_script(tmp_path: Path, wandb: Any) -> None:
    with wandb.init(dir=str(tmp_path), settings=wandb.Settings(silent=True)) as run:
        run.log({"loss": 3.0}, step=7)
        export("wandb", tmp_path)
        run.log({"loss": 2.0}, step=8)
    export("wandb", tmp_path)  # The script's run is over, this starts another.
    history = wandb_history(tmp_path)
    steps = [(row["_step"], row["loss"]) for row in history if "loss" in row]
    assert sorted(steps) == [(7, 3.0), (8, 2.0)]
    assert sum("uprof/step" in row and "loss" not in row for row in history) == 1
    joined = next(row for row in history if "uprof/step" in row and "loss" in row)
    check_scalars(
        {key: joined[key] for key in joined if key.startswith("uprof/") and key != "uprof/step"}
    )


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    found = pytest.importorskip("mlflow")
    found.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    found.search_experiments()  # creates the tables
    return found


@pytest.mark.slow
def test_mlflow_starts_a_run_on_rank_0(tmp_path: Path, mlflow: Any) -> None:
    export("mlflow", tmp_path, rank="1")
    export("mlflow", tmp_path)
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    check_scalars(run.data.metrics)
    assert run.data.tags["uprof.host"] == "node-7"
    assert run.info.status == "FINISHED"
    (point,) = mlflow.MlflowClient().get_metric_history(run.info.run_id, "uprof/step_ms")
    assert point.step == 99


POINT, WITHOUT_STEPS = watch_exporters._point(ROWS, [EVENT]), watch_exporters._point([], [EVENT])


def test_points_are_logged_to_the_active_run_or_an_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = MagicMock(run=None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    ADAPTERS["wandb"](tmp_path, FACTS | {"rank": "1"}).write(POINT)
    assert not wandb.mock_calls
    own = ADAPTERS["wandb"](tmp_path, FACTS)
    for point in (POINT, WITHOUT_STEPS, POINT):
        own.write(point)
    own.close()
    started = wandb.init.return_value
    logged = {**POINT.scalars("uprof/"), "uprof/step": 99}
    assert wandb.init.call_count == 1
    define, log = call.define_metric("uprof/*", step_metric="uprof/step"), call.log
    assert started.mock_calls == [
        *(define, log(logged, commit=True), log(logged, commit=True), call.finish())
    ]
    active = wandb.run = Mock()
    joined = ADAPTERS["wandb"](tmp_path, FACTS)
    joined.write(POINT)
    wandb.run = None  # The script has ended its run: the measurement starts no other.
    joined.write(POINT)
    joined.close()
    assert active.mock_calls == [define, log(logged, commit=False)]
    assert wandb.init.call_count == 1


def test_points_are_logged_to_the_latest_run_or_an_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = MagicMock()
    latest = mlflow.tracking.fluent._get_latest_active_run
    latest.return_value = None
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    other = ADAPTERS["mlflow"](tmp_path, FACTS | {"rank": "1"})
    other.write(POINT)
    assert mlflow.mock_calls == [call.tracking.fluent._get_latest_active_run()]
    own = ADAPTERS["mlflow"](tmp_path, FACTS)
    for point in (POINT, WITHOUT_STEPS, POINT):
        own.write(point)
    mlflow.end_run.assert_not_called()
    own.close()
    mlflow.start_run.assert_called_once()
    mlflow.end_run.assert_called_once()
    latest.return_value = MagicMock()
    latest.return_value.info.run_id = "a"
    other.write(POINT)
    latest.return_value = None  # The latest run has ended, but its last steps belong to it.
    other.write(POINT)
    other.close()
    mlflow.end_run.assert_called_once()
    of_own = mlflow.start_run.return_value.info.run_id
    runs = [(of_own, "uprof/")] * 2 + [("a", "uprof/rank1/")] * 2
    assert mlflow.log_metrics.mock_calls == [
        call(POINT.scalars(prefix), step=99, run_id=run) for run, prefix in runs
    ]


class Slow:
    """A client whose server does not respond."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.released = threading.Event()

    def write(self, point: Point) -> None:
        self.points.append(point)
        self.released.wait(60)

    def close(self) -> None:
        pass


def test_a_slow_server_delays_no_steps_and_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_exporters, "INTERVAL_S", 0.01)
    monkeypatch.setattr(watch_exporters, "CLOSE_S", 0.1)
    slow = Slow()
    exporter = Exporter("slow", slow)
    start = time.perf_counter()
    for _ in range(1000):
        exporter.export(ROWS, [EVENT])
    exporter.close()
    assert time.perf_counter() - start < 5
    assert len(exporter._rows) <= watch_exporters.MAX_WAITING
    slow.released.set()
    exporter._thread.join()


def test_steps_of_an_interval_are_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = Slow()
    points.released.set()
    exporter = Exporter("points", points)
    for first in range(0, 100, 10):
        exporter.export(ROWS[first : first + 10], [])
    exporter.close()
    assert [len(point.rows) for point in points.points] == [100]


def test_a_disabled_exporter_keeps_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    exporter = Exporter("broken", None)
    exporter.export(ROWS, [])
    exporter.close()
    exporter.export(ROWS, [EVENT])
    assert not exporter._rows
    assert capfd.readouterr().err.startswith("uprof: export to broken failed and stopped: ")


def test_an_unwritable_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export(f"prometheus:{tmp_path / 'missing'}", tmp_path)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("uprof: export to prometheus failed and stopped: ")


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot start the exporter tensorboard"):
        open_exporters(["tensorboard"], tmp_path, FACTS)


@pytest.mark.parametrize("name", ["grafana", "wandb:runs", ""])
def test_unknown_exporters_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown exporter"):
        open_exporters([name], tmp_path, FACTS)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("opentelemetry", "opentelemetry.sdk.metrics"),
        ("tensorboard", "tensorboard.summary.writer.event_file_writer"),
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
    ],
)
def test_a_missing_client_names_its_extra(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match="not installed") as caught:
        open_exporters([name], tmp_path, FACTS)
    assert caught.value.hint == f"pip install 'unified-prof[{name}]'"


def test_each_client_is_an_extra() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = project.read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    for name in ADAPTERS.keys() - {"prometheus"}:
        assert f"\n{name} = [" in extras
