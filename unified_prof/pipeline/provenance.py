"""The facts of UPROF_RUN: how a report came to be."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from unified_prof.backends.asking import answer_of
from unified_prof.backends.base import RunSpec
from unified_prof.pipeline.ranks import Rank
from unified_prof.plain import printable
from unified_prof.redaction import redact, redact_arguments
from unified_prof.runs.records import TrackedRun
from unified_prof.version import VERSION

_FACTS = ("target", "is_module", "arguments", "output_dir", "project_root", "options", "command")
"""Fields of a specification that are no entries of the fact `options`."""


def of_run(
    spec: RunSpec, backend: str | None, rank: Rank, started: datetime
) -> dict[str, str | None]:
    """Return what is known before a run starts; lists and mappings are JSON.

    Secrets in the command and its options are masked. Names: uprof, backend, target, command,
    working_directory, project_root, options, host, platform, python, started; git_commit and
    git_modified where the project is under git; rank, local_rank and world_size where there are
    several processes.
    """
    facts: dict[str, str | None] = {
        "uprof": VERSION,
        "target": f"-m {spec.target}" if spec.is_module else spec.target,
        "command": json.dumps(redact_arguments(spec.command or sys.argv)),
        "working_directory": str(Path.cwd()),
        "project_root": str(spec.project_root),
        "options": json.dumps(
            {name: _without_secrets(value) for name, value in _options(spec).items()},
            default=str,
        ),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "started": timestamp(started),
        **_git_facts(spec.project_root),
    }
    if backend is not None:
        facts["backend"] = backend
    for name in ("rank", "local_rank", "world_size"):
        value = getattr(rank, name)
        if value is not None:
            facts[name] = str(value)
    # A name that is not UTF-8 cannot be stored as it is, and must not cost the report.
    return {name: None if value is None else printable(value) for name, value in facts.items()}


def of_records(
    known: Mapping[str, str | None], run: TrackedRun, failure: str | None
) -> dict[str, str | None]:
    """Return the facts of a report of `run`: what was known before, and what the records say."""
    facts = {
        **known,
        **run.facts,
        "device": run.device,
        "complete": "true" if run.complete else "false",
    }
    return {**facts, "failure": failure} if failure else facts


def _options(spec: RunSpec) -> dict[str, object]:
    """Return what was asked for, besides what is a fact by itself or was left out."""
    asked = {name: value for name, value in spec.as_data().items() if name not in _FACTS}
    return {**{name: value for name, value in asked.items() if value != []}, **spec.options}


def _without_secrets(value: object) -> object:
    if isinstance(value, list | tuple):
        return redact_arguments([str(one) for one in value])
    return redact(value) if isinstance(value, str) else value


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(timezone.utc)


def timestamp(moment: datetime) -> str:
    """Return `moment` in ISO 8601, to the microsecond, with its offset."""
    return moment.isoformat(timespec="microseconds")


def _git_facts(folder: Path) -> Mapping[str, str]:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    modified = _git(folder, "status", "--porcelain", "--untracked-files=no")
    facts = {"git_commit": commit}
    if modified is not None:
        facts["git_modified"] = "true" if modified else "false"
    return facts


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints about `folder`, or None where it has nothing to say."""
    return answer_of("git", "--no-optional-locks", "-C", str(folder), *arguments)
