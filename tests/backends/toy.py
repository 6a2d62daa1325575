"""A backend of another package: it executes the script and returns a fixed measurement."""

import runpy
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.records import tracked_run
from unified_prof.backends import registry
from unified_prof.base.run_spec import MEMORY, RUN_TIME, Capture, RunSpec
from unified_prof.errors import UsageError


class ToyBackend:
    """The minimum that the pipeline needs from a backend."""

    name = "toy"
    reports: tuple[str, ...] = (RUN_TIME, MEMORY)

    def unavailable_reason(self) -> str | None:
        return None

    def run(self, spec: RunSpec) -> Capture:
        if spec.options:
            raise UsageError(f"no option {', '.join(spec.options)}")
        if not Path(spec.target).is_file():
            raise UsageError(f"{spec.target} does not exist")
        saved, sys.argv = sys.argv, [spec.target, *spec.arguments]
        code = 0
        try:
            runpy.run_path(spec.target, run_name="__main__")
        except SystemExit as err:
            code = int(err.code or 0)
        finally:
            sys.argv = saved
        return Capture(code, tracked_run())


class UnavailableBackend(ToyBackend):
    """A backend that cannot run."""

    name = "off"

    def unavailable_reason(self) -> str | None:
        return "switched off"


def install(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    """Let installed packages declare the entry points `targets` (name=module:class)."""
    found = [EntryPoint(n, t, registry.ENTRY_POINT_GROUP) for n, t in targets.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
