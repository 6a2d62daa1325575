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

Report: TypeAlias = str | os.PathLike[str]


def diff(
    base: Report | Sequence[Report], new: Report | Sequence[Report], *, by: By = "operation"
) -> Difference | DeviceDifference:
    """Compare two runs: reports, or folders of them; several of one run give more samples.

    Args:
        base: The run before, or on the one device.
        new: The run after, or on the other device.
        by: What the changes of tracked workloads are summed up by; recordings of devices are
            always summed up in every way.

    Returns:
        A `DeviceDifference` where both are recordings of device work (msprof databases), else a
        `Difference` with the statistics of each operation.

    Raises:
        StoreError: a file is no report or cannot be read.
        UsageError: the two cannot be compared.
    """
    sides = _paths(base), _paths(new)
    found = of_devices(*sides)
    if found is not None:
        return found
    return by_sample.diff(*(runs.load(side) for side in sides), by=by)


def of_devices(
    base: Sequence[Report],
    new: Sequence[Report],
    labels: tuple[str, str] | None = None,
    noise: Noise | None = None,
) -> DeviceDifference | None:
    """Compare recordings of devices; None: not both sides are recordings with device work.

    Args:
        base: Reports of the run before; those of a folder are its ranks.
        new: Those of the run after.
        labels: What to call the sides, if not by their paths.
        noise: How much runs of such a workload differ on this machine, where it is known.

    Raises:
        StoreError: a file is no report or cannot be read.
    """
    named = labels or (_label(base), _label(new))
    with _opened(base) as before, _opened(new) as after:
        if not before or not after:
            return None
        found = by_device.diff(before, after, labels=named, noise=noise)
        return found if len(found.base.leaves) and len(found.new.leaves) else None


@contextmanager
def _opened(paths: Sequence[Report]) -> Iterator[list[MsprofAnalysis] | None]:
    """Yield the recordings of one side, None where it has reports of another kind."""
    with ExitStack() as stack:
        analyses = [one for path in paths for one in stack.enter_context(open_analyses(path))]
        recordings = [one for one in analyses if isinstance(one, MsprofAnalysis)]
        yield recordings if len(recordings) == len(analyses) else None


def _paths(side: Report | Sequence[Report]) -> Sequence[Report]:
    return [side] if isinstance(side, str | os.PathLike) else side


def _label(paths: Sequence[Report]) -> str:
    return ", ".join(map(str, paths))
