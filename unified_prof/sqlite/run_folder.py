"""Reader and writer of `run.json`, which lists the ranks of a distributed run and their files.

Each rank writes its own entry, for example `run.json.d/rank3.json`, then merges all entries into
`run.json` and checks for new ones. The last rank to finish has seen all entries, so the last
`run.json` is complete on any file system, without locks. If there are very many ranks, only some of
them merge; `read` uses the entries if they exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from unified_prof.errors import OutputError, StoreError, system_errors
from unified_prof.sqlite.atomic import replacing

FILE_NAME = "run.json"
_PIECES = "run.json.d"
_FORMAT, _VERSION = "uprof-run", 1
# Errors of a document with unexpected content, such as the integer of Infinity.
_INVALID = (
    ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError,
)  # fmt: skip
_MAX_BYTES = 64 << 20  # maximum size of a file that is read: a million ranks need less
_ROUNDS = 100
# Number of ranks that merge the entries; each reads all of them.
_MAX_MERGING_RANKS = 64
STARTED, MEASURED, ENDED = "started", "measured", "ended"


@dataclass(frozen=True, slots=True)
class RankEntry:
    """State and files of one rank."""

    rank: int
    world_size: int
    expected_ranks: tuple[int, ...]  # The ranks to profile; every rank stores the whole list.
    host: str
    state: str  # `started`; `measured`: reports written, workload running; `ended`.
    local_rank: int | None = None
    launcher: str | None = None
    job: str | None = None
    started: str | None = None
    finished: str | None = None
    exit_code: int | None = None  # Exit code of the workload; None: unknown, or still running.
    # Kind of report -> files, relative to the directory.
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failure: str | None = None  # Reason for missing reports, one sentence.


class RunFolder(Struct, frozen=True):
    """Contents of a run directory."""

    world_size: int
    expected_ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    ranks: Mapping[int, RankEntry]  # Ranks with an entry, by number.

    @property
    def without_reports(self) -> dict[int, str]:
        """Expected rank without a report -> reason."""
        return {
            rank: _why(self.ranks.get(rank))
            for rank in self.expected_ranks
            if rank not in self.ranks or not self.ranks[rank].files
        }


def _why(entry: RankEntry | None) -> str:
    if entry is None:
        return "it did not start, or wrote to another directory"
    if entry.failure:
        return entry.failure
    if entry.state == STARTED:
        return f"it started on {entry.host} but did not finish"
    return f"it ended on {entry.host} with exit code {entry.exit_code}"


def note(folder: Path, entry: RankEntry) -> None:
    """Write the entry of a rank in `folder`, replacing its previous entry.

    Raises OutputError if it cannot be written.
    """
    pieces = folder / _PIECES
    with system_errors(OutputError, f"cannot create the directory {pieces}", slug="cannot-write"):
        pieces.mkdir(parents=True, exist_ok=True)
    _write(_piece(folder, entry.rank), asdict(entry))
    position = entry.expected_ranks.index(entry.rank) if entry.rank in entry.expected_ranks else 0
    if position % max(1, len(entry.expected_ranks) // _MAX_MERGING_RANKS):
        return
    seen: dict[int, RankEntry] | None = None
    for _ in range(_ROUNDS):
        if (found := _read_pieces(pieces)) == seen:
            return
        _write(folder / FILE_NAME, _put_together(found))
        seen = found


def has_entry(folder: Path, rank: int) -> bool:
    """Return True if `rank` has an entry in `folder`."""
    return _piece(folder, rank).exists()


def read(folder: str | os.PathLike[str]) -> RunFolder | None:
    """Return the contents of `run.json` in `folder`, None if it does not exist.

    Raises StoreError if it cannot be read or is invalid.
    """
    path = Path(folder) / FILE_NAME
    try:
        if not path.is_file():
            return None
        document = json.loads(content(path))
        if document["format"] != _FORMAT:
            raise ValueError(f"format is {document['format']!r}")
        noted = [_entry(piece) for piece in document["ranks"].values()]
        ranks = {entry.rank: entry for entry in noted} | _read_pieces(Path(folder) / _PIECES)
        hosts = (*map(str, document["hosts"]), *(entry.host for entry in ranks.values()))
        return RunFolder(
            world_size=int(document["world_size"]),
            expected_ranks=tuple(int(rank) for rank in document["expected_ranks"]),
            hosts=tuple(dict.fromkeys(hosts)),
            ranks=dict(sorted(ranks.items())),
        )
    except OSError as err:
        raise StoreError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    except _INVALID as err:
        raise StoreError(
            f"{path}: not a list of a run's ranks ({err})", slug="damaged-file"
        ) from err


def content(path: Path) -> bytes:
    """Return the bytes of a run document.

    Raises StoreError if it is a pipe or device, or too large, and OSError if it cannot be read.
    """
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise StoreError(
            f"{path}: too large for a run document of `uprof run`, or not a file",
            slug="damaged-file",
        )
    return path.read_bytes()


def _piece(folder: Path, rank: int) -> Path:
    return folder / _PIECES / f"rank{rank}.json"


def _read_pieces(pieces: Path) -> dict[int, RankEntry]:
    found = {}
    for path in sorted(pieces.glob("rank*.json")):
        # Skip an invalid entry: its rank will write it again.
        with suppress(OSError, StoreError, *_INVALID):
            entry = _entry(json.loads(content(path)))
            found[entry.rank] = entry
    return dict(sorted(found.items()))


def _entry(piece: Mapping[str, Any]) -> RankEntry:
    known = {name: piece[name] for name in RankEntry.__dataclass_fields__ if name in piece}
    known["expected_ranks"] = tuple(int(rank) for rank in known["expected_ranks"])
    known["files"] = {
        str(kind): tuple(str(one) for one in paths)
        for kind, paths in dict(known.get("files") or {}).items()
    }
    known["rank"], known["world_size"] = int(known["rank"]), int(known["world_size"])
    return RankEntry(**known)


def _put_together(entries: Mapping[int, RankEntry]) -> dict[str, Any]:
    everyone = entries.values()
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "world_size": max((one.world_size for one in everyone), default=0),
        "expected_ranks": sorted({rank for one in everyone for rank in one.expected_ranks}),
        "hosts": list(dict.fromkeys(one.host for one in everyone)),
        "ranks": {str(rank): asdict(one) for rank, one in entries.items()},
    }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    with replacing(path, overwrite=True) as partial:
        partial.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
