"""Exporters of `uprof watch`: figures of steps for monitoring systems and experiment trackers.

Each exporter has a thread that sends one point for the steps of INTERVAL_S, so that neither a slow
server nor fast steps disturb the training. An exporter that fails says so once and stops.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from unified_prof.base.streams import tell
from unified_prof.base.text import printable
from unified_prof.errors import UsageError
from unified_prof.sqlite.atomic import write_small
from unified_prof.sqlite.watch_file import StepRow, WatchEvent

INTERVAL_S = 5.0
CLOSE_S = 10.0  # Maximum time for the last point at the end of the run.
THREAD = "uprof-"  # Thread names begin with this.
MAX_WAITING = 20_000  # Steps kept for a slow server; older ones are not exported.
# Upper limits of the histogram of step lengths.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_PARTS = {
    "data_loading": "data_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
    "host_wait": "wait_ns",
    "garbage_collection": "gc_ns",
    "device": "device_ns",
}
_MEMORY = {"allocated": "allocated_bytes", "reserved": "reserved_bytes"}


class Point(NamedTuple):
    """The steps and events of an interval; figures are medians, without unknown ones."""

    step: int  # The last one.
    rows: Sequence[StepRow]
    events: Sequence[WatchEvent]
    parts_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    samples: int
    samples_per_s: float | None

    def scalars(self, prefix: str) -> dict[str, float]:
        """Return the figures for experiment trackers, with units in their names."""
        if not self.rows:
            return {}
        found = {"step_ms": median(row.length_ns for row in self.rows) / 1e6}
        found |= {f"{name}_ms": 1e3 * value for name, value in self.parts_s.items()}
        found |= {f"memory_{name}_mib": n / (1 << 20) for name, n in self.memory_bytes.items()}
        if self.samples_per_s is not None:
            found["samples_per_s"] = self.samples_per_s
        return {prefix + name: value for name, value in found.items()}


class Exporter:
    """Passes steps and events to an adapter (`write(point)`, `close()`) on a separate thread."""

    def __init__(self, name: str, adapter: Any) -> None:
        self._name, self._adapter = name, adapter
        self._rows: deque[StepRow] = deque(maxlen=MAX_WAITING)
        self._events: deque[WatchEvent] = deque(maxlen=MAX_WAITING)
        self._next_event = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send, name=THREAD + name, daemon=True)
        self._thread.start()

    def export(self, rows: Sequence[StepRow], events: Sequence[WatchEvent]) -> None:
        """Add steps, and events, of which later states do not count; never waits."""
        if self._thread.is_alive():
            self._rows.extend(rows)
            new = [event for event in events if event.id >= self._next_event]
            self._next_event = max([event.id + 1 for event in new], default=self._next_event)
            self._events.extend(new)

    def close(self) -> None:
        """Send the remaining steps, for at most CLOSE_S."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _send(self) -> None:
        try:
            while not self._closing.wait(INTERVAL_S):
                self._write()
            self._write()
            self._adapter.close()
        except Exception as err:  # whatever a client raises, the training goes on
            why = printable(str(err) or type(err).__name__)[:300]
            tell(f"uprof: export to {self._name} failed and stopped: {why}")

    def _write(self) -> None:
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        events = [self._events.popleft() for _ in range(len(self._events))]
        if rows or events:
            self._adapter.write(_point(rows, events))


def open_exporters(names: Sequence[str], folder: Path, facts: Mapping[str, str]) -> list[Exporter]:
    """Start exporters.

    Names are keys of ADAPTERS; `prometheus:DIR` and `tensorboard:DIR` write there, others to
    `folder`. Facts are rank, world_size, host and workload. Raises UsageError if a name is unknown,
    or its client is not installed or does not start.
    """
    made = []
    for text in dict.fromkeys(names):
        name, _, place = text.partition(":")
        if name not in ADAPTERS or (place and name not in ("prometheus", "tensorboard")):
            raise UsageError(
                f"unknown exporter {text!r}",
                hint=f"known: {', '.join(ADAPTERS)}",
                slug="wrong-option-value",
            )
        try:
            adapter = ADAPTERS[name](Path(place) if place else folder, facts)
        except ImportError as err:
            raise UsageError(
                f"the exporter {name} requires a package that is not installed: {err.name}",
                hint=f"pip install 'unified-prof[{name}]'",
                slug="missing-package",
            ) from err
        except Exception as err:  # such as a directory that cannot be written
            raise UsageError(
                f"cannot start the exporter {name}: {printable(str(err))}", slug="cannot-start"
            ) from err
        made.append((name, adapter))
    return [Exporter(name, adapter) for name, adapter in made]


