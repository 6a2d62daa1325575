"""The names and folders under which MindStudio Insight and msprof-analyze find a database.

torch_npu leaves `<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_<rank>.db`,
with an `analysis.db` beside it, and `profiler_info_<rank>.json` and `profiler_metadata.json` one
folder above.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.store.atomic import replacing
from unified_prof.version import VERSION

if TYPE_CHECKING:
    from unified_prof.store.reader import Report

FOLDER_SUFFIX = "_ascend_pt"
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"
ANALYSIS = "analysis.db"
SCHEMA = "latest"
"""What its readers do best with: without the rows of OVERLAP_ANALYSIS, which older revisions lack,
MindStudio Insight shows no overall times of a recording without collectives."""

DESCRIPTION = re.compile(r"profiler_(?:info(?:_\d+)?|metadata)\.json")
"""Files in which torch_npu says what was recorded, beside the layout's folder."""
_INFO = re.compile(r"profiler_info(?:_\d+)?\.json")
_OF_THE_FILE = ("SCHEMA_VERSION", "UPROF_")
"""Rows of META_DATA that are not of the recording."""


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


def accompany(report: Path, rank: int | None, *, what: str | None, force: bool) -> None:
    """Write what belongs beside a report of the layout: its analysis, and what it is.

    Args:
        report: Complete, in the layout's folder, under whatever name.
        rank: That was recorded, or None.
        what: Which kind of recording it was made of; None: that brings what says so.
        force: Whether it replaces the report of another rank.
    """
    from unified_prof.pipeline.analysis_db import write_analysis
    from unified_prof.store.reader import open_report

    with open_report(report) as opened:
        write_analysis(opened, report.parent, overwrite=True)
        if what is not None:
            _describe(opened, report.parents[1], rank, what, force=force)


def is_described(recording: Path) -> bool:
    """Tell whether torch_npu left its profiler_info*.json in the folder of a recording."""
    return any(_INFO.fullmatch(child.name) for child in recording.iterdir())


def copy_description(recording: Path, folder: Path) -> None:
    """Copy what torch_npu says of a recording into the folder of its report, if it is another.

    Raises:
        OutputError: it cannot be written there.
    """
    if folder.samefile(recording):
        return
    for child in sorted(recording.iterdir()):
        if DESCRIPTION.fullmatch(child.name) and child.is_file():
            with replacing(folder / child.name, overwrite=True) as partial:
                shutil.copyfile(child, partial)


def _describe(report: Report, folder: Path, rank: int | None, what: str, *, force: bool) -> None:
    """Write profiler_info*.json and profiler_metadata.json as torch_npu does."""
    activities = [
        f"ProfilerActivity.{name}"
        for name, table in (("CPU", "PYTORCH_API"), ("CPU", "CANN_API"), ("NPU", "TASK"))
        if report.rows(f"SELECT 1 FROM {table} LIMIT 1")
    ]
    info: dict[str, Any] = {
        "config": {
            "common_config": {"activities": list(dict.fromkeys(activities))},
            "experimental_config": {"_profiler_level": "Level1", "_export_type": ["db"]},
        },
        "made_by": f"uprof {VERSION}, of {what}",
    }
    if rank is not None:
        info["rank_id"] = rank
    told = {
        name: _value(text)
        for name, text in report.rows("SELECT name, value FROM META_DATA ORDER BY name")
        if not name.startswith(_OF_THE_FILE)
    }
    name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
    for old in folder.iterdir() if force else ():
        if _INFO.fullmatch(old.name) and old.name != name:
            old.unlink()
    for path, value in ((folder / name, info), (folder / "profiler_metadata.json", told)):
        with replacing(path, overwrite=True) as partial:
            partial.write_text(json.dumps(value, indent=4), encoding="utf-8")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
