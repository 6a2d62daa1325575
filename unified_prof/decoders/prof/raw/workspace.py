"""How much of a recording is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unified_prof.decoders.spool import Spool


@dataclass(frozen=True, slots=True)
class Workspace:
    """Sizes that bound the memory of decoding, whatever the length of the recording."""

    window_rows: int = 1 << 17
    """Rows that are joined at a time, of all kinds together."""
    run_bytes: int = 4 << 20
    """Rows of one kind that are collected before they are sorted and put away."""

    def spool(self, dtype: np.dtype[Any], key: str = "key") -> Spool:
        """Return a place for rows that are to come back sorted."""
        return Spool(dtype, key, run_rows=max(1, self.run_bytes // dtype.itemsize))
