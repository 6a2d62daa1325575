"""The names and folders under which MindStudio Insight and msprof-analyze find a database.

torch_npu leaves `<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_<rank>.db`.
"""

from __future__ import annotations

from pathlib import Path

from unified_prof.errors import OutputError

OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"


def database_name(rank: int | None) -> str:
    """Return the name of the database of a rank; None: recorded without ranks."""
    return "ascend_pytorch_profiler.db" if rank is None else f"ascend_pytorch_profiler_{rank}.db"


def refuse_existing(folder: Path, *, force: bool) -> None:
    """Refuse to add to what is there; with `force`, take away the databases.

    Raises:
        OutputError: there is a database already.
    """
    found = sorted((folder / OUTPUT_FOLDER).glob("ascend_pytorch_profiler*.db"))
    if found and not force:
        raise OutputError(f"{found[0]} is there already", hint="give --force to replace it")


def complete(folder: Path, database: Path, rank: int | None) -> Path:
    """Give the finished `database` the name of its rank and add the companion files."""
    return database
