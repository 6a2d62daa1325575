"""From what a backend recorded to databases: ours, or the vendor's own where ours cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unified_prof.backends.base import Recording
from unified_prof.errors import CaptureError, OutputError, UprofError
from unified_prof.pipeline.outputs import timeline_file
from unified_prof.pipeline.ranks import Rank
from unified_prof.pipeline.sources import by_kind


def build_databases(
    recordings: Iterable[Recording],
    options: Mapping[str, object],
    *,
    rank: Rank,
    facts: Mapping[str, str | None],
    force: bool,
) -> tuple[tuple[Path, ...], list[str]]:
    """Return the database of every recording, and what has to be said about them.

    A recording that cannot be decoded does not stop the others; the vendor's own database of it
    is kept where there is one.

    Args:
        recordings: What a backend brought back.
        options: `exporter` (`uprof`, or `native` to keep the vendor's) and `schema`.
        rank: Which process of a distributed run this is; part of the names that are ours.
        facts: Rows of UPROF_RUN.
        force: Whether a database of the same name may be overwritten.

    Raises:
        OutputError: a database cannot be written.
        CaptureError: not one database could be had.
    """
    native = options.get("exporter") == "native"
    paths: list[Path] = []
    notes: list[str] = []
    for recording in recordings:
        if native:
            path, note = _kept(recording)
        else:
            path, note = _converted(recording, options, rank, facts, force=force)
        if path:
            paths.append(path)
        if note:
            notes.append(note)
    if notes and not paths:
        raise CaptureError("; ".join(notes), slug="nothing-measured")
    return tuple(paths), notes


def _kept(recording: Recording) -> tuple[Path | None, str | None]:
    native, why_not = _vendors(recording)
    if native:
        return native, None
    left_none = f"the vendor's exporter left no database of {recording.path}"
    return None, f"{_because(left_none, why_not)} (`uprof build` can make one)"


def _converted(
    recording: Recording,
    options: Mapping[str, object],
    rank: Rank,
    facts: Mapping[str, str | None],
    *,
    force: bool,
) -> tuple[Path | None, str | None]:
    from unified_prof.pipeline import convert

    source = by_kind(recording.kind)
    target = None if source.inside else _timeline_of(recording.path, rank)
    note = why_not = None
    try:
        if missing := source.undecodable(recording.path):
            cannot = f"uprof cannot decode {', '.join(missing)}"
            native, why_not = _vendors(recording)
            if native:
                return native, _fallen_back(cannot)
            if why_not:
                note = f"{cannot}, which the database lacks: {why_not}"
        with _set_aside(recording.native):
            made = convert.convert(
                recording.path,
                target,
                source=source,
                schema=str(options.get("schema") or "documented"),
                force=force,
                facts=facts,
                of_own_run=True,
            )
        return made.database, note
    except OutputError:
        raise
    except UprofError as err:
        if why_not is None:  # otherwise the vendor's exporter has been tried
            native, why_not = _vendors(recording)
            if native:
                return native, _fallen_back(str(err))
        return None, _because(str(err), why_not)


def _vendors(recording: Recording) -> tuple[Path | None, str | None]:
    """Return the vendor's own database, made now if need be, or why there is none."""
    if recording.native or recording.export is None:
        return recording.native, None
    try:
        return recording.export(), None
    except CaptureError as err:
        return None, str(err)


def _because(what: str, why: str | None) -> str:
    return f"{what}: {why}" if why else what


def _timeline_of(recording: Path, rank: Rank) -> Path:
    """Return the database of a trace; what tells the trace from others tells it too."""
    usual = timeline_file(recording.parent, rank)
    mark = recording.name.partition(".")[0].removeprefix("timeline_")
    if mark == recording.name.partition(".")[0]:
        return usual
    return usual.with_name(f"{usual.stem}_{mark}{usual.suffix}")


def _fallen_back(reason: str) -> str:
    return f"{reason}; the database of the vendor's exporter is kept"


@contextmanager
def _set_aside(native: Path | None) -> Iterator[None]:
    """Put the vendor's database out of the way; bring it back if ours does not come about.

    Readers expect one `msprof_*.db` in a PROF_* directory, and both may bear the same second.
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
