"""What reports are called, so that names say which recording each is of, and which rank's.

Where the report of a recording goes, what stands there already, and who takes it away again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unified_prof.base.text import storable
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.pipeline import analysis_db
from unified_prof.pipeline.discovery import Found

_SAYS_RANK = re.compile(r"(?<![a-z0-9])rank[_-]?\d", re.IGNORECASE)


def names_naming(recordings: Sequence[Found], *, ranked: bool = False) -> list[str]:
    """Name the report of each recording after it, each differently, on any file system.

    Those of the same name are told apart by a folder that they are in: the nearest one in which
    all differ (`rank0_trace`, `rank1_trace`), else all that it takes; and by their kind where they
    lie side by side. The same recordings in the same order get the same names.

    Args:
        recordings: What is converted together.
        ranked: Whether names begin with the rank where a recording says it and its name says none.
    """
    result = [found.source.stem(found.path) for found in recordings]
    for members in _groups(
        (name.casefold(), str(found.path.resolve().parent))
        for name, found in zip(result, recordings, strict=True)
    ):
        kinds = {recordings[index].source.kind for index in members}
        if len(kinds) > 1:
            for index in members:
                result[index] = f"{result[index]}_{recordings[index].source.kind}"
    if ranked:
        result = [_with_rank(name, found) for name, found in zip(result, recordings, strict=True)]
    for members in _groups(name.casefold() for name in result):
        if len(members) > 1:
            folders = [recordings[index].path.resolve().parts[-2:0:-1] for index in members]
            for index, prefix in zip(members, _prefixes(folders), strict=True):
                result[index] = f"{prefix}{result[index]}"
    return _numbered(result)


def _groups(keys: Iterable[object]) -> Iterable[list[int]]:
    """Return the places of equal keys, a list for each."""
    found: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return found.values()


def _with_rank(name: str, found: Found) -> str:
    if found.source.names_rank or _SAYS_RANK.search(name):
        return name  # two ranks in one name would be no help
    if (rank := found.source.rank(found.path)) is None:
        return name
    return f"rank{rank}_{name}"


def _prefixes(folders: Sequence[Sequence[str]]) -> list[str]:
    """Return what tells recordings apart, of the names of the folders around each, nearest first.

    It is the name at one level where that suffices, and at all levels up to one where not.
    """
    levels = min(map(len, folders))
    for level in range(levels):
        if len({names[level] for names in folders}) == len(folders):
            return [f"{names[level]}_" for names in folders]
    for level in range(1, levels):
        joined = ["_".join(reversed(names[: level + 1])) for names in folders]
        if len(set(joined)) == len(joined):
            return [f"{name}_" for name in joined]
    return [f"{names[0]}_" if names else "" for names in folders]


def _numbered(given: Sequence[str]) -> list[str]:
    """Return names of which no two are the same, whether or not case counts."""
    taken: dict[str, str] = {}
    for name in given:
        number, unique = 2, name
        while unique.casefold() in taken:
            unique, number = f"{name}_{number}", number + 1
        taken[unique.casefold()] = unique
    return list(taken.values())


PLAIN = "plain"
ASCEND_PT = "ascend-pt"
"""How files and folders are named: as the source says, or as torch_npu does."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one report goes."""

    target: Path
    """The report; in the layout of torch_npu it gets the name of its rank in the end."""
    folder: Path | None = None
    """What may be made for it; None: the target's folder is the user's."""
    layout: str = PLAIN
    existing: tuple[Path, ...] = ()
    """Reports that it would stand beside or replace."""


def choose(
    recordings: Sequence[Found], output: Path | None, layout: str = PLAIN
) -> list[Place | OutputError]:
    """Return the place of every report.

    Args:
        recordings: All that are converted together: names are told apart among them.
        output: A file if it ends in `.db` and is no folder, else a folder; None: the usual place.
        layout: PLAIN or ASCEND_PT.

    Raises:
        UsageError: several reports, or a layout of folders, cannot be had in one file; a kind
            of recording cannot be had in the layout.
    """
    if output is not None and is_file(output):
        refuse_sharing(output, len(recordings), layout)
        return [Place(output) for _ in recordings]
    for found in recordings:
        if layout not in found.source.layouts:
            raise UsageError(
                f"{found.path} is {found.source.what}, which does not support layout {layout}",
                hint=f"omit --layout, or convert it separately with layout {PLAIN}",
                slug="wrong-layout",
            )
    ranked = layout == PLAIN and (output is not None or len(recordings) > 1)
    names = names_naming(recordings, ranked=ranked)
    return [
        _place(found, output, name, layout) for found, name in zip(recordings, names, strict=True)
    ]


def is_file(output: Path) -> bool:
    """Tell whether `output` means one report, and not a folder for several."""
    return output.suffix == ".db" and not output.is_dir()


def refuse_sharing(output: Path, recordings: int, layout: str) -> None:
    """Raise UsageError if one file cannot hold what is asked for."""
    if recordings > 1 or layout != PLAIN:
        what = "several recordings" if recordings > 1 else f"layout {layout}"
        raise UsageError(
            f"{what} cannot be written to one file {output}",
            hint="use a directory with -o",
            slug="one-output-for-many",
        )


def _place(found: Found, output: Path | None, name: str, layout: str) -> Place | OutputError:
    try:
        if layout == ASCEND_PT:
            outer = (output or Path()) / f"{name}{analysis_db.FOLDER_SUFFIX}"
            folder = outer / analysis_db.OUTPUT_FOLDER
            target = folder / analysis_db.database_name(None)
        else:
            target = found.source.target(found.path, output, name)
            folder = target.parent
        return as_it_is_now(found, Place(target, folder, layout))
    except OSError as err:
        return OutputError(
            f"cannot search for reports of {found.path}: {err.strerror or err}", slug="cannot-read"
        )


def as_it_is_now(found: Found, place: Place) -> Place:
    """Return `place` with the reports that stand there at this moment."""
    if place.folder is None:
        existing = [place.target] if place.target.exists() else []
    elif place.layout == ASCEND_PT:
        existing = list(analysis_db.databases_in(place.folder.parent))
    else:
        existing = list(found.source.reports_at(place.target))
    return replace(place, existing=tuple(existing))


def made_already(found: Found, place: Place, revision: str) -> Path | None:
    """Return the complete report of this very recording that stands at its place, or None.

    It is known by the facts in UPROF_RUN, is of the schema that is asked for, and is younger
    than anything in the recording.
    """
    from unified_prof.sqlite.reader import open_report

    for path in place.existing:
        try:
            with open_report(path) as report:
                if report.revision != revision or "UPROF_RUN" not in report.tables:
                    continue
                facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
            wanted = {**found.source.identity(found.path), "command": found.source.command}
            is_younger = path.stat().st_mtime_ns >= found.source.changed_ns(found.path)
        except (StoreError, OSError):
            continue
        if is_younger and all(facts.get(name) == storable(value) for name, value in wanted.items()):
            return path
    return None


def refuse_existing(place: Place) -> None:
    """Raise OutputError if a report stands where another one is to go."""
    if place.existing:
        raise OutputError(
            f"{place.existing[-1]} exists already",
            hint="use --force to overwrite it, or -o to write elsewhere",
            slug="already-exists",
        )