def _point(rows: Sequence[StepRow], events: Sequence[WatchEvent]) -> Point:
    def medians(columns: Mapping[str, str], factor: float) -> dict[str, float]:
        known = {
            name: [value for row in rows if (value := getattr(row, column)) is not None]
            for name, column in columns.items()
        }
        return {name: median(values) * factor for name, values in known.items() if values}

    counted = [(row.samples, row.length_ns) for row in rows if row.samples is not None]
    samples, length_ns = (
        (sum(column) for column in zip(*counted, strict=True)) if counted else (0, 0)
    )
    rate = samples / length_ns * 1e9 if length_ns > 0 else None
    parts_s, memory_bytes = medians(_PARTS, 1e-9), medians(_MEMORY, 1)
    return Point((rows or events)[-1].step, rows, events, parts_s, memory_bytes, samples, rate)


def _prefix(facts: Mapping[str, str]) -> str:
    rank = facts.get("rank", "0")
    return "uprof/" if rank == "0" else f"uprof/rank{rank}/"


class _OpenTelemetry:
    """OTLP over HTTP; OTEL_* variables set the endpoint, headers, interval and resource."""

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        metrics = importlib.import_module("opentelemetry.sdk.metrics")
        export = importlib.import_module("opentelemetry.sdk.metrics.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
        base: Any = importlib.import_module(name).OTLPMetricExporter
        self._failed = False
        owner = self

        class Checked(base):  # type: ignore[misc]
            """Keeps the result, which the reader does not pass on."""

            def export(self, *args: Any, **options: Any) -> Any:
                result = super().export(*args, **options)
                owner._failed = result is not export.MetricExportResult.SUCCESS
                return result

        # `Exporter` reports a failure, the client would report each attempt.
        logging.getLogger(name).addFilter(lambda one: one.threadName != f"{THREAD}opentelemetry")
        about = {f"uprof.{key}": facts[key] for key in ("rank", "world_size", "workload")}
        about |= {
            "service.name": "uprof",
            "service.instance.id": f"{facts['host']}:{facts['rank']}",
        }
        resource = resources.Resource.create({"host.name": facts["host"], **about})
        self._reader = export.PeriodicExportingMetricReader(Checked(), math.inf)
        self._provider = metrics.MeterProvider(
            [self._reader],
            resource.merge(resources.OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._interval_s = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", 60_000)) / 1e3
        self._sent_s = time.monotonic()
        meter = self._provider.get_meter("uprof")
        self._length = meter.create_histogram(
            "uprof.step.duration", "s", explicit_bucket_boundaries_advisory=BUCKETS_S
        )
        self._parts = meter.create_gauge("uprof.step.part.duration", "s", "median, by part")
        self._memory = meter.create_gauge("uprof.memory.usage", "By", "median, by state")
        self._steps = meter.create_counter("uprof.steps", "{step}")
        self._samples = meter.create_counter("uprof.samples", "{sample}")
        self._events = meter.create_counter("uprof.events", "{event}")

    def write(self, point: Point) -> None:
        for row in point.rows:
            self._length.record(row.length_ns / 1e9)
        for name, value in point.parts_s.items():
            self._parts.set(value, {"uprof.step.part": name})
        for name, value in point.memory_bytes.items():
            self._memory.set(value, {"uprof.memory.state": name})
        self._steps.add(len(point.rows))
        self._samples.add(point.samples)
        for event in point.events:
            self._events.add(1, {"uprof.event.kind": event.kind})
        if time.monotonic() - self._sent_s >= self._interval_s:
            self._collect()

    def _collect(self) -> None:
        self._sent_s = time.monotonic()
        self._reader.collect()
        if self._failed:
            raise ConnectionError("the OTLP endpoint accepts no metrics")

    def close(self) -> None:
        self._collect()
        self._provider.shutdown()


class _Prometheus:
    """A file for the textfile collector of node_exporter, replaced atomically.

    After the run it keeps the counters, and `uprof_running` is 0.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self._path = folder / f"uprof_rank{facts['rank']}.prom"
        self._labels = {key: facts[key] for key in ("rank", "host", "workload")}
        self._lengths = [0] * (len(BUCKETS_S) + 1)
        self._length_s = 0.0
        self._samples = 0
        self._events: Counter[str] = Counter()

    def write(self, point: Point) -> None:
        for row in point.rows:
            self._lengths[bisect_left(BUCKETS_S, row.length_ns / 1e9)] += 1
            self._length_s += row.length_ns / 1e9
        self._samples += point.samples
        self._events.update(event.kind for event in point.events)
        self._replace(point)

    def close(self) -> None:
        self._replace(None)

    def _replace(self, point: Point | None) -> None:
        name, steps = "uprof_step_duration_seconds", sum(self._lengths)
        lines = [f"# HELP {name} Length of steps.", f"# TYPE {name} histogram"]
        for place, limit in enumerate([*map(str, BUCKETS_S), "+Inf"]):
            lines.append(self._line(f"{name}_bucket", sum(self._lengths[: place + 1]), le=limit))
        lines += [self._line(f"{name}_sum", self._length_s), self._line(f"{name}_count", steps)]
        families: dict[str, tuple[str, str, Mapping[str, float]]] = {
            "steps_total": ("Complete steps.", "", {"": steps}),
            "samples_total": ("Samples or tokens.", "", {"": self._samples}),
            "events_total": ("Events by kind.", "kind", self._events),
            "running": ("1 during the run.", "", {"": int(point is not None)}),
        }
        if point is not None and point.rows:
            families["step_part_seconds"] = "Median by part.", "part", point.parts_s
            families["memory_bytes"] = "Median by state.", "state", point.memory_bytes
        for name, (about, label, values) in families.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP uprof_{name} {about}", f"# TYPE uprof_{name} {kind}"]
            for key, value in values.items():
                lines.append(self._line(f"uprof_{name}", value, **({label: key} if label else {})))
        write_small(self._path, "".join(f"{line}\n" for line in lines).encode())

    def _line(self, name: str, value: float, **labels: str) -> str:
        escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
        pairs = [f'{k}="{v.translate(escapes)}"' for k, v in (self._labels | labels).items()]
        return f"{name}{{{','.join(pairs)}}} {value!r}"


class _TensorBoard:
    """Scalars in an event file per rank, written without torch and TensorFlow."""

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        writers = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        place = f"tensorboard/rank{facts['rank']}"
        self._writer = writers.EventFileWriter(str(folder / place))

    def write(self, point: Point) -> None:
        if scalars := point.scalars("uprof/"):
            event = self._events.Event(wall_time=point.rows[-1].start_ns / 1e9, step=point.step)
            for name, value in scalars.items():
                event.summary.value.add(tag=name, simple_value=value)
            self._writer.add_event(event)
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """Metrics of the active run, with the script's next values; otherwise rank 0 starts a run."""

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self._wandb = importlib.import_module("wandb")
        self._folder, self._facts = folder, dict(facts)
        self._own: Any = None
        self._known: Any = None

    def write(self, point: Point) -> None:
        run = self._wandb.run or self._own
        if run is None and self._known is None and self._facts["rank"] == "0":
            run = self._own = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "uprof"),
                dir=str(self._folder),
                config=self._facts,
                reinit="create_new",  # not the active run: the script may still start its own
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        if run is None or not (scalars := point.scalars(_prefix(self._facts))):
            return
        if run is not self._known:
            run.define_metric("uprof/*", step_metric="uprof/step")
            self._known = run
        # Without a commit, the script's count of steps stays as it is.
        run.log({**scalars, "uprof/step": point.step}, commit=run is self._own)

    def close(self) -> None:
        if self._own is not None:
            self._own.finish()


class _MLflow:
    """Metrics of the active run; otherwise rank 0 starts a run."""

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self._mlflow = importlib.import_module("mlflow")
        self._facts = facts
        self._own: Any = None
        self._run_id = ""

    def write(self, point: Point) -> None:
        # `mlflow.active_run` only knows runs of the calling thread.
        run = None if self._own else self._mlflow.tracking.fluent._get_latest_active_run()
        if run is None and not self._run_id:
            if self._facts["rank"] != "0":
                return
            tags = {f"uprof.{name}": value for name, value in self._facts.items()}
            run = self._own = self._mlflow.start_run(tags=tags)
        self._run_id = run.info.run_id if run else self._run_id
        if scalars := point.scalars(_prefix(self._facts)):
            self._mlflow.log_metrics(scalars, step=point.step, run_id=self._run_id)

    def close(self) -> None:
        if self._own is not None:
            self._mlflow.end_run()


ADAPTERS: Mapping[str, Any] = {
    "opentelemetry": _OpenTelemetry,
    "prometheus": _Prometheus,
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}
