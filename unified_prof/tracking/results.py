"""Convert the complete iterations of a session to the records of a run."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unified_prof.base.process_tuning import processors
from unified_prof.base.run_spec import (
    MEMORY,
    RUN_TIME,
    SCOPES,
    ActivationRecord,
    IterationRecord,
    OperationRecord,
    TrackedRun,
    WeightRecord,
)
from unified_prof.base.text import ms_to_ns, source_hash
from unified_prof.errors import CaptureError
from unified_prof.tracking.assemble import (
    ReportRegions,
    SelectedCalls,
    SiteTable,
    build_activations,
    build_operations,
    is_same_kind,
    select_calls,
)
from unified_prof.tracking.lockstep import note_compiled
from unified_prof.tracking.operations import ActivationTracker, count_irregularities
from unified_prof.tracking.raw_calls import CallSites, MeasuredIteration
from unified_prof.tracking.stack_walker import Scope
from unified_prof.tracking.torch_names import OPERATIONS, Anomalies

if TYPE_CHECKING:
    from unified_prof.tracking.session import Session

_MAX_OUTSIDE = 8  # Number of operations outside of the report's scope that are noted.
_MAX_SOURCES, _MAX_SOURCE_BYTES = 200, 4 << 20  # Limits of the source files whose hash is noted.


class Results:
    """Creates the records of a session without changing it; `complete`: all of it was measured."""

    def __init__(self, session: Session, *, complete: bool) -> None:
        self._session = session
        self._complete = complete
        self._facts = dict(session.facts)
        self._anomalies = Anomalies()
        self._anomalies.merge(session.anomalies)

    def run(self) -> TrackedRun | None:
        """Return the records; None if no iteration is complete.

        Raises CaptureError if iterations are complete, but contain nothing to measure.
        """
        session = self._session
        times = session.iterations_of(session.run_time, RUN_TIME)
        saves = session.iterations_of(session.memory, MEMORY)
        if not times and not saves:
            return None
        if "whole_program" not in self._facts:
            self._note_set_up((times, "run times"), (saves, "weights and activations"))
        self._require_device()
        table, operations, records, usual = self._shown(times or saves)
        with self._anomalies.recording_failures(
            "oddities_not_looked_for", "irregularities of the iterations"
        ):
            count_irregularities(times or saves, self._anomalies)
        self._note_left_out()
        weights: tuple[WeightRecord, ...] = ()
        activations: tuple[ActivationRecord, ...] = ()
        if saves:
            weights, activations = self._memory(saves[-1], table, usual, times)
        regions = ReportRegions(
            session.regions.regions, (*operations, *activations), usual.iteration
        )
        elsewhere = session.untracked_work.in_threads and session.untracked_work.reason()
        if elsewhere and not session.run_time.count:
            self._facts["not_tracked"] = elsewhere[0]
        self._note_peak()
        self._note_device()
        if lines := {part: line for part, line in session.run_time.part_lines.items() if line}:
            self._facts["part_lines"] = json.dumps(lines)
        if repeated_ms := np.median([one.repeated_ms for one in times] or [0.0]):
            self._facts["repeated_backward_ns"] = str(ms_to_ns(float(repeated_ms)))
        if (starts := session.interception.loader_starts) > 1:
            self._facts["batches_per_worker_start"] = str(
                session.interception.loader_batches // starts
            )
        if session.interception.largest_batch:
            self._facts["largest_batch"] = str(session.interception.largest_batch)
        if grown := _growing_sequence(
            session.interception.lengths, session.run_time.lengths, times
        ):
            self._facts["growing_sequence"] = json.dumps(grown)
        if times and (outside := _operations_outside(times[-1], table, session.sites)):
            self._facts["operations_outside"] = json.dumps(outside)
        if session.run_time.detects_anomalies:
            self._facts["detect_anomaly"] = "on"
        if any(samples := session.run_time.samples):
            self._facts["samples_per_iteration"] = f"{sum(samples) / len(samples):g}"
        self._note_sources((*operations, *weights, *activations))
        self._note_end()
        if session.spec.turns is not None:
            note_compiled(self._facts)
        return TrackedRun(
            device=session.device.describe(),
            operations=regions.renumber(operations) if times else (),
            weights=weights,
            activations=regions.renumber(activations),
            iterations=records,
            peak_usage_bytes=session.peak.peak_bytes,
            complete=self._complete and not session.faults,
            anomalies=dict(self._anomalies),
            facts={**self._environment(), **self._facts, "scope": table.scope.name},
            regions=regions.records(times or saves, session.peak.region_peaks),
        )

    def _note_sources(
        self, records: Sequence[OperationRecord | WeightRecord | ActivationRecord]
    ) -> None:
        """Note a hash of each source file, by which an editor recognizes later changes."""
        root = self._session.spec.project_root
        files = sorted({frame.file_path for one in records for frame in one.frames})[:_MAX_SOURCES]
        found = {file: digest for file in files if (digest := _source_hash(root / file))}
        if found:
            self._facts["source_hashes"] = json.dumps(found)

    def _note_set_up(self, *measured: tuple[Sequence[MeasuredIteration], str]) -> None:
        for found, what in measured:
            if found and found[0].with_setup:
                self._anomalies.add(
                    "first_iteration_reported",
                    f"the program ended before a second iteration was complete: {what} are from "
                    "the first one, without warm-up",
                )

    def _require_device(self) -> None:
        found = self._session.first_iteration.devices | self._session.memory.devices
        if found and self._session.device.kind not in found:
            others = " and ".join(sorted(found))
            raise CaptureError(
                f"the workload ran on {others}, not on {self._session.device.kind}",
                hint=f"run: uprof run --backend {sorted(found)[0]}, or move the model to "
                f"{self._session.device.kind}",
                slug="wrong-device",
            )

    def _shown(
        self, iterations: Sequence[MeasuredIteration]
    ) -> tuple[SiteTable, tuple[OperationRecord, ...], tuple[IterationRecord, ...], SelectedCalls]:
        """Return the operations in the requested scope, or in a wider one if it has none.

        Raises CaptureError if there was no operation.
        """
        scope: Scope | None = Scope(self._session.spec.scope)
        while scope is not None:
            table, found = SiteTable(self._session.sites, scope), Anomalies()
            operations, records, reference = build_operations(
                [select_calls(one, table) for one in iterations], table, found
            )
            if operations:
                break
            scope = scope.wider()
        if not operations and self._session.internals.has(*OPERATIONS):
            message, hint = self._session.untracked_work.reason() or (
                "the workload ran no tensor operation, so there is nothing to report",
                "check the script: it must run a model in this process and thread",
            )
            raise CaptureError(message, hint=hint, slug="nothing-measured")
        # Scope `module` shows the operations of scripts without an nn.Module too.
        if operations and table.scope.name not in SCOPES:
            self._anomalies.add(
                "scope_widened",
                f"no operation was called from a file in {self._session.spec.project_root}: all "
                "are shown; use uprof report --by module, or uprof run --include PACKAGE for "
                "source lines in a library",
            )
        self._anomalies.merge(found)
        return table, operations, records, reference

    def _environment(self) -> dict[str, str]:
        import torch

        return {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "torch_threads": str(torch.get_num_threads()),
            "processors": str(processors()),
            "warmup": str(self._session.spec.warmup),
            "iterations": str(self._session.spec.iterations),
        }

    def _memory(
        self,
        iteration: MeasuredIteration,
        table: SiteTable,
        usual: SelectedCalls,
        times: Sequence[MeasuredIteration],
    ) -> tuple[tuple[WeightRecord, ...], tuple[ActivationRecord, ...]]:
        """Return the weights, and the bytes saved by the operations of an iteration."""
        session, anomalies = self._session, self._anomalies
        memory: ActivationTracker = (
            session.memory if session.memory.count else session.first_iteration
        )
        weights: tuple[WeightRecord, ...] = ()
        activations: tuple[ActivationRecord, ...] = ()
        anomalies.merge(memory.irregularities)
        with anomalies.recording_failures("weights_not_listed", "the weights"):
            weights = tuple(weight.shown_in(table.scope) for weight in memory.weight_records)
            types: Counter[str] = Counter()
            for weight in memory.weight_records:
                types[weight.dtype] += weight.record.size_bytes
            self._facts["weight_types"] = json.dumps(types)
        saved_bytes = memory.saved_bytes[-1]
        with anomalies.recording_failures("activations_not_listed", "the activations"):
            self._facts |= memory.program_settings
            if memory.optimizer_state_bytes:
                self._facts["optimizer_state_bytes"] = str(memory.optimizer_state_bytes)
            if saved_bytes is not None:
                activations, other_bytes = build_activations(iteration, saved_bytes, table)
                self._facts["saved_bytes_of_no_operation"] = str(other_bytes)
                self._facts["most_saved_bytes_at_once"] = str(memory.most_saved_bytes)
            # Graphs of the last iterations may exist, so later ones must be complete.
            last = None if session.peak.peak_bytes is None else memory.last_saved
            if last is not None and (size := last.kept_bytes()):
                self._facts["kept_activation_bytes"] = str(size)
            if memory.untrained:
                self._facts |= _untrained(iteration, memory.untrained, times, session.sites)
        if memory.wasted is not None:
            self._facts |= memory.wasted.facts
            with anomalies.recording_failures("repeated_work_not_listed", "repeated work"):
                known = _repeated_work(iteration, memory.wasted.calls, table)
                self._facts |= {"repeated_work": json.dumps(known)} if known else {}
        if not is_same_kind(select_calls(iteration, table), usual):
            anomalies.add(
                "activations_of_another_sequence",
                "activations were measured in an iteration that differs from most others",
            )
        return weights, activations

    def _note_peak(self) -> None:
        peak = self._session.peak
        if MEMORY in self._session.spec.reports and peak.peak_bytes is None:
            reason = peak.failure or "no complete iteration was left to measure it"
            self._anomalies.add("peak_usage_not_measured", reason)
        self._facts |= peak.facts

    def _note_left_out(self) -> None:
        """Record that only some of very many iterations are reported."""
        tracker = self._session.run_time
        self._anomalies.merge(tracker.irregularities_left_out)
        self._anomalies.add(
            "iterations_left_out",
            f"to limit memory, one in {tracker.one_in} of {tracker.count:,} measured iterations is "
            "reported",
            tracker.left_out,
        )

    def _note_end(self) -> None:
        session = self._session
        self._anomalies.add(
            "regions_not_recorded",
            "the program opens too many regions: some operations are assigned to the region "
            "around their own",
            session.regions.regions.dropped,
        )
        if session.interception.eager_calls:
            self._anomalies.add(
                "compiled_functions_ran_eagerly",
                "functions compiled before tracking began ran uncompiled",
                session.interception.eager_calls,
            )
        if not self._complete and not session.measured_each_kind:
            self._anomalies.add("run_not_complete", session.incomplete)

    def _note_device(self) -> None:
        """Record limits of the times of operations on a device."""
        for one in self._session.run_time.available_iterations:
            if not one.untracked:
                self._anomalies.add(
                    "iteration_not_timed_as_a_whole",
                    "its duration contains the overhead of tracking its operations",
                )
        events = self._session.run_time.events
        if events is None:
            return
        self._facts |= self._switches()
        if events.timed:
            self._facts["intervals_reached_by_device"] = f"{events.caught_up} of {events.timed}"
            self._facts["event_cost_ns"] = str(ms_to_ns(events.event_ms))
        self._anomalies.add(
            "operations_in_graphs",
            "operations captured into a graph are not timed; --report timeline shows them",
            events.in_capture,
        )
        self._anomalies.add(
            "graphs_replayed",
            "operations of replayed graphs are not timed; --report timeline shows them",
            self._session.graphs.count,
        )
        self._note_other_streams()

    def _switches(self) -> dict[str, str]:
        """Return the devices in use, and settings that affect their times."""
        import torch

        used = ", ".join(
            f"{self._session.device.kind}:{one}" for one in sorted(self._session.device.used)
        )
        facts = {"devices_used": used} if used else {}
        with suppress(Exception):
            facts["float32_matmul_precision"] = torch.get_float32_matmul_precision()
        return facts

    def _note_other_streams(self) -> None:
        """Record work on streams other than the stream on which its operation was called."""
        untimed = "work that operations enqueue on other streams is not in their times"
        recorded = [getattr(one, "facts", {}) for one in self._session.instruments]
        for facts in recorded:
            if beside := facts.get("timeline_work_beside_main_streams"):
                self._anomalies.add("work_beside_main_streams", f"{untimed}: {beside}")
        distributed = sys.modules.get("torch.distributed")
        if recorded or distributed is None or not distributed.is_available():
            return
        if distributed.is_initialized() and distributed.get_backend() != "gloo":
            self._anomalies.add(
                "work_beside_main_streams",
                f"{untimed}: neither are collectives; --report timeline shows them",
            )


def _operations_outside(
    iteration: MeasuredIteration, table: SiteTable, sites: CallSites
) -> list[tuple[str, str, int, int]]:
    """Return the longest operations of the project that the report does not show, such as metrics.

    Each has its name, line, number of calls and time in ns; those of backward passes are left out.
    """
    project = SiteTable(sites, Scope("project"))
    count: Counter[tuple[str, str]] = Counter()
    times_ns: Counter[tuple[str, str]] = Counter()
    in_backward = (~np.isnan(iteration.backward_ms)).tolist()
    for index, number in enumerate(iteration.sites.tolist()):
        site = project.site(number, with_setup=iteration.with_setup)
        shown = table.site(number, with_setup=iteration.with_setup).kept
        if site.kept and site.line and not (shown or in_backward[index]):
            key = site.name, site.line
            count[key] += 1
            times_ns[key] += ms_to_ns(float(np.nan_to_num(iteration.forward_ms[index])))
    return [(*key, count[key], ns) for key, ns in times_ns.most_common(_MAX_OUTSIDE)]


def _untrained(
    iteration: MeasuredIteration,
    calls: Collection[int],
    times: Sequence[MeasuredIteration],
    sites: CallSites,
) -> dict[str, str]:
    """Return the backward time and the line of calls whose gradients no optimizer uses.

    The result is empty if no timed iteration has the same calls.
    """
    rows, table = np.array(sorted(calls)), SiteTable(sites, Scope("project"))
    timed = [
        np.nan_to_num(one.backward_ms[rows])
        for one in times
        if np.array_equal(one.sites, iteration.sites)
    ]
    if not timed:
        return {}
    lines: Counter[str] = Counter()
    for call, ms in zip(rows.tolist(), np.median(timed, axis=0).tolist(), strict=True):
        site = table.site(int(iteration.sites[call]), with_setup=iteration.with_setup)
        lines[site.line or ""] += ms_to_ns(ms)
    return {"untrained_backward": json.dumps([lines.total(), lines.most_common(1)[0][0]])}


_MIN_LENGTHS = 8  # Minimum number of calls of a model for sequences to be generated.
_REGULAR = 0.75  # Minimum share of the calls whose sequences are longer by the same number.


def _growing_sequence(
    lengths: Sequence[tuple[int, ...]],
    measured: Mapping[int, tuple[int, ...]],
    times: Sequence[MeasuredIteration],
) -> list[int]:
    """Return what earlier positions cost if sequences grow from call to call of a model.

    Args:
        lengths: Lengths of the arguments of successive calls.
        measured: The same of the samples, by their number.
        times: Iterations of the samples.

    Returns:
        Time of the positions that were known before, in ns, and the median length. Empty if
        sequences do not grow, or if an argument has only new positions, as with a KV cache.
    """
    size = len(lengths[0]) if lengths else 0
    if len(lengths) < _MIN_LENGTHS or any(len(one) != size for one in lengths):
        return []
    table = np.array(lengths).reshape(len(lengths), size)
    steps = np.diff(table, axis=0)
    for column in range(size):
        new, count = Counter(steps[:, column].tolist()).most_common(1)[0]
        if new <= 0 or count < _REGULAR * len(steps) or (np.median(table, axis=0) <= new).any():
            continue
        points = [
            (measured[one.number][column], float(np.nansum(one.forward_ms)))
            for one in times
            if len(measured.get(one.number, ())) == size
        ]
        # The median of the slopes between two samples ignores single slow ones.
        slopes = [(b - a) / (m - n) for (n, a), (m, b) in combinations(points, 2) if m != n]
        if slopes:
            length = float(np.median([n for n, _ in points]))
            known_ms = max(0.0, float(np.median(slopes)) * (length - new))
            return [ms_to_ns(known_ms), round(length)]
    return []


def _repeated_work(
    iteration: MeasuredIteration, calls: Mapping[int, str], table: SiteTable
) -> list[dict[str, str | int]]:
    """Return the calls that computed known values, by operation and line."""
    rows: dict[tuple[str, str], Counter[str]] = {}
    for index, number in enumerate(iteration.sites.tolist()):
        site = table.site(number, with_setup=iteration.with_setup)
        if site.kept and site.line:
            rows.setdefault((site.name, site.line), Counter())[calls.get(index, "new")] += 1
    return [
        {"name": name, "line": line, "calls": count.total(), **count}
        for (name, line), count in rows.items()
        if count.keys() != {"new"}
    ]


@cache
def _source_hash(path: Path) -> str | None:
    """Return the hash of a source file when it is first asked for; None if it cannot be read."""
    try:
        if path.is_file() and path.stat().st_size <= _MAX_SOURCE_BYTES:
            return source_hash(path.read_bytes())
    except OSError:  # code without a file, such as a notebook cell
        pass
    return None
