"""Compare uprof's cluster findings with msprof-analyze's recipes on simulated runs.

    python scripts/compare_cluster.py --tool PATH/make_cluster.py --msprof-analyze PATH
    python scripts/compare_cluster.py ... --shape 2,2,2 --per-host 4      smaller

Both read the same NPU databases in alternating processes, without caches. The recipes need data
that the tool does not write: analysis.db, which is generated like torch_npu does, but with links
between hosts, and copies; every step gets one copy of 1 us. CPU seconds are medians and include
child processes.

Recipes write tables, not verdicts; the row that a reader would check first is taken as the answer:

    slow_rank                   the rank with the most votes
    slow_link                   kinds of collectives with outliers, and the slowest rank of each
    cluster_time_summary        ranks with the longest compute and free time, over the median
    communication_matrix_sum    link with the lowest bandwidth among calls of equal size

Prints two Markdown tables; correct names are bold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unified_prof.pipeline.analysis_db import accompany

Answer = str
Row = sqlite3.Row

_MEMCPY = "MEMCPY_ASYNC"
_COPY_NS = 1000
_NO_CONNECTION = 2**32 - 1


@dataclass(frozen=True)
class Fault:
    """Fault of a simulated run, and its correct names."""

    name: str
    options: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    links: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Answers:
    """Answers of all tools about one run."""

    fault: Fault
    answers: dict[str, Answer] = field(default_factory=dict)
    # Tool -> rank -> waiting time in ms.
    waits: dict[str, Mapping[int, float]] = field(default_factory=dict)


def faults(shape: tuple[int, int, int], per_host: int) -> Iterator[Fault]:
    tp, dp, pp = shape
    stage = tp * dp
    slow, host = stage * pp * 37 // 64, stage * pp // per_host // 2
    first = stage * 3 // 4 // tp * tp
    across, within = (first, first + stage), (first, first + 1)
    yield Fault("none")
    slower = ("--slow-rank", str(slow), "--slow", "1.1")
    yield Fault(f"rank {slow} x 1.1", slower, frozenset({slow}))
    for ends in (across, within):
        a, b = ends
        name = f"link {a}-{b} x 3"
        options = ("--slow-link", f"{a},{b}")
        yield Fault(name, options, frozenset(ends), frozenset({(a, b), (b, a)}))
    ranks = frozenset(range(host * per_host, (host + 1) * per_host))
    yield Fault(
        f"host {host}: ranks {min(ranks)} to {max(ranks)}", ("--slow-host", str(host)), ranks
    )
    late = stage * pp // 3
    yield Fault(f"input {late}", ("--late-input-rank", str(late)), frozenset({late}))


def make(tool: Path, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """Simulate a run with all data that the recipes need, and return its truth."""
    subprocess.run(
        [sys.executable, str(tool), str(folder), *options], check=True, capture_output=True
    )
    for database in sorted(folder.rglob("ascend_pytorch_profiler_*.db")):
        complete(database)
    # msprof-analyze refuses group-writable files.
    subprocess.run(["chmod", "-R", "go-w", str(folder)], check=True)
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return truth


def complete(database: Path) -> None:
    """Add a copy to every step, and write analysis.db.

    The analysis leaves out copies over RoCE, which are other tasks on real devices, so the matrix
    would have no links between hosts. They are marked as HCCS while it is generated.
    """
    with closing(sqlite3.connect(database)) as db:
        (text,) = db.execute("SELECT max(id) + 1 FROM STRING_IDS").fetchone()
        db.execute("INSERT INTO STRING_IDS (id, value) VALUES (?, ?)", (text, _MEMCPY))
        db.execute(
            "INSERT INTO TASK SELECT s.startNs + :ns, s.startNs + 2 * :ns, deviceId, :none,"
            " (SELECT max(globalTaskId) FROM TASK) + 1 + s.id, globalPid, :kind, contextId,"
            " streamId, 60000 + s.id, modelId"
            " FROM STEP_TIME s, (SELECT * FROM TASK ORDER BY globalTaskId LIMIT 1)",
            {"ns": _COPY_NS, "none": _NO_CONNECTION, "kind": text},
        )
        change = (
            "UPDATE COMMUNICATION_TASK_INFO SET linkType = ?, transportType = ? WHERE rowid = ?"
        )
        sdma = tuple(
            db.execute(f"SELECT id FROM {table} WHERE name = ?", (name,)).fetchone()[0]
            for table, name in (
                ("ENUM_HCCL_LINK_TYPE", "HCCS"),
                ("ENUM_HCCL_TRANSPORT_TYPE", "SDMA"),
            )
        )
        roce = db.execute(
            "SELECT linkType, transportType, c.rowid FROM COMMUNICATION_TASK_INFO c"
            " JOIN ENUM_HCCL_LINK_TYPE l ON l.id = linkType WHERE l.name = 'ROCE'"
        ).fetchall()
        db.executemany(change, [(*sdma, row) for *_, row in roce])
        db.commit()
        accompany(database, None, what=None, force=True)
        db.executemany(change, roce)
        db.commit()


def timed(command: Sequence[object], log: Path) -> float:
    """Run a command and return its CPU seconds, children included."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=output,
            env=os.environ | {"HOME": str(log.parent)},
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {process.returncode}\n{log.read_text()}")
    return usage.ru_utime + usage.ru_stime


