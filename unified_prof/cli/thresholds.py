"""How much runs differ, as an option says or as was learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_prof.analysis.compare.thresholds import told_noise

if TYPE_CHECKING:
    from unified_prof.analysis.compare.between import Noise
    from unified_prof.analysis.compare.comparable import Run


def noise(text: str | None, run: Run) -> Noise | None:
    """Return how much runs differ: as `text` says, else as was learned where `run` ran.

    Raises:
        UsageError: the text is no share.
        StoreError: what was learned cannot be read.
    """
    from unified_prof.baselines import noise as learned

    return learned.of(run) if text is None else told_noise(text)
