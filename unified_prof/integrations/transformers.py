"""Callback for `transformers.Trainer` and trainers that accept its callbacks.

from unified_prof.integrations.transformers import UprofCallback

trainer = Trainer(..., callbacks=[UprofCallback("out", iterations=20)])
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

if importlib.util.find_spec("transformers") is None:
    raise ModuleNotFoundError(
        "transformers is not installed: pip install 'unified-prof[transformers]'",
        name="transformers",
    )

from transformers import TrainerCallback

from unified_prof.integrations.measurement import Measurement


class UprofCallback(TrainerCallback):  # type: ignore[misc]  # untyped if it is not installed
    """Profiles optimizer steps of a training and writes run-time and memory reports.

    Args:
        output: Directory of the reports; by default `uprof_<script>_<timestamp>`.
        options: Other arguments of `unified_prof.profile`, such as `iterations`; `watch=True` and
            arguments of `unified_prof.watch` to watch the whole training instead.

    Attributes:
        measurement: Result: `profile` or `watch`, `failure`, `summary()`.
    """

    def __init__(self, output: str | Path | None = None, **options: Any) -> None:
        self.measurement = Measurement(output, **options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start measuring."""
        self.measurement.begin(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a watched step."""
        self.measurement.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave an evaluation or a checkpoint out of the watched steps."""
        self.measurement.leave_out()

    on_save = on_evaluate

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the reports and print their paths."""
        self.measurement.end()
        if getattr(state, "is_local_process_zero", True):
            print(self.measurement.summary())