def bold(name: str, right: bool) -> str:
    return f"**{name}**" if right else name


def slow_rank(rows: Callable[[str], list[Row]], result: Answers) -> Answer:
    votes = sorted(rows("SlowRank"), key=lambda row: -row["slowAffectCount"])
    if not votes:
        return "no rank"
    most = votes[0]["slowAffectCount"]
    first = [int(row["rankId"]) for row in votes if row["slowAffectCount"] == most]
    all_votes = sum(row["slowAffectCount"] for row in votes)
    who = ", ".join(bold(str(rank), rank in result.fault.ranks) for rank in sorted(first))
    return f"{who}: {most} of {all_votes} votes" + (" each" if len(first) > 1 else "")


def slow_link(rows: Callable[[str], list[Row]], result: Answers) -> Answer:
    right = result.fault.ranks if result.fault.links else frozenset()
    found = [
        f"{bold(str(row['maxRank']), row['maxRank'] in right)}"
        f" in {row['opTypeRelatedRanksDataSize'].removeprefix('hcom_')}"
        for row in rows("SlowLinkSum")
    ]
    return "; ".join(found) or "no rank"


def time_summary(rows: Callable[[str], list[Row]], result: Answers) -> Answer:
    columns = ("computation", "free", "communicationWaitStageTime")
    sums: dict[str, dict[int, float]] = {name: defaultdict(float) for name in columns}
    for row in rows("ClusterTimeSummary"):
        for name, by_rank in sums.items():
            by_rank[row["rank"]] += row[name] / 1e3
    result.waits["recipe"] = sums["communicationWaitStageTime"]
    answers = []
    for name, word in (("computation", "computes"), ("free", "is free")):
        most = max(sums[name], key=sums[name].__getitem__)
        ratio = sums[name][most] / statistics.median(sums[name].values())
        answers.append(f"{bold(str(most), most in result.fault.ranks)} {word} {ratio:.3f}")
    return ", ".join(answers)


