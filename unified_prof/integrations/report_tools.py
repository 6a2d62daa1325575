"""MCP server of `uprof mcp`: its tools answer questions about reports with bounded plain data.

Only `make_server` depends on the MCP SDK. Times are ns or ms, sizes bytes, as the keys say. Paths
are confined to the given directories; symbolic links that lead out of them are refused.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from unified_prof.base.redaction import redact
from unified_prof.compare import device_diff, runs
from unified_prof.compare import diff as tracked_diff
from unified_prof.errors import CaptureError, UprofError, UsageError, missing_package
from unified_prof.explain.api import open_reports
from unified_prof.explain.report_questions import Analysis, Change
from unified_prof.explain.what_if import WITHOUT
from unified_prof.integrations.source_costs import file_and_line, names_line
from unified_prof.pipeline import cache, report_input
from unified_prof.recording import run_directory
from unified_prof.recording.model import KINDS, Row
from unified_prof.report import cluster_document, device_documents, operation_difference
from unified_prof.report.advice import what_if_fields
from unified_prof.report.figures import collect_figures, coverage_fields, report_fields, row_fields
from unified_prof.report.names import finding_summary
from unified_prof.version import VERSION

# Maximum size of the rows of one answer, and length of one text in it.
MAX_BYTES = 12_000
_MAX_TEXT = 400
_MAX_ROWS = 1_000
# Maximum number of entries of a directory in which links are checked.
_MAX_ENTRIES = 100_000
_MAX_OUTPUT = 4_000
_MAX_CANDIDATES = 50
_NS_PER_MS = 1e6
_MAX_MS = 1e9
Answer = dict[str, Any]


class ReportTools:
    """Answers about the reports below some directories."""

    def __init__(self, roots: Sequence[Path], run_timeout_s: float = 3600) -> None:
        self.roots = [root.resolve(strict=True) for root in roots]
        self._run_timeout_s = run_timeout_s
        # Reports in the cache that `convert` made.
        self._converted: set[Path] = set()

    def reports(self) -> list[str]:
        """Return the files below the roots that are named like reports."""
        found = [file for root in self.roots for file in run_directory.databases(root).files]
        return [str(file) for file in found if self._is_inside(file.resolve())]

    def open_report(self, path: str) -> Answer:
        """Describe a report file or a directory of reports: kinds, ranks, breakdowns, facts.

        Call this first. A recording of another profiler (a trace of torch.profiler, Nsight Systems,
        rocprofv3, msprof) has to be converted with `convert` first.
        """
        place = self._inside(path)
        if report_input.is_summary(place):
            return {"is_multi_rank_run": True, "next": "cluster_findings"}
        with open_reports(place) as opened:
            rows = [
                {
                    "report": number,
                    "path": one.summary.path,
                    "family": one.summary.family,
                    "revision": one.summary.revision,
                    "clock": one.summary.clock,
                    "breakdowns": list(one.summary.available),
                    "facts": dict(one.summary.facts[:30]),
                }
                for number, one in enumerate(opened.analyses)
            ]
            coverage = coverage_fields(opened.coverage)
        coverage["missing"] = page(coverage["missing"], size=2_000)
        return {"is_multi_rank_run": len(rows) > 1, "coverage": coverage, **page(rows)}

    def summary(self, path: str, report: int = 0) -> Answer:
        """Return the headline of a report: step, device and idle time, memory, first findings."""
        with self._analysis(path, report) as analysis:
            figures = collect_figures(analysis, ())
            fields = report_fields(figures)
            findings = [] if figures.advice is None else figures.advice.findings
        for name in ("breakdowns", "advice", "facts", "pmu", "step_trace"):
            del fields[name]
        fields["totals"] = _measured(fields["totals"])
        for name in ("devices", "why_idle", "groups", "memory", "model_use", "anomalies"):
            fields[name] = page(fields[name], size=1_500)
        first = _numbered(
            "finding",
            (
                {name: getattr(one, name) for name in ("kind", "cost_ms_per_step")}
                | {"text": finding_summary(one)}
                for one in findings[:5]
            ),
        )
        return {**_short(fields), "findings": first, "findings_in_all": len(findings)}

    def findings(
        self, path: str, report: int = 0, limit: int = 10, cursor: str | None = None
    ) -> Answer:
        """List why a step is slow, most expensive first: cost, evidence, confidence, what to try.

        Rules whose data were not recorded are in `skipped`. For a multi-rank run, also ask
        cluster_findings.
        """
        with self._analysis(path, report) as analysis:
            advice = analysis.advice()
        rows = _numbered("finding", (one.document() for one in advice.findings))
        for row in rows:
            row["evidence"] = _numbered(f"{row['id']}, evidence", row["evidence"])
        skipped: dict[str, list[str]] = {}
        for judged in advice.not_judged:
            if judged.applies:
                skipped.setdefault(judged.why, []).append(judged.kind)
        return {
            "steps": advice.steps,
            "step_ms": advice.step_ms,
            "statistic": advice.statistic,
            "rules_without_findings": len(advice.judged),
            "skipped": [{"why": why, "rules": len(rules)} for why, rules in skipped.items()],
            **page(rows, limit, cursor),
        }

    def breakdown(
        self,
        path: str,
        by: str = "operation",
        report: int = 0,
        contains: str = "",
        limit: int = 20,
        cursor: str | None = None,
    ) -> Answer:
        """Return time and memory by operation, kernel, module, line, step, idle reason, and others.

        open_report lists the values of `by`; `contains` selects rows whose name contains a text.
        """
        if by not in KINDS:
            raise no_breakdown(by, KINDS)
        with self._analysis(path, report) as analysis:
            found = analysis.breakdown(by)
        chosen = [one for one in enumerate(found.rows, start=1) if contains in one[1].name]

        def fields(numbered: tuple[int, Row]) -> Answer:
            number, row = numbered
            return {"id": f"{by} {number}", **_measured(row_fields(found, row))}

        whole = {"by": by, "total_ns": found.total_ns, "size_bytes": found.size_bytes}
        return {**whole, **page(chosen, limit, cursor, show=fields)}

    def timeline_slice(
        self,
        path: str,
        start_ms: float = 0.0,
        duration_ms: float = 1.0,
        report: int = 0,
        track: str = "",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Answer:
        """List what ran in a part of the recording, in order of start, on each stream and thread.

        `start_ms` counts from the recording's first event; `track` selects tracks whose device,
        process or name contains a text.
        """
        with self._analysis(path, report) as analysis:
            tracks = [one for one in analysis.tracks() if len(one)]
        if not tracks:
            raise UsageError(f"{path} has no timeline", slug="no-timeline")
        if not (0 <= start_ms < _MAX_MS and 0 <= duration_ms < _MAX_MS):
            raise UsageError(
                f"start_ms and duration_ms: expected 0 to {_MAX_MS:g}", slug="wrong-option-value"
            )
        first = min(int(one.start_ns[0]) for one in tracks)
        begin = first + round(start_ms * _NS_PER_MS)
        end = begin + round(duration_ms * _NS_PER_MS)
        chosen = [
            one.take((one.start_ns < end) & (one.end_ns > begin))
            for one in tracks
            if track in f"{one.group} {one.name}"
        ]
        starts = np.concatenate([np.zeros(0, np.int64), *(one.start_ns for one in chosen)])
        heads = np.cumsum([0, *map(len, chosen)])

        def fields(row: int) -> Answer:
            number = int(np.searchsorted(heads, row, side="right")) - 1
            one, at = chosen[number], row - int(heads[number])
            return {
                "start_ms": (int(one.start_ns[at]) - first) / _NS_PER_MS,
                "name": one.labels[int(one.label[at])],
                "track": f"{one.group}, {one.name}",
                "duration_ns": int(one.end_ns[at] - one.start_ns[at]),
            }

        last = max(int(one.end_ns.max()) for one in tracks)
        order: list[int] = np.argsort(starts, kind="stable").tolist()
        return {
            "recorded_ms": (last - first) / _NS_PER_MS,
            **page(order, limit, cursor, show=fields),
        }

    def what_if(
        self,
        path: str,
        faster: dict[str, float] | None = None,
        without: list[str] | None = None,
        report: int = 0,
        limit: int = 10,
    ) -> Answer:
        """Estimate the step time if work were faster or gone; without changes, rank candidates.

        `faster` has factors by name, such as {"aten::mm": 2}, also of host, communication, copies;
        `without` lists names to remove, such as ["cudaStreamSynchronize"].
        """
        changes = [Change(name, factor) for name, factor in (faster or {}).items()]
        changes += [Change(name, WITHOUT) for name in without or ()]
        with self._analysis(path, report) as analysis:
            found = what_if_fields(analysis.what_if(changes, top=_MAX_CANDIDATES))
        found["by_step"] = page(found["by_step"], size=3_000)
        found["worth"] = page(found["worth"], limit)
        return {key: _short(value) for key, value in found.items()}

    def compare(
        self, base: str, new: str, by: str = "operation", limit: int = 15, cursor: str | None = None
    ) -> Answer:
        """Compare two runs: whole steps with their verdict, then the largest changes.

        `base` and `new` are files or directories; `by` is operation, module or line, for device
        recordings also class or kernel.
        """
        before, after = [self._inside(base)], [self._inside(new)]
        devices = device_diff.diff_recordings(before, after, (base, new))
        if devices is not None:
            found = device_documents.device_fields(devices)
            tables = found.pop("breakdowns")
        else:
            if by not in ("operation", "module", "line"):
                raise no_breakdown(by, ("operation", "module", "line"))
            both = tracked_diff.diff(runs.load(before), runs.load(after), by=by)  # type: ignore[arg-type]
            found = operation_difference.difference_fields(both)
            tables = {by: found.pop("changes")}
            found["size_changes"] = page(found["size_changes"], size=2_000)
            found["kernel_changes"] = page(found["kernel_changes"], size=2_000)
        if by not in tables:
            raise no_breakdown(by, tables)
        largest = sorted(tables[by], key=lambda row: -abs(row["delta_ns"] or 0))
        for row in largest:  # rows of a row would exceed the size of an answer
            row.pop("shapes", None)
            row.pop("kernels", None)
        return {**_short(found), **page(_numbered(by, largest), limit, cursor)}

    def cluster_findings(self, path: str, limit: int = 10, cursor: str | None = None) -> Answer:
        """List what slows a multi-rank run: slow ranks, links, hosts, stages, late launches.

        `path` is a directory with a report per rank, or a run of `uprof cluster build`. Costs are
        ms per step of the whole run.
        """
        place = self._inside(path)
        with report_input.open_ranks(place, needed=True) as overview:
            if overview is None:
                raise report_input.not_a_run_error(place, "use findings for one report")
            facts = cluster_document.run_facts(overview)
            worst = [cluster_document.rank_fields(row) for row in overview.worst[:5]]
            found = map(cluster_document.finding_fields, overview.run.findings)
            rows = _numbered("finding", found)
        facts["ranks_missing"] = page(facts["ranks_missing"], size=2_000)
        return {
            "run": _short(facts),
            "ranks_with_the_highest_cost": page(_short(worst), size=4_000),
            **page(rows, limit, cursor),
        }

    def source_cost(
        self,
        path: str,
        file: str = "",
        line: int | None = None,
        report: int = 0,
        limit: int = 30,
        cursor: str | None = None,
    ) -> Answer:
        """Return time and memory by source line, and the findings that name each line.

        `file` selects source files whose path ends with a text, `line` one line of them.
        """
        with self._analysis(path, report) as analysis:
            found = analysis.breakdown("line")
            findings = analysis.advice(quick=True).findings
        rows = []
        for at, row in enumerate(found.rows, start=1):
            name, number = file_and_line(row.name) or (row.name, None)
            if name.endswith(file) and line in (None, number):
                about = [
                    {"id": f"finding {place}", "text": finding_summary(one)}
                    for place, one in enumerate(findings, start=1)
                    if names_line(one, row.name)
                ]
                fields = _measured(row_fields(found, row))
                more = {"findings": about} if about else {}
                rows.append({"id": f"line {at}", **fields, **more})
        return {"total_ns": found.total_ns, **page(rows, limit, cursor)}

    def convert(self, path: str) -> Answer:
        """Convert a recording of another profiler; returns the report to use in other tools.

        Reports are written to uprof's cache; nothing is written beside the recording.
        """
        notes: list[str] = []
        made = cache.reports_of(self._inside(path), note=notes.append)
        if made.converted:
            self._converted |= {made.path.resolve(), *(one.resolve() for _, one in made.converted)}
        return {
            "path": str(made.path),
            "converted": [str(found.path) for found, _ in made.converted],
            "unreadable": [{"path": one.what, "why": one.why} for one in made.missing],
            "notes": notes,
        }

    def run(self, script: str, arguments: list[str] | None = None, backend: str = "auto") -> Answer:
        """Profile a training script with `uprof run`; returns the directory of its reports.

        `arguments` are those of the script; `backend` is auto, cpu, cuda or npu.
        """
        file = self._inside(script)
        if not file.is_file():
            raise UsageError(f"{script} is not a file", slug="no-script")
        command = ["run", "--json", "--backend", backend, "--", str(file), *(arguments or ())]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "unified_prof", *command],
                cwd=file.parent,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._run_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CaptureError(
                f"{script} did not end within {self._run_timeout_s:g} s", slug="round-failed"
            ) from None
        try:
            result = json.loads(done.stdout)
            target = str(file.parent / result["directory"])
        except (ValueError, LookupError, TypeError):  # it failed before anything was measured
            result = target = None
        text = done.stderr[-_MAX_OUTPUT:].decode(errors="replace")
        return {
            "exit_code": done.returncode,
            "path": target,
            "result": _short(result),
            "output": redact(text),
        }

    @contextmanager
    def _analysis(self, path: str, report: int) -> Iterator[Analysis]:
        with open_reports(self._inside(path)) as opened:
            if not 0 <= report < len(opened.analyses):
                raise UsageError(
                    f"{path} has no report {report}",
                    hint=f"reports: 0 to {len(opened.analyses) - 1}",
                    slug="no-report",
                )
            yield opened.analyses[report]

    def _is_inside(self, real: Path) -> bool:
        return any(real.is_relative_to(root) for root in (*self.roots, *self._converted))

    def _inside(self, path: str) -> Path:
        """Return the path, relative to the first root.

        Raises UsageError if it, or a link below it, leads out of the roots.
        """
        if not path or "\0" in path:
            raise UsageError("the path is empty or has a null character", slug="empty-path")
        given = self.roots[0] / path
        real = given.resolve()
        if not self._is_inside(real):
            raise UsageError(
                f"{path} is outside the directories of this server",
                hint=f"allowed: {', '.join(map(str, self.roots))}",
                slug="outside-roots",
            )
        entries = 0
        for place, folders, files in os.walk(real):
            for name in (*folders, *files):
                entries += 1
                one = Path(place, name)
                if entries > _MAX_ENTRIES:
                    raise UsageError(
                        f"{path} has more than {_MAX_ENTRIES:,} entries", slug="outside-roots"
                    )
                if one.is_symlink() and not self._is_inside(one.resolve()):
                    raise UsageError(
                        f"{one} is a link to outside the directories of this server",
                        slug="outside-roots",
                    )
        return real


def page(
    rows: Sequence[Any],
    limit: int = _MAX_ROWS,
    cursor: str | None = None,
    *,
    size: int = MAX_BYTES,
    show: Callable[[Any], Answer] = lambda row: row,
) -> Answer:
    """Return the rows from `cursor` on, at most `limit` and about `size` bytes.

    `cursor` is `next_cursor` of the answer before, `size` the maximum size of the rows as JSON, but
    for the first. `show` returns the fields of a row; it is called only for those returned. Raises
    UsageError if the cursor is not one of an answer, or the limit is not 1 to _MAX_ROWS.
    """
    if not 1 <= limit <= _MAX_ROWS:
        raise UsageError(f"limit {limit}: expected 1 to {_MAX_ROWS}", slug="wrong-cursor")
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 12):
        raise UsageError(
            f"cursor {cursor[:40]!r} is not `next_cursor` of an answer", slug="wrong-cursor"
        )
    first = int(cursor or 0)
    chosen: list[Any] = []
    used = 0
    for row in rows[first : first + limit]:
        row = _short(show(row))
        used += len(msgspec.json.encode(row))
        if chosen and used > size:
            break
        chosen.append(row)
    end = first + len(chosen)
    return {
        "rows": chosen,
        "rows_in_all": len(rows),
        "next_cursor": str(end) if end < len(rows) else None,
    }


def _numbered(name: str, rows: Iterable[Answer]) -> list[Answer]:
    """Return the rows with ids to cite: `finding 1`, `finding 2`, ..."""
    return [{"id": f"{name} {number}", **row} for number, row in enumerate(rows, start=1)]


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}…"
    if isinstance(value, dict):
        return {_short(key): _short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value


def _measured(fields: Answer) -> Answer:
    """Leave out figures that were not measured."""
    return {key: value for key, value in fields.items() if value is not None}


def no_breakdown(by: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown breakdown."""
    hint = f"known: {', '.join(known)}"
    return UsageError(f"no breakdown {by!r}", hint=hint, slug="no-breakdown")


