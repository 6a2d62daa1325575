"""Settings of measured tests.

Arguments of a call take precedence over the marker, and the marker over options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unified_prof.base.run_spec import ITERATIONS, WARMUP
from unified_prof.compare.gate import check_metrics, parse_fraction
from unified_prof.errors import UprofError, UsageError

RUNS = 3
MARKER = "uprof"
# Separates baseline name and test in the names of the store.
SEPARATOR = ":"
_KNOWN = ("warmup", "iterations", "runs", "max_regress")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one test."""

    warmup: int
    iterations: int
    runs: int
    max_regress: float
    metrics: Sequence[str]
    fail_inconclusive: bool


def settings_of(item: pytest.Item, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a test.

    Arguments of the call (`given`) are None if not given. Raises UsageError if a value is not
    valid.
    """
    marked: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(MARKER))):  # the closest one last
        unknown = [name for name in marker.kwargs if name not in _KNOWN]
        if marker.args or unknown:
            what = f"unknown argument {unknown[0]!r}" if unknown else "positional argument"
            raise UsageError(
                f"@pytest.mark.uprof: {what}",
                hint=f"it takes {', '.join(_KNOWN)}",
                slug="wrong-option-value",
            )
        marked |= marker.kwargs
    option = item.config.option
    chosen: dict[str, Any] = {
        "warmup": WARMUP,
        "iterations": ITERATIONS,
        "runs": RUNS,
        "max_regress": "5%",
    }
    for name in chosen:
        for value in (getattr(option, f"uprof_{name}"), marked.get(name), given.get(name)):
            chosen[name] = chosen[name] if value is None else value
    return Settings(
        warmup=_count("warmup", chosen["warmup"], 0),
        iterations=_count("iterations", chosen["iterations"], 1),
        runs=_count("runs", chosen["runs"], 1),
        max_regress=parse_fraction(str(chosen["max_regress"]), "max_regress"),
        metrics=tuple(option.uprof_metric or ("total",)),
        fail_inconclusive=option.uprof_fail_inconclusive,
    )


def check(config: pytest.Config) -> None:
    """Check the options before any test runs.

    Raises pytest.UsageError if an option is not valid.
    """
    option = config.option
    try:
        # `addopts` and PYTEST_ADDOPTS included.
        given = [
            *config.getini("addopts"),
            *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
            *map(str, config.invocation_params.args),
        ]
        for what in ("save", "compare"):
            _check_name(f"--uprof-{what}", getattr(option, f"uprof_{what}"), given)
        if option.uprof_save == "":
            raise UsageError(
                "--uprof-save takes the name of a baseline", slug="wrong-baseline-name"
            )
        if option.uprof_max_regress is not None:
            parse_fraction(option.uprof_max_regress, "--uprof-max-regress")
        for name, least in (("warmup", 0), ("iterations", 1), ("runs", 1)):
            if (value := getattr(option, f"uprof_{name}")) is not None:
                _count(f"--uprof-{name}", value, least)
        if option.uprof_metric:
            check_metrics(option.uprof_metric)
    except UprofError as err:
        raise pytest.UsageError(f"{err} ({err.hint})" if err.hint else str(err)) from None


def _check_name(option: str, name: str | None, given: Sequence[str]) -> None:
    if not name:
        return
    # `--uprof-save tests/` probably means a test path; after `=` it is always a name.
    has_sep, exists = os.sep in name, Path(name).exists()
    is_path = exists and has_sep if option == "--uprof-save" else exists or has_sep
    if is_path and f"{option}={name}" not in given:
        raise UsageError(
            f"{option} {name!r} looks like a path, expected the name of a baseline",
            hint=f"write {option}=NAME, or put {option} after the test paths",
            slug="wrong-baseline-name",
        )
    if SEPARATOR in name or "@" in name or not name.isprintable():
        raise UsageError(
            f"{option} {name!r}: the name of a test baseline must not contain {SEPARATOR!r} or '@'",
            slug="wrong-baseline-name",
        )


def _count(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{what} is {value!r}, expected a number of at least {least}", slug="wrong-option-value"
        )
    return value
