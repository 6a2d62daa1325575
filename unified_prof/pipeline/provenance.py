"""Collects the rows of UPROF_RUN about a run, and builds databases from its recordings.

Databases are written by uprof, or by the vendor's exporter if uprof cannot decode a recording.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from unified_prof.backends.cann import query
from unified_prof.base.redaction import redact, redact_arguments
from unified_prof.base.run_spec import Recording, RunSpec, TrackedRun
from unified_prof.base.text import printable
from unified_prof.errors import CaptureError, OutputError, UprofError
from unified_prof.pipeline.outputs import Rank, timeline_file
from unified_prof.version import VERSION

_VENDOR_KEPT = "; the database of the vendor's exporter is kept"
# Fields of a specification that are not part of the fact `options`.
_FACTS = ("target", "is_module", "arguments", "output_dir", "project_root", "options", "command")


def of_run(
    spec: RunSpec, backend: str | None, rank: Rank, started: datetime
) -> dict[str, str | None]:
    """Return the facts known before a run starts; lists and mappings are JSON.

    Secrets in the command and its options are masked. Names: uprof, backend, target, command,
    working_directory, project_root, options, host, platform, python, started; git_commit and
    git_modified if the project is under git; rank, local_rank and world_size if there are several
    processes.
    """
    facts: dict[str, str | None] = {
        "uprof": VERSION,
        "target": redact(f"-m {spec.target}" if spec.is_module else spec.target),
        "command": json.dumps(redact_arguments(spec.command or sys.argv)),
        "working_directory": redact(str(Path.cwd())),
        "project_root": redact(str(spec.project_root)),
        "options": json.dumps(
            {name: _without_secrets(value) for name, value in _options(spec).items()}, default=str
        ),
        "host": redact(platform.node()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "started": timestamp(started),
    }
    git = ("git", "--no-optional-locks", "-C", str(spec.project_root))
    if (commit := query(*git, "rev-parse", "HEAD")) is not None:
        facts["git_commit"] = commit
        modified = query(*git, "status", "--porcelain", "--untracked-files=no")
        if modified is not None:
            facts["git_modified"] = "true" if modified else "false"
    if backend is not None:
        facts["backend"] = backend
    for name in ("rank", "local_rank", "world_size"):
        value = getattr(rank, name)
        if value is not None:
            facts[name] = str(value)
    # A name that is not UTF-8 cannot be stored unchanged.
    return {name: None if value is None else printable(value) for name, value in facts.items()}


def of_records(
    known: Mapping[str, str | None], run: TrackedRun, failure: str | None
) -> dict[str, str | None]:
    """Return the rows of UPROF_RUN after a run: `known`, and facts from the measurements."""
    facts = {
        **known,
        **run.facts,
        "device": run.device,
        "complete": "true" if run.complete else "false",
    }
    return {**facts, "failure": failure} if failure else facts


def _options(spec: RunSpec) -> dict[str, object]:
    """Return the options of the run, without empty values and options that have their own row."""
    options = {name: value for name, value in spec.as_data().items() if name not in _FACTS}
    return {**{name: value for name, value in options.items() if value != []}, **spec.options}


def _without_secrets(value: object) -> object:
    if isinstance(value, list | tuple):
        return redact_arguments([str(item) for item in value])
    return redact(value) if isinstance(value, str) else value


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(timezone.utc)


def timestamp(moment: datetime) -> str:
    """Return `moment` in ISO 8601 with microseconds and offset."""
    return moment.isoformat(timespec="microseconds")


def build_databases(
    recordings: Iterable[Recording],
    options: Mapping[str, object],
    *,
    rank: Rank,
    facts: Mapping[str, str | None],
    force: bool,
) -> tuple[tuple[Path, ...], list[str]]:
    """Build the databases of all recordings; return them and notes for the user.

    A recording that cannot be decoded does not stop the others; the vendor's database of it is kept
    if there is one. `options` are `exporter` (`uprof`, or `native` to keep the vendor's) and
    `schema`; `facts` are rows of UPROF_RUN. Raises OutputError if a database cannot be written, and
    CaptureError if there is no database at all.
    """
    native = options.get("exporter") == "native"
    paths: list[Path] = []
    notes: list[str] = []
    for recording in recordings:
        path: Path | None
        note: str | None = None
        if native:
            path, reason = _vendor_database(recording)
            if path is None:
                missing = f"the vendor's exporter wrote no database for {recording.path}"
                note = f"{missing}{f': {reason}' if reason else ''} (use `uprof convert`)"
        else:
            path, note = _converted(recording, options, rank, facts, force=force)
        if path:
            paths.append(path)
        if note:
            notes.append(note)
    if notes and not paths:
        raise CaptureError("; ".join(notes), slug="nothing-measured")
    return tuple(paths), notes


def _converted(
    recording: Recording,
    options: Mapping[str, object],
    rank: Rank,
    facts: Mapping[str, str | None],
    *,
    force: bool,
) -> tuple[Path | None, str | None]:
    from unified_prof.pipeline import convert, sources  # 0.2 s, which most runs do not need

    source = sources.by_kind(recording.kind)
    target = None
    if not source.report_is_inside:
        # Its name does not collide with those of other traces.
        target = timeline_file(recording.path.parent, rank)
        stem = recording.path.name.partition(".")[0]
        if (mark := stem.removeprefix("timeline_")) != stem:
            target = target.with_name(f"{target.stem}_{mark}{target.suffix}")
    note = reason = None
    try:
        if missing := source.undecodable(recording.path):
            cannot = f"uprof cannot decode {', '.join(missing)}"
            native, reason = _vendor_database(recording)
            if native:
                return native, f"{cannot}{_VENDOR_KEPT}"
            if reason:
                note = f"{cannot}, so the database does not contain them: {reason}"
        with _set_aside(recording.native):
            conversion = convert.convert(
                recording.path,
                target,
                source=source,
                schema=str(options.get("schema") or "documented"),
                force=force,
                facts=facts,
                of_own_run=True,
            )
        return conversion.database, note
    except OutputError:
        raise
    except UprofError as err:
        if reason is None:  # otherwise the vendor's exporter has been tried
            native, reason = _vendor_database(recording)
            if native:
                return native, f"{err}{_VENDOR_KEPT}"
        return None, f"{err}: {reason}" if reason else str(err)


def _vendor_database(recording: Recording) -> tuple[Path | None, str | None]:
    """Return the database that the vendor's exporter wrote, or the reason why there is none."""
    if recording.native or recording.export is None:
        return recording.native, None
    try:
        return recording.export(), None
    except CaptureError as err:
        return None, str(err)


@contextmanager
def _set_aside(native: Path | None) -> Iterator[None]:
    """Rename the vendor's database during the block; then remove it, or restore it on failure.

    Readers expect one `msprof_*.db` in a PROF_* directory, and both names may contain the same
    time.
    """
    if native is None:
        yield
        return
    aside = native.with_name(f".{native.name}.native")
    native.rename(aside)
    try:
        yield
    except BaseException:
        aside.rename(native)
        raise
    aside.unlink()
