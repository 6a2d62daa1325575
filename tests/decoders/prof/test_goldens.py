"""Databases of recordings, compared with those of the vendor's exporter."""

from __future__ import annotations

import runpy
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from unified_prof.decoders.prof import recording
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.pipeline.convert import convert

REVISION = "1.2.0_20260716"  # Revision of the goldens; new ones have other columns.
GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens"
Tables = dict[str, tuple[list[str], list[tuple[str, ...]]]]
Row = dict[str, str]


class Differences(NamedTuple):
    """Rows of a table in which the exporter is wrong: docs/validation.md has the evidence."""

    of_exporter: int
    of_uprof: int
    are_wrong: Callable[[Row], bool]


# Each collective of device 1 that another thread interrupts has two names in the exporter.
SPLIT = {
    *("hcom_allReduce__452_2_1_452_4_1", "hcom_allReduce__452_2_1_452_5_1"),
    *("hcom_reduceScatter__452_0_1_452_2_1", "hcom_reduceScatter__452_0_1_452_3_1"),
}
SPLIT_NS = ((1767225600565406000, 1767225600565546460), (1767225600565766000, 1767225600565821680))
# The device recorded an id flip of stream 30 between the first task of a collective and the second.
CUT_NS, FLIP_NS = 1767225600589098000, 1767225600589113000
COMPUTATION = "0"  # A row of OVERLAP_ANALYSIS that does not depend on collectives.


def is_split(row: Row) -> bool:
    return row.get("opName", row.get("name")) in SPLIT


def is_overlap_of_split(row: Row) -> bool:
    inside = [int(row["startNs"]) >= one and int(row["endNs"]) <= end for one, end in SPLIT_NS]
    return row["deviceId"] == "1" and any(inside) and row["type"] != COMPUTATION


def is_task_after_flip(row: Row) -> bool:
    start = row.get("startNs") or row["globalTaskId"].rpartition("@")[2]
    return int(start) >= FLIP_NS and row["globalTaskId"].startswith("T0.30.")


def is_collective_after_flip(row: Row) -> bool:
    return int(row["endNs"]) > CUT_NS and row.get("type") != COMPUTATION


EXPORTER_IS_WRONG = {
    "50_B1_kfc_two": {
        "COMMUNICATION_OP": Differences(4, 2, is_split),
        "COMMUNICATION_TASK_INFO": Differences(22, 22, is_split),
        "OVERLAP_ANALYSIS": Differences(10, 4, is_overlap_of_split),
    },
    "50_E12_950wrap": {
        # One collective is cut at the flip, twelve are lost.
        "COMMUNICATION_OP": Differences(1, 13, is_collective_after_flip),
        "COMMUNICATION_TASK_INFO": Differences(0, 51, is_task_after_flip),
        "OVERLAP_ANALYSIS": Differences(29, 58, is_collective_after_flip),
        "TASK": Differences(51, 51, is_task_after_flip),
    },
    "50_G7_dup_api": {
        "COMMUNICATION_OP": Differences(
            1, 1, lambda row: row["opName"] == "hcom_allReduce__452_0_1_452_0_1"
        )
    },
}
CASES = sorted(
    str(path.relative_to(GOLDENS))
    for folder in ("prof", "prof-new")
    for path in (GOLDENS / folder).glob("*")
)

# Cases that quick test runs include.
QUICK = ("prof/01_clocks", "prof/04_hccl", "prof/16_everything")


@cache
def canon(path: Path) -> dict[str, Any]:
    """Return the functions of the script that compares databases without their ids."""
    return runpy.run_path(str(path))


def drop_wrong_rows(
    expected: Tables, found: Tables, different: Mapping[str, Differences]
) -> tuple[Tables, Tables]:
    """Return both without the rows in which the exporter is wrong, after checking each."""
    expected, found = dict(expected), dict(found)
    for table, rows in different.items():
        (columns, theirs), (own_columns, ours) = expected.pop(table), found.pop(table)
        assert columns == own_columns
        only_theirs = list((Counter(theirs) - Counter(ours)).elements())
        only_ours = list((Counter(ours) - Counter(theirs)).elements())
        assert (len(only_theirs), len(only_ours)) == (rows.of_exporter, rows.of_uprof), table
        for row in (*only_theirs, *only_ours):
            assert rows.are_wrong(dict(zip(columns, row, strict=True))), (table, row)
    return expected, found


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: (case not in QUICK, case)))
def test_database_equals_the_golden_with_any_window_size(
    case: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, script = shared / "goldens" / case, canon(shared / "goldens" / "canon.py")
    with tarfile.open(next(source.glob("PROF_*.tar.xz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (recorded,) = tmp_path.glob("PROF_*")
    golden = script["read"](str(source / "expected.txt.xz"))
    for name in ("usual.db", "small.db"):
        database = convert(recorded, tmp_path / name, schema=REVISION).database
        expected, found = drop_wrong_rows(
            golden, script["dump"](str(database)), EXPORTER_IS_WRONG.get(source.name, {})
        )
        with redirect_stdout(StringIO()) as lines:
            different = script["compare"](expected, found)
        assert not different, name + lines.getvalue()
        monkeypatch.setattr(recording, "Workspace", partial(Workspace, 37, run_bytes=1500))
