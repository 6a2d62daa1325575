"""Finds places of torch, puts others in their stead, and tells of each that is not there.

A new torch may move any of them. Then the program that is measured must go on as if it were not
watched: a place that is missing, or is no longer what it was, is noted once as an anomaly that
says what the report lacks, and whoever asked for the place does without.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from unified_prof.tracking.anomalies import Anomalies, in_one_line
from unified_prof.tracking.patches import Patches
from unified_prof.tracking.torch_places import PLACES, version_of

Wrapper = Callable[[Any], Any]


class TorchLookup:
    """Places by their keys; `anomalies` is told, once, of each that is not there."""

    def __init__(self, anomalies: Anomalies) -> None:
        self.anomalies = anomalies
        self._noted: set[str] = set()

    def has(self, *keys: str) -> bool:
        """Whether none of these places was found to be missing."""
        return self._noted.isdisjoint(keys)

    def find(self, key: str) -> Any:
        """Return what is at a place, None where nothing is."""
        try:
            return pkgutil.resolve_name(PLACES[key].path)
        except Exception as error:  # importing a part of torch may fail in any way
            self.note(key, error)
            return None

    def note(self, key: str, error: Exception) -> None:
        """Say in the report what is not seen without a place, and why that is."""
        import torch

        place = PLACES[key]
        if key in self._noted:
            return
        self._noted.add(key)
        if version_of(torch) >= place.since:
            name = place.path.replace(":", ".")
            self.anomalies.add(
                f"torch_place_missing_{key}",
                f"{place.loss}: torch {torch.__version__} has no {name} of the kind that uprof "
                f"knows ({in_one_line(error)})",
            )

    def is_imported(self, key: str) -> bool:
        """Whether the module of a place is there already; importing it may take seconds."""
        module = sys.modules.get(PLACES[key].path.partition(":")[0])
        return module is not None and not getattr(module.__spec__, "_initializing", False)

    def replace(self, patches: Patches, key: str, wrap: Wrapper) -> bool:
        """Put what `wrap` makes of a place in its stead; return whether that could be done.

        Args:
            patches: What gives the place back.
            key: The place.
            wrap: Given what is there, as `vars` of its owner has it: a descriptor of a class.
        """
        module, _, path = PLACES[key].path.partition(":")
        owner_path, _, name = path.rpartition(".")
        try:
            owner: Any = importlib.import_module(module)
            if owner_path:
                owner = attrgetter(owner_path)(owner)
            patches.replace(owner, name, wrap(inspect.getattr_static(owner, name)))
        except Exception as error:
            self.note(key, error)
            return False
        return True
