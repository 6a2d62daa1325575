"""Callback and profiler for Lightning (`lightning` or `pytorch_lightning`).

    from unified_prof.integrations.lightning import UprofCallback, UprofProfiler

    Trainer(callbacks=[UprofCallback("out", iterations=20)])
    Trainer(profiler=UprofProfiler("out"))

Uses the package that the program has imported; `lightning` if it has imported both or neither.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from unified_prof.integrations.measurement import Measurement

_EPOCH = "run_training_epoch"


def _package() -> Any:
    old = "pytorch_lightning"
    if all(importlib.util.find_spec(one) is None for one in (old, "lightning")):
        raise ModuleNotFoundError(
            "neither lightning nor pytorch_lightning is installed: "
            "run `pip install 'unified-prof[lightning]'`",
            name="lightning",
        )
    if importlib.util.find_spec("lightning") is None or (
        old in sys.modules and "lightning.pytorch" not in sys.modules
    ):
        return _imported(old)
    return _imported("lightning.pytorch")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        if err.name != name:  # a dependency is missing
            raise
        package = name.partition(".")[0]
        raise ModuleNotFoundError(
            f"{name} not found: the installed {package} is too old or another package: "
            "run `pip install 'unified-prof[lightning]'`",
            name=name,
        ) from None


_lightning: Any = _package()
_Callback: Any = _lightning.Callback
_Profiler: Any = _imported(f"{_lightning.__name__}.profilers").Profiler


class UprofCallback(_Callback):  # type: ignore[misc]
    """Profiles optimizer steps of a fit and writes run-time and memory reports.

    Args:
        output: Directory of the reports; by default `uprof_<script>_<timestamp>`.
        options: Other arguments of `unified_prof.profile`, such as `iterations`; `watch=True` and
            arguments of `unified_prof.watch` to watch the whole fit instead.

    Attributes:
        measurement: Result: `profile` or `watch`, `failure`, `summary()`.
    """

    def __init__(self, output: str | Path | None = None, **options: Any) -> None:
        self.measurement = Measurement(output, **options)
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start measuring, after Lightning's validation sanity check."""
        self._steps = trainer.global_step  # not 0 if the training goes on from a checkpoint
        self.measurement.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        """End a watched step after the batch with which the optimizer stepped."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.measurement.step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the validation out of the watched steps."""
        self.measurement.leave_out()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the reports and print their paths."""
        self.measurement.end()
        if getattr(trainer, "is_global_zero", True):
            print(self.measurement.summary())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write reports of the iterations that were measured before the exception."""
        self.measurement.end(exception)


class UprofProfiler(_Profiler):  # type: ignore[misc]
    """Lightning `profiler` that measures the training epochs of a fit.

    Args:
        output: Directory of the reports; by default `uprof_<script>_<timestamp>`.
        options: As for `UprofCallback`.
    """

    def __init__(self, output: str | Path | None = None, **options: Any) -> None:
        super().__init__(dirpath=None, filename=None)
        self.measurement = Measurement(output, **options)

    def start(self, action_name: str) -> None:
        """Start measuring with the first training epoch."""
        if action_name == _EPOCH:
            self.measurement.begin()

    def stop(self, action_name: str) -> None:
        """Do nothing: the measurement continues until the fit ends."""

    def summary(self) -> str:
        """Return the paths of the reports, for Lightning's log."""
        self.measurement.end()
        return self.measurement.summary()

    def teardown(self, stage: str | None) -> None:
        """Write the reports."""
        if hasattr(self, "measurement"):
            self.measurement.end()
        super().teardown(stage)
