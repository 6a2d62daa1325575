"""What reports are called, so that names say which recording each is of, and which rank's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unified_prof.pipeline.discovery import Found

_SAYS_RANK = re.compile(r"(?<![a-z0-9])rank[_-]?\d", re.IGNORECASE)


def names(recordings: Sequence[Found], *, ranked: bool = False) -> list[str]:
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
