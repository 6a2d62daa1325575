"""Two runs compared, whatever they were recorded by: the public `unified_prof.diff`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from unified_prof.analysis.compare import diff as by_sample
from unified_prof.analysis.compare import runs
from unified_prof.analysis.compare.between import Noise
from unified_prof.analysis.compare.device import difference as by_device
from unified_prof.analysis.compare.device.difference import DeviceDifference
from unified_prof.analysis.compare.diff import Difference
from unified_prof.analysis.compare.grouped import By
from unified_prof.analysis.load import open_analyses
from unified_prof.analysis.msprof import MsprofAnalysis
from unified_prof.errors import UsageError

Report: TypeAlias = str | os.PathLike[str]
Captures: TypeAlias = tuple[Report | None, Report | None]
"""Where the graphs were captured that each side replays; None: it is not known."""


def diff(
    base: Report | Sequence[Report],
    new: Report | Sequence[Report],
    *,
    by: By = "operation",
    captures: Report | Captures | None = None,
) -> Difference | DeviceDifference:
    """Compare two runs: reports, or folders of them; several of one run give more samples.

    Args:
        base: The run before, or on the one device.
        new: The run after, or on the other device.
        by: What the changes of tracked workloads are summed up by; recordings of devices are
            always summed up in every way.
        captures: The report in which the graphs were captured that both sides replay, or one for
            each side: their kernels count for the operations recorded there.

    Returns:
        A `DeviceDifference` where both are recordings of device work (msprof databases), else a
        `Difference` with the statistics of each operation.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: the two cannot be compared.
    """
    sides = _paths(base), _paths(new)
    given = captures if isinstance(captures, tuple) else (captures, captures)
    found = of_devices(*sides, captures=given)
    if found is not None:
        return found
    if any(one is not None for one in given):
        raise without_replays()
    return by_sample.diff(*(runs.load(side) for side in sides), by=by)


def of_devices(
    base: Sequence[Report],
    new: Sequence[Report],
    labels: tuple[str, str] | None = None,
    noise: Noise | None = None,
    captures: Captures = (None, None),
) -> DeviceDifference | None:
    """Compare recordings of devices; None: not both sides are recordings with device work.

    Args:
        base: Reports of the run before; those of a folder are its ranks.
        new: Those of the run after.
        labels: What to call the sides, if not by their paths.
        noise: How much runs of such a workload differ on this machine, where it is known.
        captures: Where the graphs were captured that each side replays.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: a capture is none, or is given for several recordings.
    """
    named = labels or (_label(base), _label(new))
    with _opened(base, captures[0]) as before, _opened(new, captures[1]) as after:
        if not before or not after:
            return None
        found = by_device.diff(before, after, labels=named, noise=noise)
        return found if len(found.base.leaves) and len(found.new.leaves) else None


@contextmanager
def _opened(
    paths: Sequence[Report], capture: Report | None
) -> Iterator[list[MsprofAnalysis] | None]:
    """Yield the recordings of one side, None where it has reports of another kind."""
    if capture is not None and len(paths) > 1:
        raise UsageError(
            f"{_label(paths)} are {len(paths)} reports: a capture belongs to one timeline",
            hint="name the report of one process",
            slug="not-a-capture",
        )
    with ExitStack() as stack:
        analyses = [
            one
            for path in paths
            for one in stack.enter_context(open_analyses(path, capture=capture))
        ]
        recordings = [one for one in analyses if isinstance(one, MsprofAnalysis)]
        yield recordings if len(recordings) == len(analyses) else None


def without_replays() -> UsageError:
    """Return the error of a capture that is given for what replays none."""
    return UsageError(
        "a capture of graphs is of two recordings of device work, which these reports are not",
        slug="not-a-capture",
    )


def _paths(side: Report | Sequence[Report]) -> Sequence[Report]:
    return [side] if isinstance(side, str | os.PathLike) else side


def _label(paths: Sequence[Report]) -> str:
    return ", ".join(map(str, paths))
