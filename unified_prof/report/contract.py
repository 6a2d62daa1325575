"""Shapes of the JSON documents that uprof prints, and the JSON Schemas derived from them.

Times end with `_ns` or `_ms`, sizes with `_bytes`; null is "not measured". Objects may get further
keys without a new version: readers must ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, get_args

import msgspec

from unified_prof.cluster.stored_run import (
    STEP_PARTS,
    BlameRecord,
    FindingRecord,
    GroupRecord,
    LinkRecord,
    RankRecord,
)
from unified_prof.compare.comparable import Waiting
from unified_prof.compare.gate import Check, Effort, Limits, Outcome
from unified_prof.compare.operation_changes import Change, KernelChange, SizeChange
from unified_prof.compare.statistics import Comparison, Verdict
from unified_prof.errors import UsageError
from unified_prof.recording.idle import IdleReasons
from unified_prof.recording.model import (
    Anomaly,
    Clock,
    Distribution,
    Finding,
    ModelUse,
    NotJudged,
    NotMeasured,
    PmuFigure,
    Totals,
)
from unified_prof.recording.source import Missing
from unified_prof.recording.steps import StepTrace
from unified_prof.report.cluster_document import CLUSTER_FORMAT_VERSION, RankOperationRow
from unified_prof.report.figures import FORMAT_VERSION
from unified_prof.report.operation_difference import DIFFERENCE_FORMAT_VERSION

_COUNT, _NUMBER = {"type": "integer"}, {"type": "number"}
_OPTIONAL = {"type": ["integer", "null"]}


def _plus(**properties: dict[str, Any]) -> msgspec.Meta:
    """Return an annotation for a dataclass that is printed with further properties."""
    return msgspec.Meta(extra_json_schema={"properties": properties, "required": list(properties)})


class Decoded(TypedDict):
    """How much of one kind of data in a recording was decoded; see `UPROF_COVERAGE`."""

    kind: str
    unit: str
    total: int
    decoded: int
    skipped: int
    without_table: int


class Coverage(TypedDict):
    """Reports or ranks that were expected, and those that could not be read."""

    unit: str
    expected: int
    whole: int
    missing: list[Missing]


class Findings(TypedDict):
    """Findings of one recording, most expensive first, and the rules that were skipped."""

    steps: int
    step_ms: float | None
    pauses: int
    paused_ms: float
    complete: bool
    findings: list[Finding]
    not_judged: list[NotJudged]
    judged: list[str]


class BreakdownRow(TypedDict):
    """Everything recorded under one key; further keys are figures of this breakdown."""

    name: str
    kind: str
    detail: str | None
    count: int
    total_ns: int | None
    percent: float | None
    average_ns: float | None
    forward_ns: int | None
    backward_ns: int | None
    size_bytes: int | None
    weight_bytes: int | None
    gradient_bytes: int | None
    activation_bytes: int | None
    allocated_bytes: int | None


class Breakdown(TypedDict):
    """Time and memory of a report by one key."""

    total_ns: int | None
    size_bytes: int | None
    rows_left_out: int
    rows: list[BreakdownRow]


class Group(TypedDict):
    """Communication group."""

    label: str
    kind: str
    title: str | None
    name: str
    ranks: list[int] | None


class DeviceParts(TypedDict):
    """Time of a device by kind of task."""

    window_ns: int
    compute_ns: int
    communication_ns: int | None
    overlap_ns: int | None
    copy_ns: int
    busy_ns: int
    idle_ns: int


class Device(DeviceParts):
    """Time of a device in its window and, if known, in its steps."""

    device: str
    tasks: int
    steps: DeviceParts | None


class Memory(TypedDict):
    """Counter of memory over time."""

    name: str
    device: str
    unit: str
    samples: int
    max: float
    mean: float


class Report(TypedDict):
    """One report of a process."""

    path: str
    family: str
    revision: str
    clock: Clock
    facts: dict[str, str]
    totals: Annotated[Totals, _plus(peak_parts_bytes={"additionalProperties": _COUNT})]
    devices: list[Device]
    step_trace: list[StepTrace]
    why_idle: list[IdleReasons]
    advice: Findings | None
    model_use: list[ModelUse]
    groups: list[Group]
    launch_delay: Distribution | None
    breakdowns: dict[str, Breakdown]
    pmu: list[PmuFigure]
    memory: list[Memory]
    anomalies: list[Anomaly]
    not_measured: list[NotMeasured]
    available: list[str]
    decoded: list[Decoded]


class _Reports(TypedDict):
    format: Literal["uprof-report"]
    version: int
    reports: list[Report]
    coverage: Coverage | None


class ReportDocument(_Reports, total=False):
    """Output of `uprof report --format json`; `cluster` if it is a multi-rank run."""

    cluster: ClusterDocument


class HangDocument(TypedDict):
    """Output of `uprof report --json` for Flight Recorder dumps of all ranks."""

    version: int
    ranks: list[int]
    absent: list[int]
    unread: list[str]
    findings: list[Finding]
    last_calls: list[dict[str, str]]


class ReportFindings(Findings):
    """Findings of one report."""

    path: str
    family: str
    findings_left_out: int


class AdviceDocument(TypedDict):
    """Output of `uprof advise --json`."""

    format: Literal["uprof-advice"]
    version: int
    run: list[Finding]
    reports: list[ReportFindings]
    coverage: Coverage | None


class AssumedChange(TypedDict):
    """Assumed change; factor null: removed."""

    name: str
    factor: float | None


class StepGain(TypedDict):
    """Length of one step, as recorded and with the changes."""

    step: str | None
    before_ns: int
    after_ns: int


class Worth(TypedDict):
    """Gain if an item of the critical path were twice as fast, or a synchronizing call gone."""

    name: str
    kind: str
    on_path_ns: int
    gain_ns: int
    gain_per_step_ns: float


class Estimate(TypedDict):
    """Estimated step time of one report; without changes, the most valuable ones (`worth`)."""

    path: str
    family: str
    steps: int
    before_ns: int
    after_ns: int | None
    gain_ns: int | None
    gain_per_step_ns: float | None
    changed_ns: int | None
    by_step: list[StepGain]
    worth: list[Worth]
    limits: list[str]


class WhatIfDocument(TypedDict):
    """Output of `uprof advise --what-if --json`."""

    format: Literal["uprof-what-if"]
    version: int
    changes: list[AssumedChange]
    reports: list[Estimate]
    coverage: Coverage


# Comparison of whole iterations; verdict null: the devices differ.
MetricChange = Annotated[Comparison, _plus(verdict={"enum": [*get_args(Verdict), None]})]


class NetChange(TypedDict):
    """Time of all operations per step, and the sums of what became slower and faster."""

    base_ns: float
    new_ns: float
    delta_ns: float
    slower_ns: float
    faster_ns: float


class _Difference(TypedDict):
    format_version: int
    base: str
    new: str
    warnings: list[str]
    left_out: list[str]
    identical: bool
    totals: dict[str, MetricChange]
    operations: NetChange


OperationChange = Annotated[Change, _plus(delta_ns=_NUMBER)]


SizeDifference = Annotated[SizeChange, _plus(delta_bytes=_COUNT)]


KernelDifference = Annotated[KernelChange, _plus(delta_ns=_NUMBER)]


class OperationDifference(_Difference):
    """Comparison of two tracked workloads."""

    waiting: Waiting | None
    changes: list[OperationChange]
    size_changes: list[SizeDifference]
    kernel_changes: list[KernelDifference]


class RecordedSide(TypedDict):
    """One side of a comparison of device recordings."""

    devices: list[str]
    device_count: int
    recordings: int
    versions: dict[str, str]
    steps: int | None
    divided_by: int
    window_ns: int
    work_ns: int
    outside_steps_ns: int


class PartChange(TypedDict):
    """Change of one part of the device time."""

    name: str
    base_total_ns: int
    new_total_ns: int
    base_ns: float
    new_ns: float
    delta_ns: float
    ratio: float | None


class SideAmount(TypedDict):
    """Work of one side under one key."""

    calls: int
    runs: int
    total_ns: int
    per_step_ns: float


_DeviceRow = TypedDict(
    "_DeviceRow",
    {"class": str, "base_name": str, "new_name": str, "modules": list[str], "lines": list[str]},
    total=False,
)


class _DevicePeaks(_DeviceRow, total=False):
    ratio_of_peaks: float | None
    peaks_uncertain: bool
    shapes: list[DeviceRow]
    kernels: list[DeviceRow]


class DeviceRow(_DevicePeaks):
    """Change of one operation, kernel, module, line or class of device work."""

    name: str
    side: str
    base: SideAmount | None
    new: SideAmount | None
    delta_ns: float
    ratio: float | None


class DeviceDifference(_Difference):
    """Comparison of two device recordings."""

    compared: Literal["devices"]
    same_devices: bool
    sides: dict[Literal["base", "new"], RecordedSide]
    parts: list[PartChange]
    breakdowns: dict[str, list[DeviceRow]]


class WorkloadDifferences(TypedDict):
    """Comparison of several workloads."""

    format_version: int
    workloads: dict[str, Any]
    geometric_mean: dict[str, MetricChange]


class GateDocument(TypedDict):
    """Output of `uprof gate --json`."""

    format_version: int
    base: str
    new: str
    outcome: Outcome
    exit_code: int
    limits: Limits
    waiting: Waiting | None
    effort: Effort | None
    checks: list[Check]


class WorkloadVerdict(TypedDict):
    """Verdict on one of several workloads."""

    base: str
    new: str
    outcome: Outcome
    waiting: Waiting | None
    checks: list[Check]


class WorkloadVerdicts(TypedDict):
    """Output of `uprof gate --json` for several workloads."""

    format_version: int
    outcome: Outcome
    exit_code: int
    limits: Limits
    effort: Effort | None
    workloads: dict[str, WorkloadVerdict]
    geometric_mean: list[Check]


class MissingRank(TypedDict):
    """Rank without complete figures."""

    rank: int
    status: str
    file: str | None
    why: str | None


class _Parts(TypedDict):
    compute_ns: int | None
    communication_ns: int | None
    exposed_communication_ns: int | None
    wait_ns: int | None
    exposed_wait_ns: int | None
    setup_ns: int | None
    bubble_ns: int | None
    input_late_ns: int | None
    idle_ns: int | None


class RunFacts(TypedDict):
    """Facts about a multi-rank run."""

    path: str
    world_size: int
    ranks_read: int
    ranks_missing: list[MissingRank]
    hosts: int
    layout: str
    devices: list[str]
    vendors: list[str]
    steps: int
    clock_islands: int
    mean_step: dict[str, int | None]
    facts: dict[str, str]


# Rank: identity, mean parts of its steps, cost to other ranks.
RankFields = Annotated[
    RankRecord,
    _plus(
        steps=_COUNT,
        **dict.fromkeys(("span_ns", *STEP_PARTS), _OPTIONAL),
        blame={"anyOf": [{"$ref": "#/$defs/BlameRecord"}, {"type": "null"}]},
    ),
]


class StepFields(_Parts):
    """One step over all ranks."""

    step: int
    ranks: int
    span_ns: int | None
    longest_ns: int | None
    longest_rank: int
    most_compute_ns: int | None
    most_compute_rank: int


class Collectives(TypedDict):
    """Collectives of one kind, size and kind of group."""

    group_kind: str
    size: int
    groups: int
    kind: str
    bytes: int | None
    per_step: float
    incomplete: int
    transfer_ns: int | None
    wait_ns: int | None
    setup_ns: int | None
    bus_gb_per_s: float | None
    slowest_group: list[int] | None
    slowest_gb_per_s: float | None


# Link, and the ratio of its bandwidth to that of comparable links.
LinkFields = Annotated[LinkRecord, _plus(ratio={"type": ["number", "null"]})]


class ClusterDocument(TypedDict):
    """Output of `uprof cluster report --format json`; times are per step."""

    version: int
    run: RunFacts
    findings: list[FindingRecord]
    ranks: list[RankFields]
    steps: list[StepFields]
    groups: list[Collectives]
    links: list[LinkFields]


class OneStep(TypedDict):
    """Output of `uprof cluster report --step N --format json`."""

    version: int
    run: RunFacts
    step: int
    ranks: list[RankFields]


class StepOfRank(_Parts):
    """One step of a rank."""

    step: int
    span_ns: int | None


class OneRank(TypedDict):
    """Output of `uprof cluster report --rank N --format json`."""

    version: int
    run: RunFacts
    rank: RankFields
    steps: list[StepOfRank]
    groups: list[GroupRecord]
    links: list[LinkFields]
    operations: list[RankOperationRow]


# Command -> version and shapes of its documents.
DOCUMENTS: Mapping[str, tuple[int, tuple[type, ...]]] = {
    "report": (FORMAT_VERSION, (ReportDocument, HangDocument)),
    "advise": (FORMAT_VERSION, (AdviceDocument,)),
    "what-if": (FORMAT_VERSION, (WhatIfDocument,)),
    "diff": (
        DIFFERENCE_FORMAT_VERSION,
        (OperationDifference, DeviceDifference, WorkloadDifferences),
    ),
    "gate": (DIFFERENCE_FORMAT_VERSION, (GateDocument, WorkloadVerdicts)),
    "cluster": (CLUSTER_FORMAT_VERSION, (ClusterDocument, OneStep, OneRank)),
}
# Documents in which NaN and infinity become null.
_FINITE = ("diff", "gate")


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the documents of a command.

    Raises:
        UsageError: The command has no documented JSON.
    """
    if command not in DOCUMENTS:
        raise UsageError(
            f"no JSON Schema for {command!r}",
            hint=f"known: {', '.join(DOCUMENTS)}",
            slug="unknown-format",
        )
    version, shapes = DOCUMENTS[command]
    found, definitions = msgspec.json.schema_components(
        (*shapes, BlameRecord), ref_template="#/$defs/{name}"
    )
    for name, one in definitions.items():
        _complete(one, finite=command in _FINITE)
        if name == BreakdownRow.__name__:
            one["additionalProperties"] = {"type": ["number", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"uprof {command}, version {version}",
        "anyOf": list(found[: len(shapes)]),
        "$defs": definitions,
    }


def _complete(schema: Any, *, finite: bool) -> None:
    """Adapt a schema to what is printed: all fields, and null for NaN if `finite`."""
    if isinstance(schema, list):
        for one in schema:
            _complete(one, finite=finite)
    elif isinstance(schema, dict):
        if "description" in schema:
            schema["description"] = schema["description"].partition("\n")[0]
        fields = schema.get("properties", {})
        if any("default" in field for field in fields.values() if isinstance(field, dict)):
            schema["required"] = list(fields)
        if finite and schema.get("type") == "number":
            schema["type"] = ["number", "null"]
        schema.pop("default", None)
        for one in schema.values():
            _complete(one, finite=finite)
