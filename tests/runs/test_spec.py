"""The specification of a run: what it refuses, and that all of it reaches another process."""

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from unified_prof.base.run_spec import RunSpec
from unified_prof.errors import UsageError

ODD = os.fsdecode(b"caf\xe9 \n")
LISTENERS = {"progress", "on_measured", "on_partial", "relay", "turns"}
SPEC = RunSpec(
    target="train",
    is_module=True,
    arguments=("--name", ODD, ""),
    reports=("run-time", "timeline"),
    output_dir=Path("out") / ODD,
    project_root=Path("/project"),
    warmup=3,
    iterations=7,
    scope="project",
    include=("mylibrary.models",),
    batch_size=64,
    stop_after=True,
    command=("train.ipynb", "In [3]"),
    options={"preset": "full", "pid": 12, "msprof_arg": ["--a=b"]},
)


def test_every_field_survives_serialization() -> None:
    usual = RunSpec(target="", reports=(), output_dir=Path(), project_root=Path())
    for one in fields(RunSpec):
        same = getattr(SPEC, one.name) == getattr(usual, one.name)
        assert not same or one.name in LISTENERS, f"SPEC has the usual {one.name}"
    assert RunSpec.of_data(json.loads(json.dumps(SPEC.as_data()))) == SPEC


def test_callbacks_are_not_serialized() -> None:
    listening = replace(SPEC, progress=print, relay=print, on_measured=print, on_partial=print)
    assert RunSpec.of_data(listening.as_data()) == SPEC


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"warmup": -1}, "the number of warm-up iterations is -1; it must not be negative"),
        ({"iterations": 0}, "the number of iterations is 0; it must be at least 1"),
        ({"scope": "all"}, "unknown scope 'all', expected module or project"),
    ],
)
def test_contradictory_options_are_refused_early(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(SPEC, **wish)


@pytest.mark.parametrize(
    ("reports", "asks"),
    [(("timeline",), False), ((), False), (("timeline", "memory"), True), (("run-time",), True)],
)
def test_operations_are_required_by_their_reports(reports: tuple[str, ...], asks: bool) -> None:
    assert replace(SPEC, reports=reports).asks_for_operations is asks
