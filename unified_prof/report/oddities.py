"""Anomalies as people read them.

Their names in a report's file are for programs and never change; where a name alone is hard to
understand, the words for it stand here.
"""

from __future__ import annotations

from unified_prof.analysis.model import Anomaly
from unified_prof.report import words

_WORDS = {
    "activations_of_another_sequence": "activations come from an iteration with other operations",
    "allocation_without_release": "memory not released before the recording ended",
    "ambiguous_forward_operation": "backward work with several possible forward operations",
    "ambiguous_launch": "device work with several possible launching calls",
    "backward_not_followed": "backward passes without times by operation",
    "backward_nodes_not_of_this_iteration": "backward pass through the graph of another iteration",
    "backward_without_forward": "backward work without a forward operation",
    "compiled_functions_ran_eagerly": "compiled functions ran uncompiled while measured",
    "duplicate_correlation": "correlation ids used more than once",
    "first_iteration_reported": "only the first iteration was measured, set-up included",
    "impossible_communication_time": "collectives with impossible times, left out",
    "impossible_host_time": "host ranges with impossible times, left out",
    "impossible_size": "impossible sizes, left out",
    "impossible_step_time": "steps with impossible times, left out",
    "impossible_task_time": "device tasks with impossible times, left out",
    "impossible_time": "impossible times, left out",
    "incomplete_file": "the file is incomplete",
    "loss_not_finite": "the loss was infinite or not a number",
    "loss_not_read": "whether the loss is finite could not be looked at",
    "measuring_failed": "a part of the measurement failed in uprof itself",
    "odd_schema": "unusual schema",
    "path_clocks": "critical path: the clocks of host and device differ",
    "path_of_first_steps": "critical path of the first steps",
    "path_without_device": "critical path of the host alone",
    "path_without_events": "critical path without events",
    "path_without_host": "critical path of the devices alone",
    "path_without_launches": "critical path with launches missing",
    "path_without_steps": "critical path of the whole recording",
    "peak_usage_not_measured": "peak memory could not be measured",
    "release_without_allocation": "memory released that was allocated before the recording began",
    "replay_of_several_captures": "replayed graphs that may be of several captures",
    "replay_without_capture": "replayed graphs whose capture was not recorded",
    "replay_without_nodes": "replayed graphs whose kernels cannot be told apart",
    "run_not_complete": "the run ended before all iterations were measured",
    "saved_bytes_of_no_operation": "memory kept for the backward pass outside any operation",
    "scope_widened": "more than the scope that was asked for is shown",
    "task_without_launch": "device work whose launching call was not recorded",
    "unfinished_event": "events that the recording ended in the middle of",
    "unmatched_iterations": "iterations with other operations, left out of the medians",
    "unpaired_event": "events with a beginning or an end only",
    "weights_never_initialised": "lazy parameters that were never initialised",
    "weights_on_another_device": "parameters on another device",
}


def name(anomaly_name: str) -> str:
    """Return what kind of anomaly it is, in words."""
    return _WORDS.get(anomaly_name, words.neutral(anomaly_name.replace("_", " ")))


def case(anomaly: Anomaly) -> str:
    """Return its first case and how often it occurred."""
    times = "once" if anomaly.count == 1 else f"{words.number(anomaly.count)} times"
    if anomaly.detail is None or not anomaly.detail:
        return times
    detail = words.neutral(anomaly.detail)
    return detail if anomaly.count == 1 else f"{detail} ({times})"