def matrix(rows: Callable[[str], list[Row]], result: Answers) -> Answer:
    moved: defaultdict[tuple[str, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    sizes: dict[tuple[str, int, int], float] = {}
    for row in rows("ClusterCommunicationMatrix"):
        kind, _, place = row["hccl_op_name"].partition("-")
        key = (kind, int(row["src_rank"]), int(row["dst_rank"]))
        if place == "total" and row["transit_time"]:
            moved[key][0] += row["transit_size"]
            moved[key][1] += row["transit_time"]
        elif place == "top1":
            sizes[key] = round(row["transit_size"], 3)
    alike: defaultdict[tuple[str, float], dict[tuple[int, int], float]] = defaultdict(dict)
    for (kind, a, b), (size, ms) in moved.items():
        alike[kind, sizes[kind, a, b]][a, b] = size / ms
    least = min(
        (speed / statistics.median(group.values()), ends)
        for group in alike.values()
        for ends, speed in group.items()
    )
    ratio, ends = least
    return f"{bold('-'.join(map(str, ends)), ends in result.fault.links)}: {ratio:.2f}"


RECIPES: dict[str, Callable[[Callable[[str], list[Row]], Answers], Answer]] = {
    "slow_rank": slow_rank,
    "slow_link": slow_link,
    "cluster_time_summary": time_summary,
    "communication_matrix_sum": matrix,
}
OURS = "uprof"


def recipe(program: Path, name: str, run: Path, work: Path, result: Answers) -> float:
    output = work / name
    output.mkdir(mode=0o750)
    command = [program, "cluster", "-m", name, "-d", run, "-o", output]
    seconds = timed(command, work / f"{name}.log")
    database = output / "cluster_analysis_output" / "cluster_analysis.db"
    if not database.exists():
        result.answers[name] = "no rank"
        return seconds
    with closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}

        def rows(table: str) -> list[Row]:
            return db.execute(f"SELECT * FROM {table}").fetchall() if table in tables else []

        result.answers[name] = RECIPES[name](rows, result)
    return seconds


def ours(run: Path, work: Path, result: Answers) -> float:
    uprof = Path(sys.executable).with_name("uprof")
    made, report = work / "run.cluster", work / "report.json"
    seconds = timed([uprof, "cluster", "build", run, "-o", made], work / "build.log")
    command = [uprof, "cluster", "report", made, "--format", "json", "-o", report]
    seconds += timed(command, work / "report.log")
    said = json.loads(report.read_text())
    result.waits[OURS] = {one["rank"]: one["wait_ns"] * one["steps"] / 1e6 for one in said["ranks"]}
    findings = said["findings"]
    result.answers[OURS] = _finding(findings[0], result.fault) if findings else "nothing"
    if len(findings) > 1:
        result.answers[OURS] += f", and {len(findings) - 1} more"
    return seconds


def _finding(first: Mapping[str, Any], fault: Fault) -> str:
    ranks = frozenset(first["ranks"])
    if first["kind"] == "slow_link":
        right = bool(fault.links) and fault.ranks <= ranks
    else:
        right = ranks == fault.ranks and not fault.links
    name = "-".join(map(str, first["ranks"])) if len(ranks) <= 4 else ", ".join(first["hosts"])
    how = first["figures"].get("factor", first["figures"].get("late_ms"))
    factor = "" if how is None else f", {how:.3f}"
    return (
        f"{first['kind']} {bold(name, right)}{factor}; {first['cost_ms_per_step']:.3f} ms per step"
    )


def compared(
    given: argparse.Namespace, fault: Fault, base: Sequence[str], seconds: dict[str, list[float]]
) -> tuple[Answers, dict[int, float]]:
    """Simulate the run of a fault, and run all tools on it in turn."""
    result = Answers(fault)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o750)
        run = Path(folder) / "run"
        truth = make(given.tool, run, [*base, *fault.options])
        for turn in range(given.rounds):
            work = Path(folder) / f"work{turn}"
            work.mkdir(mode=0o750)
            for name in RECIPES:
                seconds[name].append(recipe(given.msprof_analyze, name, run, work, result))
            seconds[OURS].append(ours(run, work, result))
    return result, {int(rank): about["wait_ns"] / 1e6 for rank, about in truth["ranks"].items()}


def waiting(result: Answers, truth: Mapping[int, float], rank: int) -> str:
    """Return a row of the second table: waiting time of a rank, and the largest relative error."""
    cells = [result.fault.name, f"{truth[rank]:.3f}"]
    for who in ("recipe", OURS):
        said = result.waits.get(who, {})
        off = max(abs(said.get(one, 0.0) / true - 1) for one, true in truth.items())
        cells.append(f"{said.get(rank, math.nan):.3f} | {off:.2%}")
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tool", type=Path, required=True, help="make_cluster.py")
    parser.add_argument("--msprof-analyze", type=Path, required=True, help="the program")
    parser.add_argument("--shape", default="4,4,4", help="TP,DP,PP (4,4,4)")
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="rounds per run (1)")
    given = parser.parse_args()
    tp, dp, pp = (int(size) for size in given.shape.split(","))
    base = [
        *("--tp", str(tp), "--dp", str(dp), "--pp", str(pp)),
        *("--per-host", str(given.per_host)),
    ]
    rank = tp * dp * pp * 37 // 64
    seconds: dict[str, list[float]] = defaultdict(list)
    names = [*RECIPES, OURS]
    print(f"| planted | {' | '.join(names)} |\n" + "|---" * (len(names) + 1) + "|")
    waits = []
    for fault in faults((tp, dp, pp), given.per_host):
        result, truth = compared(given, fault, base, seconds)
        print(
            f"| {fault.name} | {' | '.join(result.answers[name] for name in names)} |", flush=True
        )
        waits.append(waiting(result, truth, rank))
    medians = (f"{statistics.median(seconds[name]):.1f}" for name in names)
    print(f"| CPU s | {' | '.join(medians)} |")
    print(
        f"\n| planted | rank {rank} waits, ms: true | cluster_time_summary | largest error"
        " | uprof | largest error |\n" + "|---" * 6 + "|"
    )
    print("\n".join(waits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
