"""The kinds of report that a run is asked for; names alone, for whoever needs no more."""

from __future__ import annotations

RUN_TIME = "run-time"
MEMORY = "memory"
TIMELINE = "timeline"
