"""Where a summed-up run lies; asked of every path, so nothing else is imported."""

from __future__ import annotations

from pathlib import Path

FILE_NAME = "cluster.sqlite"
"""Name of the summary in a run's folder."""
PARTIALS = "partials"
"""The folder of partials in a run's folder."""


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a summed-up run, by the file that it has."""
    return path.is_dir() and (path / FILE_NAME).is_file()


def hint_of_begun(path: Path) -> str | None:
    """Return what completes a run that has partials and no summary; None: it is no such folder."""
    partials = path / PARTIALS
    if is_run(path) or not partials.is_dir() or next(partials.glob("*.parquet"), None) is None:
        return None
    return (
        f"{path} is a run that was not completed; what made it goes on: "
        f"`uprof cluster build RECORDINGS -o {path}`"
    )
