"""How often what was measured so far is saved: at first at once, then at little cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from unified_prof.tracking.watch.collection import collection_held_off

SHARE = 0.02
"""Part of the time since the beginning that saving may take."""


class Saving:
    """Keeps the cost of saving to a share of the time.

    The first time is free of this rule: after it there is something rather than nothing.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent = self._last = 0.0
        self._saved: object = None

    @contextmanager
    def of(self, measured: object) -> Iterator[bool]:
        """Yield whether to save now; the time of a block that does counts.

        Args:
            measured: What there is; it is saved only where it differs from the last time.
        """
        if measured == self._saved or not self._can_be_afforded():
            yield False
            return
        begin = time.perf_counter()
        self._saved = measured
        try:
            with collection_held_off():
                yield True
        finally:
            self._last = time.perf_counter() - begin
            self._spent += self._last

    def _can_be_afforded(self) -> bool:
        elapsed = time.perf_counter() - self._began
        return self._last == 0 or self._spent + self._last <= SHARE * elapsed
