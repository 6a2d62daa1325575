"""What a recording cannot tell of its critical path."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.explain.schedule import kinds
from unified_prof.analysis.explain.schedule.built import Scheduled
from unified_prof.analysis.read.source import recorded_anomalies
from unified_prof.analysis.recording import Recording


def limits(recording: Recording, scheduled: Scheduled) -> list[tuple[str, str]]:
    """Return what a recording cannot tell of its path: a name of its own, and a sentence."""
    pieces, edges = scheduled.pieces, scheduled.schedule.edges
    found = []
    if not len(scheduled.host) and pieces.work:
        found.append(
            (
                "path_without_host",
                "no call of the host was recorded: the path is that of the devices alone, and why "
                "they were idle cannot be told",
            )
        )
    if not pieces.work:
        found.append(
            ("path_without_device", "no device work was recorded: the path is that of the host")
        )
    if not recording.steps:
        found.append(
            ("path_without_steps", "no step was recorded: the path is that of the whole recording")
        )
    if scheduled.steps_left_out:
        found.append(
            (
                "path_of_first_steps",
                f"the recording is long: its first {len(scheduled.step_names):,} steps are looked "
                f"at, {scheduled.steps_left_out:,} are not",
            )
        )
    streams = len(np.unique(pieces.stream[: pieces.work]))
    recorded = "UPROF_GPU_SYNCS" in recording.source.tables or bool(pieces.waits.any())
    if streams > 1 and not recorded:
        found.append(
            (
                "path_without_events",
                "no wait for an event was recorded: which stream waited for which is told by the "
                "times alone"
                + (" and by the order of calls" if (edges.kind == kinds.EVENT).any() else ""),
            )
        )
    unlaunched = int((pieces.call[: pieces.work] < 0).sum())
    if unlaunched and len(scheduled.host):
        found.append(
            (
                "path_without_launches",
                f"the launch of {unlaunched:,} of {pieces.work:,} pieces of device work was not "
                "recorded: what they waited for is told by their streams alone",
            )
        )
    found += [
        (
            "path_queue_full",
            f"{one.detail}: their launches stay as late as they were, so that faster work of "
            "devices may gain far more than a schedule run again tells",
        )
        for one in recorded_anomalies(recording.source)
        if one.name == "launch_queue_full"
    ]
    if pieces.skew_ns:
        found.append(
            (
                "path_clocks",
                f"work began up to {pieces.skew_ns / 1000:.1f} µs before the call that launched "
                "it: the host's times are taken for so much earlier",
            )
        )
    return found
