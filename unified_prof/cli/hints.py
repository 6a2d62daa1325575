"""Which command takes a file that is no report: people try the one that they know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.errors import StoreError

if TYPE_CHECKING:
    from unified_prof.pipeline.sources import Source


@contextmanager
def for_reports(*paths: Path) -> Iterator[None]:
    """Where a path is no report, say in the error's hint which command makes one of it."""
    try:
        yield
    except StoreError as err:
        for path in paths:
            if (hint := _hint(path, str(err))) is not None:
                err.hint = hint
                break
        raise


def unrecovered(folder: Path) -> str | None:
    """Return what to do about what killed processes left in `folder`; None: there is nothing."""
    from unified_prof.store import spool

    if not any(spool.state_of(path) != spool.RUNS for path in spool.find(folder)):
        return None
    return (
        f"{folder} holds measurements of a run that was killed; `uprof recover {folder}` makes "
        "reports of them"
    )


def _hint(path: Path, message: str) -> str | None:
    from unified_prof.cluster import places
    from unified_prof.pipeline import sources

    if places.is_run(path):
        return (
            f"it is a run of many ranks: `uprof cluster report {path}` has its tables, "
            f"`uprof report {path} --rank N` one rank, `uprof trace {path} --ranks N,...` timelines"
        )
    if path.is_dir() and (hint := places.hint_of_begun(path)) is not None:
        return hint
    if path.is_dir() and (hint := unrecovered(path)) is not None:
        return hint
    # A database that is damaged may be of any kind: only one that is surely a recording is named.
    of = sources.surely if path.suffix in (".db", ".sqlite") else sources.source_of
    if (source := of(path)) is not None:
        return f"it is {source.what}; {_converted(source, path)}"
    if (known := sources.recognised(path)) is not None:
        return f"it is {known.what}; {known.hint(path)}"
    if path.is_dir() and "no readable report" in message:
        inside = next((one for one in sorted(path.iterdir()) if sources.surely(one)), None)
        if inside is not None and (source := sources.surely(inside)) is not None:
            return f"{inside.name} is {source.what}; {_converted(source, path)}"
    return None


def _converted(source: Source, path: Path) -> str:
    return f"run `uprof {source.command} {path}` first, or give --convert"
