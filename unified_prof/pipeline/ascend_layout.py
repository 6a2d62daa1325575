"""The names and folders under which MindStudio Insight and msprof-analyze find a database.

torch_npu leaves `<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_<rank>.db`,
with an `analysis.db` beside it.
"""

from __future__ import annotations

from pathlib import Path

from unified_prof.errors import OutputError

FOLDER_SUFFIX = "_ascend_pt"
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"
ANALYSIS = "analysis.db"
SCHEMA = "latest"
"""What its readers do best with: without the rows of OVERLAP_ANALYSIS, which older revisions lack,
MindStudio Insight shows no overall times of a recording without collectives."""


def database_name(rank: int | None) -> str:
    """Return the name of the database of a rank; None: recorded without ranks."""
    return "ascend_pytorch_profiler.db" if rank is None else f"ascend_pytorch_profiler_{rank}.db"


def databases_in(folder: Path) -> list[Path]:
    """Return the databases that are in the layout already."""
    return sorted((folder / OUTPUT_FOLDER).glob("ascend_pytorch_profiler*.db"))


def empty_tables(revision: str) -> frozenset[str]:
    """Return the tables that readers of the layout do better with empty than without.

    msprof-analyze fails where COMMUNICATION_OP is missing. But an empty OVERLAP_ANALYSIS, which
    newer revisions have, would keep MindStudio Insight from computing its own.
    """
    from unified_prof.models import catalogue

    return frozenset(catalogue.load(catalogue.MSPROF, revision).tables) - {"OVERLAP_ANALYSIS"}


def complete(database: Path, rank: int | None, replaced: list[Path]) -> Path:
    """Give the finished `database` the name of its rank and write what belongs beside it.

    Args:
        database: In the layout's folder, under any name.
        rank: That was recorded, or None.
        replaced: Databases of an earlier import, which go.

    Returns:
        The database's final path.
    """
    from unified_prof.pipeline.analysis_db import write_analysis
    from unified_prof.store.reader import open_report

    with open_report(database) as report:
        write_analysis(report, database.parent, overwrite=True)
    final = database.with_name(database_name(rank))
    try:
        database.replace(final)
        for old in replaced:
            if old not in (database, final):
                old.unlink(missing_ok=True)
    except OSError as err:
        raise OutputError(f"cannot write {final}: {err.strerror}") from err
    return final
