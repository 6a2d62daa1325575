"""Write all text deliverables of msprof that a report has data for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from unified_prof.errors import UsageError
from unified_prof.export.files import OutputFiles, Written
from unified_prof.export.mindstudio import memory, op_summary, statistics, timeline
from unified_prof.export.mindstudio.registry import Delivery, LeftOut, Recording
from unified_prof.recording.model import Anomaly
from unified_prof.recording.source import Source

_FAMILY = "msprof"


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One kind of file of msprof's text export."""

    # Name of its files before the time.
    name: str
    # At least one of these tables must exist; empty: always written.
    tables: tuple[str, ...]
    # None if the database lacks the data of this file.
    write: Callable[[Recording, Delivery], None] | None
    # Reason shown if `write` is None.
    why_missing: str = ""


DELIVERABLES = (
    Deliverable(
        "op_summary", ("COMPUTE_TASK_INFO", "COMMUNICATION_OP"), op_summary.write_op_summary
    ),
    Deliverable("op_statistic", ("COMPUTE_TASK_INFO",), statistics.write_op_statistic),
    Deliverable("task_time", ("TASK",), statistics.write_task_time),
    Deliverable("api_statistic", ("CANN_API",), statistics.write_api_statistic),
    Deliverable(
        "communication_statistic", ("COMMUNICATION_OP",), statistics.write_communication_statistic
    ),
    # PyTorch steps (STEP_TIME) are timed on the host and do not count.
    Deliverable("step_trace", ("TASK",), None, "iteration boundaries are not in the database"),
    Deliverable("memory_record", (memory.TABLE,), memory.write_memory_record),
    Deliverable("operator_memory", (memory.TABLE,), memory.write_operator_memory),
    Deliverable(
        "npu_mem",
        ("NPU_MEM",),
        None,
        "NPU_MEM has DDR and HBM, not their sum; see the timeline msprof",
    ),
    Deliverable("npu_module_mem", ("NPU_MODULE_MEM",), memory.write_npu_module_mem),
    *(Deliverable(one.name, (one.table,), one.write) for one in statistics.SAMPLED),
    Deliverable("msprof_tx", (statistics.TABLE,), statistics.write_msprof_tx),
    Deliverable("msprof", (), timeline.write_timeline),
    Deliverable("msprof_tx timeline", (statistics.TABLE,), timeline.write_marks),
)

# Files of msprof that uprof does not write, by the table that has their rows.
NOT_WRITTEN = {
    "CPU_USAGE": "host_cpu_usage",
    "HCCS": "hccs",
    "HOST_DISK_USAGE": "host_disk_usage",
    "HOST_MEM_USAGE": "host_mem_usage",
    "HOST_NETWORK_USAGE": "host_network_usage",
    "OSRT_API": "os_runtime_statistic",
    "SAMPLE_PMU_SUMMARY": "ai_core_utilization",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """Files of an export, and what was left out."""

    files: tuple[Written, ...]
    left_out: tuple[LeftOut, ...]
    # Anomalies found while reading.
    anomalies: tuple[Anomaly, ...]

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "files": list(map(asdict, self.files)),
            "left_out": list(map(asdict, self.left_out)),
            "anomalies": {
                one.name: {"count": one.count, "detail": one.detail} for one in self.anomalies
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        for file in self.files:
            what = "rows" if file.name.endswith(".csv") else "events"
            yield f"  {file.name}  {file.entries:,} {what}"
        for one in self.left_out:
            yield f"  left out of {one.deliverable}: {one.what} ({one.why})"
        for anomaly in self.anomalies:
            detail = f" ({anomaly.detail})" if anomaly.detail else ""
            yield f"  anomaly {anomaly.name}: {anomaly.count:,}{detail}"


def refuse_others(source: Source) -> None:
    """Raise UsageError for a report that is not an msprof database."""
    if source.family != _FAMILY:
        raise UsageError(
            f"{source.path} is a report of the {source.family} family, which has no timeline; "
            "the files of msprof need an msprof database",
            hint="record one with `uprof run --report timeline`, or name a PROF_* directory",
            slug="wrong-kind-of-report",
        )


def write(
    source: Source,
    directory: Path,
    *,
    force: bool = False,
    raw: bool = False,
    moment: datetime | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the files of an open msprof database into an existing directory, or none at all.

    If `raw`, names are written as by msprof, without protection from formulas and control
    characters. `moment` is the local time in the names of the files, by default now; `progress` is
    called with the name of each file.

    Raises:
        UsageError: Not an msprof database, or it has no data for any file.
        StoreError: The database is damaged.
        OutputError: A file exists or cannot be written.
    """
    refuse_others(source)
    recording = Recording(source, raw=raw)
    with OutputFiles(directory, force=force) as files:
        delivery = Delivery(files, moment or datetime.now())
        for deliverable in DELIVERABLES:
            if deliverable.tables and not set(source.tables).intersection(deliverable.tables):
                continue
            if deliverable.write is None:
                recording.leave_out(deliverable.name, "the file", deliverable.why_missing)
            else:
                progress(deliverable.name)
                deliverable.write(recording, delivery)
        for table, name in NOT_WRITTEN.items():
            if table in source.tables and source.rows(f"SELECT 1 FROM {table} LIMIT 1"):
                recording.leave_out(
                    name, "the file", f"uprof does not write it; its rows are in table {table}"
                )
        if not files.written:
            raise UsageError(
                f"{source.path} has no tasks, host calls, marks or operator memory, "
                "so there is nothing to write",
                slug="empty-recording",
            )
    return Exported(
        tuple(files.written), tuple(recording.left_out), tuple(recording.findings.anomalies())
    )