# The tools, without `run`.
_OTHERS = ("reports", "run")
READING_TOOLS = tuple(
    name for name in vars(ReportTools) if not name.startswith("_") and name not in _OTHERS
)

_INSTRUCTIONS = (
    "Performance of PyTorch training and inference, measured by uprof or recorded by other "
    "profilers. Begin with open_report, then summary and findings; use breakdown, source_cost, "
    "timeline_slice and what_if for details, compare for two runs, cluster_findings for many "
    "ranks. Figures have their unit in the key; null or a missing key is not measured. Cite the "
    "ids of findings and rows. Arguments of most tools: path, a file or directory; report, the "
    "number of a report in a directory, see open_report; limit, the maximum number of rows; "
    "cursor, next_cursor of the answer before if it is not null, for more rows."
)
_CONVERT = "if it is a recording of another profiler, use the tool convert"
# Maximum number of reports listed as resources; others are read by their path.
_MAX_RESOURCES = 200


class _MalformedAnswered:
    """Messages of a client without the malformed ones, which the SDK would drop in silence.

    JSON-RPC 2.0 answers those with -32700 (not JSON) or -32600 (not a message), and a null id.
    """

    def __init__(self, messages: Any, answers: Any) -> None:
        self._messages, self._answers = messages, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    def __aiter__(self) -> _MalformedAnswered:
        return self

    async def __anext__(self) -> Any:
        from mcp.shared.message import SessionMessage
        from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError

        while isinstance(message := await self._messages.__anext__(), Exception):
            # The SDK passes on what its validation (pydantic) raised, which lists the problems.
            problems = message.errors() if hasattr(message, "errors") else []
            is_json = all(one["type"] != "json_invalid" for one in problems)
            code, why = (PARSE_ERROR, "not JSON")
            if is_json:
                code, why = (INVALID_REQUEST, "not a JSON-RPC message")
            error = ErrorData(code=code, message=why)
            answer = JSONRPCError(jsonrpc="2.0", id=None, error=error)
            await self._answers.send(SessionMessage(answer))
        return message

    async def __aenter__(self) -> _MalformedAnswered:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._messages.aclose()


