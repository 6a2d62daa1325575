"""From what a user names to recordings: files, folders of them, and patterns."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unified_prof.errors import RawFormatError, UprofError, UsageError
from unified_prof.pipeline import sources
from unified_prof.pipeline.sources import Source

DEEPEST = 8
"""Folders below the given one that are looked into."""

_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Found:
    """A recording and the source that takes it."""

    path: Path
    source: Source


def find(
    paths: Sequence[Path], progress: Callable[[str], None] = lambda _: None
) -> Iterator[Found | tuple[Path, UprofError]]:
    """Yield every recording that `paths` name, once each, or why a path names none.

    A folder that is no recording is searched, links aside, down to `DEEPEST` levels; a text with
    `*`, `?` or `[` that names no file is a pattern, in which `**` means any depth.
    """
    seen: set[str] = set()
    for given in paths:
        try:
            for path in _expanded(given):
                for found in _recordings(path, progress):
                    real = os.path.realpath(found.path)
                    if real not in seen:
                        seen.add(real)
                        yield found
        except UprofError as err:
            yield given, err


def names(recordings: Sequence[Found]) -> list[str]:
    """Name the report of each after it; those of the same name also after a folder they are in.

    It is the nearest folder that tells all of them apart (`rank0_trace`, `rank1_trace`), else all
    that it takes. The same recordings in the same order get the same names.
    """
    result = [found.source.stem(found.path) for found in recordings]
    same: dict[str, list[int]] = {}
    for index, stem in enumerate(result):
        same.setdefault(stem, []).append(index)
    for stem, members in same.items():
        if len(members) > 1:
            folders = [recordings[index].path.resolve().parts[-2:0:-1] for index in members]
            for index, prefix in zip(members, _prefixes(folders), strict=True):
                result[index] = f"{prefix}{stem}"
    return _numbered(result)


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
    taken: dict[str, None] = {}
    for name in given:
        number, unique = 2, name
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken[unique] = None
    return list(taken)


def refusal(path: Path) -> UprofError:
    """Return why nothing takes `path`, naming what it is where that can be told."""
    takes = "; ".join(source.what for source in sources.SOURCES)
    try:
        mode = path.stat().st_mode
    except OSError as err:
        text = "no such file" if isinstance(err, FileNotFoundError) else err.strerror
        return RawFormatError(f"{path}: {text}", hint=_hint_of_missing(path))
    if stat.S_ISDIR(mode):
        return RawFormatError(
            f"{path} is no recording and has none inside, down to {DEEPEST} folders below",
            hint=f"expected {takes}; links to folders are not followed",
        )
    if not stat.S_ISREG(mode):
        return RawFormatError(
            f"{path} is not a regular file", hint="write what it gives into a file first"
        )
    return _refused_file(path, takes)


def _refused_file(path: Path, takes: str) -> UprofError:
    if (known := sources.recognised(path)) is not None:
        return RawFormatError(
            f"{path} is {known.what}, which uprof cannot convert", hint=known.hint(path)
        )
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as err:
        return RawFormatError(f"{path}: cannot be read: {err.strerror or err}")
    if head.startswith(_SQLITE):
        return _refused_database(path, takes)
    what = "is empty" if not head else "is nothing that uprof can convert"
    return RawFormatError(f"{path} {what}", hint=f"expected {takes}")


def _refused_database(path: Path, takes: str) -> UprofError:
    from unified_prof.store.detect import detect

    try:
        found = detect(path)
    except UprofError as err:
        return err
    if found.family is not None:
        return UsageError(
            f"{path} is a finished report, there is nothing to convert",
            hint=f"`uprof report {path}` shows what is in it",
        )
    return RawFormatError(
        f"{path} is {found.description}, which uprof cannot convert", hint=f"expected {takes}"
    )


def _hint_of_missing(path: Path) -> str | None:
    return "the pattern matches nothing" if glob.has_magic(str(path)) else None


def _expanded(given: Path) -> Iterable[Path]:
    if os.path.lexists(given) or not glob.has_magic(str(given)):
        return [given]
    names = glob.glob(str(given), recursive=True)  # noqa: PTH207 (Path.glob takes no whole paths)
    return [Path(name) for name in sorted(names)] or [given]


def _recordings(path: Path, progress: Callable[[str], None]) -> Iterator[Found]:
    """Yield `path` if it is a recording, else those below it; at least one.

    Raises:
        UprofError: there is none.
    """
    if not path.is_dir():
        source = sources.source_of(path)
        if source is None:
            raise refusal(path)
        yield Found(path, source)
        return
    if (source := sources.surely(path)) is not None:
        yield Found(path, source)
        return
    count = 0
    for found in _below(path, DEEPEST, progress):
        count += 1
        yield found
    if not count:
        if (source := sources.source_of(path)) is None:
            raise refusal(path)
        yield Found(path, source)


def _below(folder: Path, depth: int, progress: Callable[[str], None]) -> Iterator[Found]:
    """Yield the recordings below `folder`, by name; nothing is looked for inside of one."""
    progress(f"looking into {folder}")
    try:
        with os.scandir(folder) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
    except OSError as err:
        raise RawFormatError(f"cannot list {folder}: {err.strerror}") from err
    for child in children:
        path = Path(child.path)
        is_folder = child.is_dir(follow_symlinks=False)
        if child.name.startswith(".") or not (is_folder or child.is_file()):
            continue
        if (source := sources.surely(path)) is not None:
            yield Found(path, source)
        elif is_folder and depth:
            yield from _below(path, depth - 1, progress)
