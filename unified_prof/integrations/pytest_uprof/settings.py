"""How a test is measured and judged: arguments of a call beat a marker, a marker beats options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unified_prof.analysis.compare.thresholds import fraction
from unified_prof.errors import UprofError, UsageError
from unified_prof.runs.spec import ITERATIONS, WARMUP

RUNS = 3
MARKER = "uprof"
SEPARATOR = ":"
"""Between the name of a baseline and the test, in the store."""
_KNOWN = ("warmup", "iterations", "runs", "max_regress")


@dataclass(frozen=True, slots=True)
class Settings:
    """How one test is measured and judged."""

    warmup: int
    iterations: int
    runs: int
    max_regress: float
    metrics: Sequence[str]
    fail_unclear: bool


def of(item: pytest.Item, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a test.

    Args:
        item: the test.
        given: what stands in the call; None is not given.

    Raises:
        UsageError: a value makes no sense.
    """
    marked: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers(MARKER))):  # the closest one last
        unknown = [name for name in marker.kwargs if name not in _KNOWN]
        if marker.args or unknown:
            what = f"no {unknown[0]!r}" if unknown else "no value without its name"
            raise UsageError(
                f"@pytest.mark.uprof takes {what}",
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
        max_regress=fraction(str(chosen["max_regress"]), "max_regress"),
        metrics=tuple(option.uprof_metric or ("total",)),
        fail_unclear=option.uprof_fail_unclear,
    )


def check(config: pytest.Config) -> None:
    """Refuse options that make no sense before any test runs.

    Raises:
        pytest.UsageError: one does not.
    """
    option = config.option
    try:
        given = _given(config)
        for what in ("save", "compare"):
            _check_name(f"--uprof-{what}", getattr(option, f"uprof_{what}"), given)
        if option.uprof_save == "":
            raise UsageError(
                "--uprof-save takes the name of a baseline", slug="wrong-baseline-name"
            )
        if option.uprof_max_regress is not None:
            fraction(option.uprof_max_regress, "--uprof-max-regress")
        for name, least in (("warmup", 0), ("iterations", 1), ("runs", 1)):
            if (value := getattr(option, f"uprof_{name}")) is not None:
                _count(f"--uprof-{name}", value, least)
        if option.uprof_metric:
            from unified_prof.analysis.compare.gate import check_metrics

            check_metrics(option.uprof_metric)
    except UprofError as err:
        raise pytest.UsageError(f"{err} ({err.hint})" if err.hint else str(err)) from None


def _given(config: pytest.Config) -> list[str]:
    """Return the words of the command line, and those that are put before them."""
    before = [*config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    return [*before, *map(str, config.invocation_params.args)]


def _check_name(option: str, name: str | None, given: Sequence[str]) -> None:
    if not name:
        return
    # Behind an equals sign stands no path of tests; --uprof-save takes the next word in any case.
    has_sep, exists = os.sep in name, Path(name).exists()
    is_path = exists and has_sep if option == "--uprof-save" else exists or has_sep
    if is_path and f"{option}={name}" not in given:
        raise UsageError(
            f"{option} {name!r} looks like a path, expected the name of a baseline",
            hint=f"write {option}=NAME, or {option} behind the paths of the tests",
            slug="wrong-baseline-name",
        )
    if SEPARATOR in name or "@" in name or not name.isprintable():
        raise UsageError(
            f"{option} {name!r}: the name of a baseline has no {SEPARATOR!r} and no '@' here",
            slug="wrong-baseline-name",
        )


def _count(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{what} is {value!r}, expected a number of at least {least}", slug="wrong-option-value"
        )
    return value