def make_server(tools: ReportTools, *, allow_run: bool = False) -> Any:
    """Return the server over the official SDK; `run()` serves stdio until the client closes it.

    Raises UsageError if the SDK is not installed.
    """
    hint = "pip install 'unified-prof[mcp]'"
    with missing_package("the MCP SDK (2 or newer) is not installed", hint=hint):
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ResourceError, ToolError
        from mcp.server.mcpserver.resources import FunctionResource
        from mcp.server.stdio import stdio_server
        from mcp.types import ToolAnnotations

    def answering(method: Callable[..., Answer], kind: type[Exception]) -> Callable[..., str]:
        """Return the method with its answer as JSON, and errors of uprof as errors of the SDK."""

        @functools.wraps(method)
        def call(*args: Any, **values: Any) -> str:
            try:
                return msgspec.json.encode(method(*args, **values)).decode()
            except UprofError as err:
                hint = _CONVERT if err.slug == "not-a-report" else err.hint
                hint = f" ({hint})" if hint else ""
                raise kind(f"{_short(str(err))}{_short(hint)} [uprof:{err.slug}]") from None
            except OSError as err:  # a file that vanished, a name that is too long
                raise kind(f"cannot read: {err.strerror} [uprof:cannot-read]") from None

        return call

    class Server(MCPServer):
        async def run_stdio_async(self) -> None:
            async with stdio_server() as (messages, answers):
                options = self._lowlevel_server.create_initialization_options()
                answered = _MalformedAnswered(messages, answers)
                await self._lowlevel_server.run(answered, answers, options)

    server: Any = Server("uprof", version=VERSION, instructions=_INSTRUCTIONS, log_level="ERROR")
    for name in (*READING_TOOLS, *(["run"] if allow_run else [])):
        notes = ToolAnnotations(read_only_hint=name != "run", open_world_hint=name == "run")
        tool = answering(getattr(tools, name), ToolError)
        described = server.tool(
            name=name, description=inspect.getdoc(tool), annotations=notes, structured_output=False
        )
        described(tool)
        # By default, the SDK ignores arguments that a tool does not have.
        made = server._tool_manager.get_tool(name)
        made.fn_metadata.arg_model.model_config["extra"] = "forbid"
        made.fn_metadata.arg_model.model_rebuild(force=True)
        made.parameters["additionalProperties"] = False
    for path in tools.reports()[:_MAX_RESOURCES]:
        server.add_resource(
            FunctionResource(
                uri=f"uprof://report/{quote(path, safe='')}",
                name=path,
                description="Headline of this report",
                mime_type="application/json",
                fn=functools.partial(answering(tools.summary, ResourceError), path),
            )
        )
    return server
