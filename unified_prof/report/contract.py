"""JSON Schemas of the documents that uprof prints, derived from the classes that it prints.

Times end with `_ns` or `_ms`, sizes with `_bytes`; null is "not measured". Objects may get further
keys without a new version: readers must ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias
from typing import Annotated, Any, Literal, Union, get_type_hints

import msgspec

from unified_prof.base.columns import CoveredPart
from unified_prof.cluster.overview import GroupRow, StepRow
from unified_prof.cluster.stored_run import (
    STEP_PARTS,
    BlameRecord,
    FindingRecord,
    GroupRecord,
    LinkRecord,
    RankRecord,
)
from unified_prof.compare.comparable import Waiting
from unified_prof.compare.device_tables import Amount
from unified_prof.compare.gate import Check, Effort, Limits, Outcome
from unified_prof.compare.operation_changes import Change, KernelChange, PartChange, SizeChange
from unified_prof.compare.statistics import Comparison, Verdict
from unified_prof.errors import UsageError
from unified_prof.explain.report_questions import Candidate
from unified_prof.explain.what_if import DeviceEstimate
from unified_prof.recording import model
from unified_prof.recording.idle import IdleReasons
from unified_prof.recording.source import Coverage, Missing
from unified_prof.recording.steps import StepTrace
from unified_prof.report.cluster_document import CLUSTER_FORMAT_VERSION, RankOperationRow
from unified_prof.report.figures import FORMAT_VERSION
from unified_prof.report.operation_difference import DIFFERENCE_FORMAT_VERSION
from unified_prof.report.watch_document import RunFigures


def _shape(
    name: str, *sources: Any, doc: str = "", without: str = "", optional: str = "", **fields: Any
) -> Any:
    """Return the shape of an object: the fields of the classes that it prints, and others.

    Args:
        name: Name in the schema.
        sources: Classes whose fields it has, or type -> names of fields.
        doc: Description; empty: that of the first class.
        without: Fields of the classes that are not printed.
        optional: Fields that may be missing.
        fields: Name -> type; `[T]` is a list of T, `{str: T}` an object whose keys are data.
    """
    kinds: dict[str, Any] = {}
    for one in sources:
        if isinstance(one, dict):
            kinds |= {key: kind for kind, names in one.items() for key in names.split()}
        else:
            kinds |= get_type_hints(one, localns={"CoveredPart": CoveredPart})
    kinds = {
        key: _kind(kind) for key, kind in (kinds | fields).items() if key not in without.split()
    }
    maybe = {key: (Union[kinds[key], msgspec.UnsetType], msgspec.UNSET) for key in optional.split()}  # noqa: UP007
    made = [(key, *maybe.get(key, (kind,))) for key, kind in kinds.items()]
    about = {"__doc__": doc or sources[0].__doc__}
    return msgspec.defstruct(name, made, namespace=about, module=__name__, kw_only=True)


def _kind(kind: Any) -> Any:
    if isinstance(kind, list):
        return GenericAlias(list, (_kind(kind[0]),))
    if isinstance(kind, dict):
        ((key, one),) = kind.items()
        return GenericAlias(dict, (key, _kind(one)))
    return kind


def _output_of(command: str) -> str:
    return f"Output of `uprof {command}`."


_INT, _FLOAT, _STR = int | None, float | None, str | None
_PARTS = {_INT: " ".join(STEP_PARTS)}

_RANK = _shape("Rank", RankRecord, _PARTS, steps=int, span_ns=_INT, blame=BlameRecord | None)
_LINK = _shape("Link", LinkRecord, ratio=_FLOAT)
_ABSENT = _shape("MissingRank", {int: "rank", str: "status", _STR: "file why"}, doc="Missing rank.")
_RUN = _shape(
    "Run",
    {str: "path layout", int: "world_size ranks_read hosts steps clock_islands"},
    doc="Facts about a multi-rank run.",
    ranks_missing=[_ABSENT],
    devices=[str],
    vendors=[str],
    mean_step={str: _INT},
    facts={str: str},
)
_STEP = _shape(
    "Step", StepRow, _PARTS, {_INT: "span_ns longest_ns most_compute_ns"}, without="parts"
)
_CLUSTER = _shape(
    "ClusterDocument",
    doc=_output_of("cluster report --json"),
    version=int,
    run=_RUN,
    findings=[FindingRecord],
    ranks=[_RANK],
    steps=[_STEP],
    groups=[
        _shape(
            "Collectives",
            GroupRow,
            {_INT: "transfer_ns wait_ns setup_ns", list[int] | None: "slowest_group"},
        )
    ],
    links=[_LINK],
)
_ONE_STEP = _shape(
    "OneStep",
    {int: "version step", _RUN: "run"},
    doc=_output_of("cluster report --step N --json"),
    ranks=[_RANK],
)
_ONE_RANK = _shape(
    "OneRank",
    {int: "version", _RUN: "run", _RANK: "rank"},
    doc=_output_of("cluster report --rank N --json"),
    steps=[_shape("StepOfRank", _PARTS, doc="Step of a rank.", step=int, span_ns=_INT)],
    groups=[GroupRecord],
    links=[_LINK],
    operations=[RankOperationRow],
)

_COVERAGE = _shape("Coverage", Coverage, missing=[_shape("Missing", Missing, rank=_INT)])
_BREAKDOWN_ROW = _shape(
    "BreakdownRow", model.Row, {_FLOAT: "percent average_ns", _INT: "size_bytes"}, without="extra"
)
_BREAKDOWN = _shape(
    "Breakdown", model.Breakdown, without="by whole_ns", rows_left_out=int, rows=[_BREAKDOWN_ROW]
)
_PARTS_OF_STEPS = _shape("DeviceParts", model.DeviceTime, without="device tasks steps", idle_ns=int)
_GROUP = {str: "label kind name", _STR: "title", list[int] | None: "ranks"}
_MEMORY = {str: "name device unit", int: "samples", float: "max mean"}
_REPORT = _shape(
    "Report",
    model.Summary,
    without="coverage",
    decoded=[_shape("Decoded", CoveredPart)],
    facts={str: str},
    totals=_shape("Totals", model.Totals, peak_parts_bytes={str: int}),
    devices=[_shape("Device", model.DeviceTime, idle_ns=int, steps=_PARTS_OF_STEPS | None)],
    step_trace=[StepTrace],
    why_idle=[IdleReasons],
    advice=model.Advice | None,
    model_use=[model.ModelUse],
    groups=[_shape("Group", _GROUP, doc="Communication group.")],
    launch_delay=model.Distribution | None,
    breakdowns={str: _BREAKDOWN},
    pmu=[model.PmuFigure],
    memory=[_shape("Memory", _MEMORY, doc="Memory over time.")],
)
_REPORTS = _shape(
    "ReportDocument",
    {Literal["uprof-report"]: "format", int: "version", _COVERAGE | None: "coverage"},
    doc=_output_of("report --json"),
    reports=[_REPORT],
    cluster=_CLUSTER,
    optional="cluster",
)
_HANG = _shape(
    "HangDocument",
    {int: "version", list[int]: "ranks absent", list[str]: "unread"},
    doc=_output_of("report --json DIR, of Flight Recorder dumps"),
    findings=[model.Finding],
    last_calls=[{str: str}],
)
_WATCHED = _shape(
    "WatchDocument",
    {Literal["uprof-watch"]: "format", int: "version"},
    RunFigures,
    doc=_output_of("report --json DIR, of a watched run"),
)
_ADVICE = _shape(
    "AdviceDocument",
    {Literal["uprof-advice"]: "format", int: "version", _COVERAGE | None: "coverage"},
    doc=_output_of("advise --json"),
    run=[model.Finding],
    reports=[_shape("ReportFindings", model.Advice, path=str, family=str, findings_left_out=int)],
)
_ESTIMATE = _shape(
    "Estimate",
    {str: "path family", int: "steps before_ns", _INT: "after_ns gain_ns changed_ns"},
    doc="Step time of one report with the changes; without changes, what is worth one.",
    gain_per_step_ns=_FLOAT,
    by_step=[_shape("StepGain", {_STR: "step", int: "before_ns after_ns"}, doc="One step.")],
    worth=[_shape("Worth", Candidate, gain_per_step_ns=float)],
    limits=[str],
    device=DeviceEstimate | None,
)
_WHAT_IF = _shape(
    "WhatIfDocument",
    {Literal["uprof-what-if"]: "format", int: "version", _COVERAGE: "coverage"},
    doc=_output_of("advise --what-if --json"),
    changes=[_shape("AssumedChange", {str: "name", _FLOAT: "factor"}, doc="Factor null: removed.")],
    reports=[_ESTIMATE],
)

_METRIC = _shape("MetricChange", Comparison, verdict=Verdict | None)
_NET = _shape(
    "NetChange",
    {float: "base_ns new_ns delta_ns slower_ns faster_ns"},
    doc="All operations per step, and the sums of what became slower and faster.",
)
_DIFFERENCE = _shape(
    "Difference",
    {int: "format_version", str: "base new", list[str]: "warnings left_out", bool: "identical"},
    doc="Comparison.",
    totals={str: _METRIC},
    operations=_NET,
)
_OPERATIONS = _shape(
    "OperationDifference",
    _DIFFERENCE,
    doc=_output_of("diff --json, of tracked workloads"),
    waiting=Waiting | None,
    iteration_parts=[_shape("PartDifference", PartChange, delta_ns=float)],
    changes=[_shape("OperationChange", Change, delta_ns=float)],
    size_changes=[_shape("SizeDifference", SizeChange, delta_bytes=int)],
    kernel_changes=[_shape("KernelDifference", KernelChange, delta_ns=float)],
)
_AMOUNT = _shape("SideAmount", Amount, per_step_ns=float)
_ROW = _shape(
    "DeviceRow",
    {
        str: "name side class base_name new_name",
        _AMOUNT | None: "base new",
        float: "delta_ns",
        _FLOAT: "ratio ratio_of_peaks",
        bool: "peaks_uncertain",
        list[str]: "modules lines",
        "list[_ROW]": "shapes kernels",
    },
    doc="One operation, kernel, module, line or class of device work.",
    optional="class base_name new_name modules lines ratio_of_peaks peaks_uncertain shapes kernels",
)
_SIDE = _shape(
    "RecordedSide",
    {int: "device_count recordings divided_by window_ns work_ns outside_steps_ns", _INT: "steps"},
    doc="One side.",
    devices=[str],
    versions={str: str},
)
_PART = _shape(
    "PartChange",
    {str: "name", int: "base_total_ns new_total_ns", float: "base_ns new_ns delta_ns"},
    doc="One part of the device time.",
    ratio=_FLOAT,
)
_DEVICES = _shape(
    "DeviceDifference",
    _DIFFERENCE,
    {Literal["devices"]: "compared", bool: "same_devices"},
    doc=_output_of("diff --json, of device recordings"),
    sides={Literal["base", "new"]: _SIDE},
    findings=[
        _shape(
            "FindingChange",
            {str: "kind text advice", float: "delta_ns", _FLOAT: "base_ns new_ns"},
            doc="A kind of finding whose cost per step changed.",
        )
    ],
    parts=[_PART],
    breakdowns={str: [_ROW]},
)
_EITHER = [{"$ref": f"#/$defs/{one.__name__}"} for one in (_OPERATIONS, _DEVICES)]
_WORKLOADS = _shape(
    "WorkloadDifferences",
    doc=_output_of("diff --json, of several workloads"),
    format_version=int,
    workloads={str: Annotated[Any, msgspec.Meta(extra_json_schema={"anyOf": _EITHER})]},
    geometric_mean={str: _METRIC},
)
_VERDICT = _shape(
    "WorkloadVerdict",
    {str: "base new", Outcome: "outcome", Waiting | None: "waiting"},
    doc="Verdict on one of several workloads.",
    checks=[Check],
)
_JUDGED = {int: "format_version exit_code", Limits: "limits", Effort | None: "effort"}
_GATE = _shape("GateDocument", _VERDICT, _JUDGED, doc=_output_of("gate --json"))
_GATES = _shape(
    "WorkloadVerdicts",
    _JUDGED,
    doc=_output_of("gate --json, of several workloads"),
    outcome=Outcome,
    workloads={str: _VERDICT},
    geometric_mean=[Check],
)

# Command -> version and shapes of its documents.
DOCUMENTS: Mapping[str, tuple[int, tuple[Any, ...]]] = {
    "report": (FORMAT_VERSION, (_REPORTS, _HANG, _WATCHED)),
    "advise": (FORMAT_VERSION, (_ADVICE,)),
    "what-if": (FORMAT_VERSION, (_WHAT_IF,)),
    "diff": (DIFFERENCE_FORMAT_VERSION, (_OPERATIONS, _DEVICES, _WORKLOADS)),
    "gate": (DIFFERENCE_FORMAT_VERSION, (_GATE, _GATES)),
    "cluster": (CLUSTER_FORMAT_VERSION, (_CLUSTER, _ONE_STEP, _ONE_RANK)),
}
_FINITE = ("diff", "gate")  # Documents in which NaN and infinity become null.


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the documents of a command.

    Raises UsageError if the command has no documented JSON.
    """
    if command not in DOCUMENTS:
        raise UsageError(
            f"no JSON Schema for {command!r}",
            hint=f"known: {', '.join(DOCUMENTS)}",
            slug="unknown-format",
        )
    version, shapes = DOCUMENTS[command]
    found, definitions = msgspec.json.schema_components(shapes, ref_template="#/$defs/{name}")
    for name, one in definitions.items():
        _complete(one, finite=command in _FINITE)
        if name == _BREAKDOWN_ROW.__name__:
            one["additionalProperties"] = {"type": ["number", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"uprof {command}, version {version}",
        "anyOf": list(found),
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
