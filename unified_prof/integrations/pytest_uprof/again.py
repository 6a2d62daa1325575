"""The same test in a process of its own: another run, as verdicts count them.

Where memory lies and how warm a machine is stays the same for the iterations of one process, so
blocks of them would be no runs (see `analysis.compare.between`). The process is begun as this
session was, with all its options and paths (they name the conftest files that declare options); its
configuration then names the one test alone. It measures, writes nothing of what the session's other
plugins write, and leaves documents in a folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from unified_prof.analysis.compare.comparable import Run
from unified_prof.baselines import document
from unified_prof.errors import CaptureError

ENVIRONMENT = "UPROF_PYTEST_RUN"
_FILE, _TEST = "measured.msgpack", "test"
_TOLD_LINES = 12
_OFF: Mapping[str, object] = {
    "uprof_save": None,
    "uprof_compare": None,
    "xmlpath": None,
    "usepdb": False,
    "trace": False,
    "pastebin": None,
    "htmlpath": None,
    "report_log": None,
    "json_report": False,
    "allure_report_dir": None,
    "collectonly": False,
}
"""Options of pytest and of plugins that are known, as they are where they do nothing: two processes
must not write one file."""


class Begun:
    """How a session was begun.

    Args:
        config: pytest's.
        told: What the controller said of it, in a worker of xdist.
    """

    def __init__(self, config: pytest.Config, told: Mapping[str, Any] | None) -> None:
        asked = config.invocation_params
        self._directory = Path(told["directory"]) if told else asked.dir
        self._arguments = list(told["arguments"] if told else map(str, asked.args))
        self._extra = [f"--rootdir={config.rootpath}"]
        if config.inipath is not None:
            self._extra += ["-c", str(config.inipath)]
        if config.pluginmanager.hasplugin("xdist"):
            self._extra += ["-n", "0"]
        if config.pluginmanager.hasplugin("pytest_cov"):
            self._extra += ["--no-cov"]

    def measure(self, item: pytest.Item, number: int, of: int) -> dict[str, Run]:
        """Return what the test measures in a process of its own, by the names of its steps.

        Raises:
            CaptureError: it failed there, or measured nothing.
        """
        _, _, within = plain_id(item).partition("::")
        with TemporaryDirectory(prefix="uprof-pytest-run-") as folder:
            (Path(folder) / _TEST).write_bytes(os.fsencode(f"{item.path}::{within}"))
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", *self._arguments, *self._extra),
                    *("-o", f"cache_dir={folder}/cache"),
                ],
                cwd=self._directory,
                env={**os.environ, ENVIRONMENT: folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            found = Path(folder) / _FILE
            if done.returncode == 0 and found.is_file():
                return load(found)
        told = "\n".join(done.stdout.rstrip().splitlines()[-_TOLD_LINES:])
        raise CaptureError(
            f"run {number} of {of}, in a process of its own, ended with exit code "
            f"{done.returncode} and "
            + ("measured nothing" if done.returncode == 0 else "no measurement")
            + f":\n{told}",
            hint="runs=1 measures in this process only",
            slug="run-of-test-failed",
        )


def only_measure(config: pytest.Config, folder: Path) -> None:
    """Let a session do nothing but measure, for the one that began it."""
    config.args = [os.fsdecode((folder / _TEST).read_bytes())]
    for name, value in _OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.basetemp = str(folder / "temporary")
    if hasattr(config.option, "log_file"):
        config.option.log_file = str(folder / "log")


def plain_id(item: pytest.Item) -> str:
    """Return what a test is called in every session: xdist may add the group of the test."""
    if item.parent is None:
        return item.nodeid
    plain = f"{item.parent.nodeid}::{item.name}"
    return plain if item.nodeid.startswith(f"{plain}@") else item.nodeid


def save(folder: Path, measured: Mapping[str, Run]) -> None:
    """Leave what was measured for `load`."""
    data = {name: document.dump(run) for name, run in measured.items()}
    (folder / _FILE).write_bytes(msgspec.msgpack.encode(data))


def load(file: Path) -> dict[str, Run]:
    """Return what `save` left."""
    data = msgspec.msgpack.decode(file.read_bytes(), type=dict[str, bytes])
    return {name: document.load(one, where=str(file)) for name, one in data.items()}


def of(measured: Mapping[str, Run], name: str) -> Run:
    """Return what a process measured of one step.

    Raises:
        CaptureError: it did not come to that step.
    """
    if name not in measured:
        raise CaptureError(
            f"a run in a process of its own did not measure the step {name!r}",
            hint="a test has to measure the same steps every time",
            slug="run-of-test-failed",
        )
    return measured[name]
