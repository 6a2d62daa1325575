"""Graphs that a program captured and replays: what is in them is no call that could be timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from unified_prof.tracking.patches import Patches
from unified_prof.tracking.watch.device import Device


class GraphReplays:
    """Counts the replays of captured graphs on one kind of device.

    Args:
        device: The kind of device.
        is_measuring: Whether a replay now falls into what is measured.
    """

    def __init__(self, device: Device, is_measuring: Callable[[], bool]) -> None:
        self._graph_type: Any = getattr(device.module, f"{device.kind.upper()}Graph", None)
        self._is_measuring = is_measuring
        self._patches = Patches()
        self.count = 0

    def install(self) -> None:
        """Begin to count; `remove` ends it."""
        replay = getattr(self._graph_type, "replay", None)
        if replay is None:
            return

        @functools.wraps(replay)
        def counted_replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count += self._is_measuring()
            return replay(graph, *args, **kwargs)

        self._patches.replace(self._graph_type, "replay", counted_replay)

    def remove(self) -> None:
        """Leave torch as it was found."""
        self._patches.restore()
