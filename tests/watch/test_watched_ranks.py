"""Watched ranks as one run: slow ranks, their part and onset, in simulated and in real jobs."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.cli.test_report import uprof as in_this_process
from tests.watch.simulated_ranks import BEGAN_NS, Job
from unified_prof.errors import StoreError
from unified_prof.pipeline.report_input import open_watched
from unified_prof.sqlite.watch_file import WatchFile, file_name, read_folder

# Kind of the finding for a fault in each part, and how its text names the part.
KINDS = {
    "data": ("late_input", "input"),
    "other": ("late_rank", "other Python code"),
    "forward": ("slow_rank", "forward passes"),
    "optimizer": ("slow_rank", "optimizer steps"),
}
BIN = Path(sys.executable).parent


def examine(place: str | Path) -> tuple[list[tuple[str, tuple[int, ...], int, str]], str]:
    """Return kind, ranks, first step and text of each finding, and the coverage."""
    with open_watched(str(place)) as overview:
        assert overview is not None
        assert overview.is_watched
        found = overview.run.findings
        return [(o.kind, o.ranks, o.steps[0], o.text) for o in found], overview.coverage


def is_named(finding: tuple[str, tuple[int, ...], int, str], job: Job) -> bool:
    kind, words = KINDS[job.part]
    return finding[:2] == (kind, (job.rank,)) and words in finding[3]


# Without optimizer, the exchange of gradients ends where the next step starts.
@pytest.mark.quick(cases=4)
@pytest.mark.parametrize(("part", "optimizer_ms"), [*((one, 2.0) for one in KINDS), ("data", 0.0)])
def test_rank_part_and_onset_of_a_fault_are_named(
    tmp_path: Path, part: str, optimizer_ms: float
) -> None:
    parts_ms = (1.0, 0.5, 6.0, 10.0, optimizer_ms)
    job = Job(parts_ms=parts_ms, rank=5, part=part, extra_ms=2.5, onset=200, steps=400)
    ((*finding, text),), coverage = examine(job.write(tmp_path))
    assert is_named((*finding, text), job), text  # type: ignore[arg-type]
    assert abs(int(str(finding[2])) - job.onset) <= 8
    assert coverage == "8 of 8 ranks"
    assert "since step" in text
    assert "rising" not in text


@pytest.mark.slow
def test_healthy_ranks_and_slow_backward_passes_have_no_finding(tmp_path: Path) -> None:
    assert examine(Job().write(tmp_path / "healthy"))[0] == []
    unknowable = Job(rank=3, part="backward", extra_ms=5)
    assert examine(unknowable.write(tmp_path / "backward"))[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_waits_in_the_forward_pass_are_not_its_work(tmp_path: Path, ranks: int) -> None:
    job = Job(ranks=ranks, rank=1, part="data", extra_ms=4, waits_in="forward")
    (finding,), _ = examine(job.write(tmp_path))
    assert is_named(finding, job)


@pytest.mark.slow
def test_ranks_may_mark_every_second_or_fourth_step(tmp_path: Path) -> None:
    job = Job(rank=3, extra_ms=3, steps=400)
    job.write(tmp_path)
    for rank in range(job.ranks):
        with closing(sqlite3.connect(tmp_path / file_name(rank))) as db, db:
            values = "forward_ns = NULL, backward_ns = NULL, optimizer_ns = NULL"
            db.execute(f"UPDATE STEP SET {values} WHERE step % ?", (2 + 2 * (rank % 2),))
    (finding,), coverage = examine(tmp_path)
    assert is_named(finding, job)
    assert coverage == "8 of 8 ranks"


def test_a_rank_that_drifts_has_a_trend(tmp_path: Path) -> None:
    ((*_, text),), _ = examine(Job(rank=2, extra_ms=3, grows=True).write(tmp_path))
    assert "rising from" in text


def test_missing_damaged_old_and_short_files_are_listed(tmp_path: Path) -> None:
    job = Job(rank=6, extra_ms=3)
    rows = job.rows()
    rows[4] = rows[4][:100]
    rows[3] = rows[3][:500]
    rows[2] = [one._replace(start_ns=one.start_ns - 3_600_000_000_000) for one in rows[2]]
    rows[7] = [one for one in rows[7] if not 100 <= one.step < 110]
    job.write(tmp_path, rows)
    (tmp_path / file_name(0)).unlink()
    damaged = tmp_path / file_name(1)
    damaged.write_bytes(damaged.read_bytes()[:5000])
    ((kind, ranks, *_),), coverage = examine(tmp_path)
    assert (kind, ranks) == ("slow_rank", (6,))
    assert "missing: 0" in coverage
    assert "rank 1: watch_rank1.db is cut" in coverage
    assert "rank 2: its last step began 3,58" in coverage
    assert "rank 3: its file ends with step 499, others with step 599" in coverage
    assert "rank 4: only 100 steps, others have up to 600" in coverage
    assert "rank 7: 10 of its first 600 steps are missing" in coverage
    assert str(tmp_path) not in coverage
    with pytest.raises(StoreError):
        read_folder(tmp_path)


def test_rotated_and_restarted_ranks_are_compared_in_their_latest_run(tmp_path: Path) -> None:
    earlier = Job(rank=1, extra_ms=3, steps=60)
    earlier.write(tmp_path)
    later = [[o._replace(start_ns=o.start_ns + 10**11) for o in rows] for rows in Job().rows()]
    for rank, rows in enumerate(later):
        facts = {"world_size": "8", "host": "a", "began_ns": str(BEGAN_NS + 10**11)}
        file = WatchFile(tmp_path, rank, facts, rotate_bytes=20_000)
        for first in range(0, len(rows), 200):
            file.append(rows[first : first + 200])
    assert (tmp_path / file_name(0, 2)).exists()
    assert examine(tmp_path) == ([], "8 of 8 ranks")


def test_a_run_that_has_just_begun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="have 5 steps in common, without the first 5"):
        examine(Job(steps=10).write(tmp_path))


def test_commands_read_directories_and_urls(tmp_path: Path) -> None:
    job = Job(rank=3, extra_ms=3, steps=100)
    job.write(tmp_path / "out")
    storage = fsspec.filesystem("memory")
    storage.put(f"{tmp_path}/out", "/watched/out", recursive=True)
    (finding,), _ = examine("memory://watched/out")
    assert is_named(finding, job)
    assert "slow forward passes: rank 3 on node0" in uprof("cluster", "report", tmp_path / "out")
    document = json.loads(uprof("cluster", "report", tmp_path / "out", "--format", "json"))
    assert [one["ranks"] for one in document["findings"]] == [[3]]
    assert uprof("cluster", "diff", tmp_path / "out", tmp_path / "out")


def uprof(*arguments: str | Path) -> str:
    done = in_this_process(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def random_job(seed: int, *, faulty: bool) -> Job:
    """A job of random shape; a fault takes 5 to 40 % of the step, from a random step on."""
    random = np.random.default_rng(seed)
    ranges = ((0.2, 3), (0.1, 2), (2, 30), (4, 60), (0.5, 8))
    job = Job(
        ranks=int(random.choice([4, 8, 8, 16, 32])),
        steps=int(random.integers(80, 800)),
        parts_ms=tuple(random.uniform(low, high) for low, high in ranges),
        transfer_ms=float(random.uniform(0.5, 10)),
        spread=float(random.uniform(0, 0.01)),
        jitter=float(random.uniform(0.005, 0.08)),
        pauses=float(random.choice([0, 0.005, 0.02])),
        seed=seed,
        offsets_ns={host: int(random.normal() * 2e6) for host in range(1, 9)},
    )
    if faulty:
        job.rank = int(random.integers(job.ranks))
        job.part = [*KINDS][random.integers(len(KINDS))]
        step_ms = sum(job.parts_ms) + job.transfer_ms
        job.extra_ms = float(random.uniform(0.05, 0.4)) * step_ms
        onset = random.integers(job.steps // 10, job.steps * 3 // 4)
        job.onset = int(onset * random.integers(2))
    return job


def score(folder: Path, seeds: range) -> Counter[str]:
    """Count jobs whose rank, part and onset are right, other findings, and false alarms."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        job = random_job(seed, faulty=True)
        found, _ = examine(job.write(folder / f"faulty{seed}"))
        named = [one for one in found if is_named(one, job)]
        late = [abs(one[2] - max(job.onset, 5)) for one in named]
        counts["rank"] += any(one[1] == (job.rank,) for one in found)
        counts["part"] += bool(named)
        counts["onset"] += bool(late) and late[0] <= 2 * max(8, -(-job.steps // 64))
        counts["other findings"] += len(found) - len(named)
        found, _ = examine(random_job(seed, faulty=False).write(folder / f"healthy{seed}"))
        counts["false alarms"] += bool(found)
    return counts


@pytest.mark.slow
def test_random_jobs_are_judged_as_documented(tmp_path: Path) -> None:
    counts = score(tmp_path, range(30))
    assert counts["part"] >= 28, counts
    assert counts["onset"] >= 27, counts
    assert counts["other findings"] + counts["false alarms"] <= 1, counts


TRAINING = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
fault, slow, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
is_slow = dist.get_rank() == slow

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def forward(self, batch):
        end = time.perf_counter() + (0.02 if is_slow and fault == "forward" else 0)
        while time.perf_counter() < end:
            torch.randn(32, 32).mm(torch.randn(32, 32))
        return self.layer(batch).square().mean()

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return steps * 4
    def __getitem__(self, index):
        time.sleep(0.008 if is_slow and fault == "data" else 0)
        return torch.randn(64)

net = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4):
    time.sleep(0.01)
    optimizer.zero_grad()
    net(batch).backward()
    optimizer.step()
dist.destroy_process_group()
"""


def start(folder: Path, fault: str, steps: int) -> subprocess.Popen[str]:
    """Start eight ranks, with a fault of rank 3."""
    (folder / "train.py").write_text(TRAINING)
    launch = f"{BIN}/torchrun --standalone --nproc-per-node 8 --no-python {BIN}/uprof watch"
    options = f"--backend cpu --share 0 -q -o out train.py {fault} 3 {steps}"
    return subprocess.Popen(
        [*launch.split(), *options.split()],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.timing
@pytest.mark.parametrize("fault", ["forward", "data"])
def test_a_slow_rank_of_a_real_job_is_named(tmp_path: Path, fault: str) -> None:
    pytest.importorskip("torch")
    child = start(tmp_path, fault, 120)
    output, _ = child.communicate(timeout=600)
    assert child.returncode == 0, output
    found, coverage = examine(tmp_path / "out")
    assert coverage == "8 of 8 ranks"
    assert is_named(found[0], Job(rank=3, part=fault)), found
    assert len(found) == 1, found


@pytest.mark.timing
def test_a_healthy_job_is_silent_and_captures_chosen_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    child = start(tmp_path, "none", 400)
    end_s = time.monotonic() + 300
    while time.monotonic() < end_s and child.poll() is None:
        time.sleep(0.5)
        ranks = read_folder(tmp_path / "out") if [*tmp_path.glob("out/watch_rank?.db")] else {}
        if len(ranks) == 8 and min(map(len, ranks.values())) >= 20:
            break
    made = json.loads(
        uprof(
            *("capture", tmp_path / "out", "--ranks", "2,5"),
            *("--steps", "3", "--timeout", "500", "--json"),
        )
    )["captures"]
    output, _ = child.communicate(timeout=600)
    assert child.returncode == 0, output
    assert sorted(one["rank"] for one in made) == [2, 5]
    assert {one["status"] for one in made} == {"ready"}
    events = {
        rank: [e for e in one.events if e.kind == "request"]
        for rank, one in read_folder(tmp_path / "out").items()
    }
    assert [rank for rank, found in events.items() if found] == [2, 5]
    names = {Path(str(events[rank][0].capture)).name.partition("_")[2] for rank in (2, 5)}
    assert len(names) == 1, names  # the same step
    assert examine(tmp_path / "out") == ([], "8 of 8 ranks")
