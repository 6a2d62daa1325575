"""Analysis of an msprof database of any version and device, with or without PyTorch tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice, starmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.base.text import CAPTURE_FACT, most_alike, shared_prefix
from unified_prof.errors import UprofError, UsageError
from unified_prof.explain import basic_breakdowns
from unified_prof.explain.advice import registry
from unified_prof.explain.report_questions import Analysis, Change, WhatIfResult
from unified_prof.explain.roofline import breakdown as roofline
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.arguments import SIZES, dtype_of, split
from unified_prof.recording import counters, timeline
from unified_prof.recording import source as provenance
from unified_prof.recording.breakdowns import Stacks
from unified_prof.recording.calls import (
    COMMUNICATION,
    COPY,
    KERNEL,
    SUMMED,
    Calls,
    PackedCalls,
    kernel_statistics,
)
from unified_prof.recording.collectives import Group
from unified_prof.recording.idle import IdleReasons
from unified_prof.recording.model import (
    KINDS,
    Advice,
    Breakdown,
    By,
    DeviceTime,
    Distribution,
    Kind,
    ModelUse,
    NotMeasured,
    Place,
    PmuFigure,
    Row,
    Series,
    Step,
    Summary,
    Totals,
)
from unified_prof.recording.recording import Recording, breakdown_spec
from unified_prof.recording.source import (
    Source,
    file_anomalies,
    recorded_anomalies,
    recorded_coverage,
)
from unified_prof.recording.steps import StepTrace, step_of
from unified_prof.recording.timeline import Timeline, Track
from unified_prof.sqlite.reader import open_report

if TYPE_CHECKING:
    from unified_prof.recording.host_lanes import HostThreads, IdleLane

_NEVER_SOON, _NEVER = np.iinfo(np.int32).max, np.iinfo(np.int64).max


class MsprofAnalysis(Analysis):
    """One msprof database."""

    def __init__(self, source: Source, captured_in: Source | None = None) -> None:
        capture = None if captured_in is None else Recording(captured_in)
        self.recording = Recording(source, capture)

    @property
    def calls(self) -> Calls:
        """Framework operations and other device tasks; host ranges without device tasks."""
        return self.recording.calls

    @property
    def packed_calls(self) -> PackedCalls:
        """The same calls in windows."""
        return self.recording.packed_calls

    @property
    def path(self) -> str:
        """Path of the database."""
        return str(self.recording.source.path)

    @property
    def family(self) -> str:
        """Family of the database schema."""
        return self.recording.source.family

    @cached_property
    def summary(self) -> Summary:
        """Headline figures."""
        recording, totals = self.recording, self._totals()
        return Summary(
            path=self.path,
            family=self.family,
            revision=recording.source.revision or "unknown",
            clock=recording.clock,
            facts=tuple(provenance.facts(recording.source)),
            totals=totals,
            devices=tuple(self._device_time(name) for name in recording.devices),
            anomalies=(
                *file_anomalies(recording.source),
                *recorded_anomalies(recording.source),
                *recording.findings.anomalies(),
            ),
            not_measured=tuple(self._not_measured(totals)),
            available=self._available,
            coverage=recorded_coverage(recording.source),
        )

    def breakdown(self, by: By) -> Breakdown:
        """Return the breakdown `by`."""
        kind = KINDS[by]
        if not breakdown_spec(kind).supports(self.recording):
            raise UsageError(
                f"{self.path} has no breakdown by {by}: {kind.why_not}",
                hint=f"available: {', '.join(self._offered(KINDS.values())) or 'none'}",
                slug="no-breakdown",
            )
        return breakdown_spec(kind).compute(self.recording)

    def steps(self) -> tuple[Step, ...]:
        """Return the recorded steps in order, each until the end of its device tasks."""
        return tuple(
            Step(name, length_ns)
            for (name, *_), length_ns in zip(
                self.recording.steps, self.recording.step_lengths_ns, strict=True
            )
        )

    def step_spans(self, *, on_device: bool = False) -> tuple[tuple[str, int, int], ...]:
        """Return name, begin and end of each step on the host, or on the device if there is one."""
        steps = self.recording.steps
        if on_device and len(windows := self.recording.step_windows) == 1:
            ((begin, end),) = ((one.start_ns, one.end_ns) for one in windows.values())
            names = (name for name, *_ in steps)
            return tuple(zip(names, begin.tolist(), end.tolist(), strict=True))
        return tuple(steps)

    def step_traces(self) -> tuple[StepTrace, ...]:
        """Return the steps as torch_npu counts them."""
        return self.recording.step_traces

    def why_idle(self) -> tuple[IdleReasons, ...]:
        """Return the idle time of each device by reason, in total and per step."""
        if self.recording.clock != "device":
            return ()
        return tuple(
            self.recording.idle_time.totals(self.recording.steps, self.recording.step_windows)
        )

    def model_use(self) -> tuple[ModelUse, ...]:
        """Return the FLOP/s and MFU of each device."""
        if not peaks.is_quick(self.recording) or not peaks.is_available(self.recording):
            return ()
        return roofline.roofline_of(self.recording).use

    def advice(self, *, quick: bool = False) -> Advice:
        """Return the findings, most expensive first."""
        advice = registry.advise(self.recording, quick=quick)
        if advice.replayed_share:
            facts = dict(provenance.facts(self.recording.source))
            advice = replace(advice, capture=_capture_beside(Path(self.path), facts))
        if not advice.findings and "CANN_API" in self.recording.source.tables:
            advice = replace(advice, captures=bool([*self.recording.source.rows(_CAPTURES)]))
        return advice

    def path_track(self) -> Track | None:
        """Return the critical path of the steps as a track."""
        from unified_prof.explain import critical_path  # most reports need none

        return critical_path.track(self.recording)

    def what_if(
        self, changes: Sequence[Change], *, top: int = 10, device: str | None = None
    ) -> WhatIfResult:
        """Estimate the gain of changes; without changes, of the best candidates."""
        from unified_prof.explain.critical_path import estimate

        return estimate(self.recording, changes, top=top, device=device)

    def groups(self) -> dict[str, Group]:
        """Return the groups of META_DATA.parallel_group_info that collectives ran in."""
        return self.recording.collective_names.known_groups

    def statistics(self, by: By) -> dict[tuple[str, str], Mapping[str, float | None]]:
        """Return the distribution of times of each kernel or operation."""
        if self.recording.clock != "device":
            return super().statistics(by)
        work = self.recording.work
        if by == "kernel":
            return kernel_statistics(work.by_kernel())
        launches = work.launches_of_operations() if by == "operation" else {}
        found = super().statistics(by)
        return {
            name: {**figures, "launches": launches.get(name)} for name, figures in found.items()
        }

    def kernels_of_operations(self, *, in_steps: bool = True) -> list[tuple[str, Row]]:
        """Return the kernels of each operation; if `in_steps` and there are steps, of the steps."""
        if self.recording.clock != "device":
            return []
        return self.recording.work.kernels_of_operations(self.recording.steps if in_steps else ())

    @property
    def has_places(self) -> bool:
        """True if operations of the framework were recorded."""
        return self.recording.clock != "device" or self.recording.has_operations

    def summed_calls(self, *, above: int) -> Calls | None:
        """Return one call per operation if there are more than `above` calls."""
        recording = self.recording
        if self.has_places or recording.steps or len(recording.work) <= above:
            return None
        return recording.work.summed()

    def steps_of_calls(self) -> tuple[int, Callable[[Calls], Ints]] | None:
        """Return the number of steps, and a function that returns the step of calls."""
        steps = self.recording.steps
        if not steps:
            return None

        def step(calls: Calls) -> Ints:
            assert calls.start_ns is not None, "calls of a recording have start times"
            return step_of(calls.start_ns.astype(np.int64), steps)

        return len(steps), step

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """Weights of `stacks`."""
        return basic_breakdowns.measures(self.recording)

    def stacks(self, measure: str, by: Place | None = None) -> Stacks:
        """Return the call stacks of device time, host time or allocations."""
        return basic_breakdowns.stacks(self.recording, measure, by)

    def input_types(self) -> dict[str, tuple[str, ...]]:
        """Return the dtypes of the inputs of each operation by name, of host-only recordings."""
        recording = self.recording
        if recording.clock == "device" or recording.framework is None:
            return {}
        found: dict[str, set[str]] = {}
        for number, types in recording.source.rows(_TYPES):
            kinds = map(dtype_of, split(recording.strings.get(types)))
            found.setdefault(recording.strings.get(number) or "", set()).update(
                kind for kind in kinds if kind in SIZES
            )
        return {name: tuple(sorted(kinds)) for name, kinds in found.items() if kinds}

    def launch_latency(self) -> Distribution | None:
        """Return the launch latency: from the start of a launch to its first device task."""
        tasks, calls = self.recording.tasks, self.recording.host_calls
        if not len(tasks) or not len(calls):
            return None
        # Four bytes per call unless a launch latency exceeds two seconds.
        delay: NDArray[np.integer] = np.full(len(calls), _NEVER_SOON, np.int32)
        for rows in tasks.windows():
            row = calls.launching(rows.connection)
            linked = np.flatnonzero((row >= 0) & np.isin(rows.kind, (KERNEL, COPY, COMMUNICATION)))
            if not len(linked):
                continue
            row = row[linked]
            took = rows.start_ns[linked] - calls.start_ns[row]
            if delay.dtype == np.int32 and (
                int(took.max()) >= _NEVER_SOON or int(took.min()) < -_NEVER_SOON
            ):
                delay = np.where(delay == _NEVER_SOON, np.int64(_NEVER), delay)
            np.minimum.at(delay, row, took.astype(delay.dtype))
        return Distribution.from_values(delay[delay != np.iinfo(delay.dtype).max])

    def timeline(self, limit: int | None = None) -> Timeline | None:
        """Return the device's work over time."""
        return timeline.build(
            self.recording.tasks, self.recording.comms, self.recording.collective_names, limit=limit
        )

    def host_threads(self, work: Timeline | None, limit: int) -> HostThreads | None:
        """Return ranges of host threads over time."""
        from unified_prof.recording import host_lanes  # only pages need it

        recording = self.recording
        return host_lanes.build(
            recording.framework,
            recording.host_calls,
            recording.python_calls,
            recording.strings,
            work,
            recording.steps,
            limit,
        )

    def idle_lanes(self, limit: int) -> tuple[IdleLane, ...]:
        """Return the gaps of the devices with their reasons."""
        from unified_prof.recording import host_lanes

        recording = self.recording
        return host_lanes.build_idle_lanes(recording.idle_time, [*recording.devices], limit)

    def tracks(self) -> Iterator[Track]:
        """Yield streams and host threads as tracks of slices."""
        return timeline.tracks(
            self.recording.source,
            self.recording.tasks,
            self.recording.comms,
            self.recording.collective_names,
            self.recording.strings,
        )

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""
        return counters.memory_series(self.recording.source, self.recording.strings)

    def counter_series(self) -> tuple[Series, ...]:
        """Return bandwidths and frequencies over time, rates of copies and queues of streams."""
        recording = self.recording
        return (
            *counters.counter_series(recording.source, recording.strings),
            *timeline.copy_rates(recording.source, recording.tasks),
            *basic_breakdowns.series(recording),
        )

    def pmu(self) -> tuple[PmuFigure, ...]:
        """Return hardware counters by operator type."""
        return counters.pmu_figures(self.recording.source)

    def _device_time(self, name: str) -> DeviceTime:
        work = self.recording.devices[name]
        found = work.time(name)
        windows = self.recording.step_windows.get(name)
        return (
            found if windows is None else structs.replace(found, steps=work.time(name, windows.all))
        )

    @cached_property
    def _available(self) -> tuple[By, ...]:
        usual = [kind for kind in KINDS.values() if not kind.when_asked]
        found = self._offered(usual)
        return tuple(by for by in found if breakdown_spec(KINDS[by]).is_quick(self.recording))

    def _offered(self, kinds: Iterable[Kind]) -> list[By]:
        return [kind.by for kind in kinds if breakdown_spec(kind).supports(self.recording)]

    def _totals(self) -> Totals:
        recording, count = self.recording, None
        if recording.clock == "device" and not recording.has_operations:
            # Without operations, calls are device tasks, which only have times.
            sums = dict.fromkeys(SUMMED, None) | {"total_ns": recording.work.total_ns}
            count = len(recording.work)
        else:
            sums = recording.packed_calls.sums()
            if recording.clock != "none":
                count = recording.packed_calls.count_measured("total_ns")
        steps = recording.step_lengths_ns
        return Totals(
            total_ns=sums["total_ns"],
            forward_ns=sums["forward_ns"],
            backward_ns=sums["backward_ns"],
            other_ns=recording.work.other_pass_ns() if recording.clock == "device" else None,
            count=count,
            peak_bytes=counters.peak_memory(recording.source, recording.strings),
            iteration_ns=int(np.median(steps)) if steps else None,
            iteration_p90_ns=int(np.percentile(steps, 90, method="higher"))
            if len(steps) > 1
            else None,
            iterations=len(steps) or None,
        )

    def _not_measured(self, totals: Totals) -> list[NotMeasured]:
        recording = self.recording
        has_device, has_operations = recording.clock == "device", recording.has_operations
        if recording.has_memory_blocks and recording.clock == "none":
            return [NotMeasured("times", "a memory snapshot has none")]
        missing: dict[str, str] = {}
        if not has_device:
            rest = "; times are host times" if recording.clock == "host" else " (table TASK)"
            missing["device time"] = f"no device tasks recorded{rest}"
        elif not has_operations:
            missing["forward and backward times, modules, source lines"] = (
                "no framework operations recorded (table PYTORCH_API)"
            )
        elif totals.backward_ns is None:
            missing["backward times"] = "no device tasks were launched in a backward pass"
        for by in ("module", "line", "step") if has_operations else ("step",):
            if by not in self._available:
                missing[f"time by {by}"] = KINDS[by].why_not
        if totals.peak_bytes is None:
            missing["peak memory"] = "memory use not recorded"
        return list(starmap(NotMeasured, missing.items()))


_MAX_SEARCHED = 16  # Maximum reports of a directory that are searched for captured graphs.


def _capture_beside(path: Path, facts: Mapping[str, str]) -> str | None:
    """Return the report with captured graphs beside a report, else a trace that is named so.

    The trace is one beside the recording of the report (see `CAPTURE_FACT`). If there are several
    reports with captures, it is the one whose name begins like that of the report.
    """
    near = sorted(path.parent.glob("*.db"), key=lambda one: -shared_prefix(one.name, path.name))
    reports = (one for one in near if one.name != path.name)
    found = []
    for report in islice(reports, _MAX_SEARCHED):
        with suppress(UprofError), open_report(report, any_revision=True) as opened:
            if opened.rows(_CAPTURES):
                found.append(report.name)
    if not found:
        return facts.get(CAPTURE_FACT)
    name = most_alike(path.name, found)
    return None if name is None else str(path.with_name(name))


_TYPES = "SELECT DISTINCT name, inputDtypes FROM PYTORCH_API WHERE inputDtypes IS NOT NULL"
_CAPTURES = """
    SELECT 1 FROM CANN_API
    WHERE name IN (SELECT id FROM STRING_IDS WHERE value LIKE '%BeginCapture%') LIMIT 1
"""
