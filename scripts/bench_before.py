"""Compare the CPU time of commands between this checkout and another revision.

    python scripts/bench_before.py --before REV [--rounds 9] [--minutes 10] [--scale 0.1]
        [--only PART ...]

The inputs are smaller versions of those of the other benchmarks; for start-up, an NPU recording
with 1,000 operators and a trace of similar size. Each command runs in a separate process,
alternating between the checkouts, so that other load on the machine affects both equally. No pair
starts after `--minutes`. Commands that take longer than `--limit` seconds, or that a checkout does
not have, are listed below the table. The table has median CPU times (user and system, children
included), median and quartiles of the ratios of the pairs, the ratio of the minimum times, which
depends least on the load, and the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import bench_diff
import bench_import
import bench_report
import bench_upgrade
from checkouts import ROOT, command, environment, runnable_checkout

# A training of small steps, where the overhead of tracking is visible.
TRAINING = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(20))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(300):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
"""
# Number of operators of the recording that start-up is measured with.
SMALL = 1_000

# Rows that are the time of one command minus that of another, in the same round.
DIFFERENCES = {"tracking of 150 iterations": ("run, measuring 200", "run, measuring 50")}


def inputs(folder: Path, scale: float) -> None:
    """Write the inputs of the commands."""
    bench_report.make(folder / "tasks.db", int(1_000_000 * scale))
    bench_upgrade.make(folder / "old.db", "1.0.0_20241112", int(580_000 * scale))
    bench_import.write_trace(folder / "trace.json", int(50 * bench_import.MB * scale))
    bench_import.write_trace(folder / "small.json", SMALL * 300)
    for name, seed in (("base", 1), ("new", 2)):
        count = int(10_000 * scale)
        bench_diff.make_report(folder / f"{name}.sqlite", count, 20, seed=seed, changed=seed == 2)
        bench_diff.make_report(folder / f"small_{name}.sqlite", 50, 20, seed=seed)
    for name, operators in (("prof", int(50_000 * scale)), ("small", SMALL)):
        generator = [sys.executable, str(ROOT / "scripts" / "make_prof.py"), str(folder / name)]
        options = ("--operators", str(operators), "--pmu", "PipeUtilization")
        subprocess.run([*generator, *options], check=True, stdout=subprocess.DEVNULL)
    for made, words in (
        ("npu.db", ("build", str(recording(folder / "small")))),
        ("gpu.db", ("import", "small.json")),
    ):
        words = (*words, "-o", made, "-q")
        subprocess.run(command(*words), cwd=folder, env=environment(ROOT), check=True)
    (folder / "training.py").write_text(TRAINING, encoding="utf-8")


def recording(folder: Path) -> Path:
    """Return the recording that `make_prof.py` wrote to a directory."""
    return next(folder.glob("PROF_*"))


def commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands by their name in the table."""
    page = ("-o", "page.html", "--force")
    run = ("run", "--backend", "cpu", "-q", "-o", "out", "--force")
    return {
        "--help": ("--help",),
        "report, small NPU": ("report", "npu.db"),
        "report --format json, small NPU": ("report", "npu.db", "--format", "json"),
        "report --format html, small NPU": ("report", "npu.db", *page),
        "report, small GPU": ("report", "gpu.db"),
        "report --format json, small GPU": ("report", "gpu.db", "--format", "json"),
        "report, small tracked run": ("report", "small_base.sqlite"),
        "diff, small": ("diff", "small_base.sqlite", "small_new.sqlite"),
        "gate, small": ("gate", "small_base.sqlite", "small_new.sqlite", "--max-regress", "90%"),
        "build, small": ("build", str(recording(folder / "small")), *BUILT),
        "import, small": ("import", "small.json", *BUILT),
        "report --top 20": ("report", "tasks.db", "--top", "20"),
        "report --by kernel": ("report", "tasks.db", "--by", "kernel"),
        "report --format json": ("report", "tasks.db", "--format", "json"),
        "report --format html": ("report", "tasks.db", *page),
        "trace": ("trace", "tasks.db", "-o", "trace.perfetto-trace", "--force"),
        "diff": ("diff", "base.sqlite", "new.sqlite"),
        "gate": ("gate", "base.sqlite", "new.sqlite", "--max-regress", "90%"),
        "build": ("build", str(recording(folder / "prof")), *BUILT),
        "import": ("import", "trace.json", *BUILT),
        "db upgrade": ("db", "upgrade", "old.db", "-o", "upgraded.db", "--force"),
        "run, measuring 50": (*run, "--iterations", "50", "training.py"),
        "run, measuring 200": (*run, "--iterations", "200", "training.py"),
    }


BUILT = ("-o", "built.db", "--force", "-q")


class LeftOutError(Exception):
    """A command cannot be compared."""


def cpu_s(words: tuple[str, ...], code: Path, folder: Path, limit_s: float) -> float:
    """Run `uprof` of a checkout and return its CPU seconds.

    Raises:
        LeftOutError: The command failed or took too long.
    """
    process = subprocess.Popen(
        command(*words),
        cwd=folder,
        env=environment(code),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # end it with all its child processes
    )
    impatience = threading.Timer(limit_s, _end, (process.pid,))
    impatience.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        _end(process.pid)
        raise
    finally:
        impatience.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    whose = "this checkout" if code == ROOT else "the other one"
    if process.returncode == -signal.SIGKILL:
        raise LeftOutError(f"{whose} takes longer than {limit_s:g} s")
    if process.returncode:
        raise LeftOutError(f"exit code {process.returncode} of {whose}")
    return usage.ru_utime + usage.ru_stime


def _end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class Comparison:
    """CPU times of both checkouts, and commands that could not be compared."""

    def __init__(self, before: Path, folder: Path, limit_s: float) -> None:
        self._before, self._folder, self._limit_s = before, folder, limit_s
        # Per round: command -> (CPU seconds before, after).
        self.rounds: list[dict[str, tuple[float, float]]] = []
        self.left_out: dict[str, str] = {}

    def measure(self, chosen: dict[str, tuple[str, ...]], rounds: int, until: float) -> None:
        """Run the commands once to fill caches, then `rounds` times or until `until`."""
        for number in range(rounds + 1):
            times: dict[str, tuple[float, float]] = {}
            if number:
                self.rounds.append(times)
            for name, words in chosen.items():
                if time.monotonic() > until:
                    return
                if name not in self.left_out:
                    try:
                        times[name] = self._pair(words, turned=bool(number % 2))
                    except LeftOutError as err:
                        self.left_out[name] = str(err)

    def _pair(self, words: tuple[str, ...], *, turned: bool) -> tuple[float, float]:
        sides = (self._before, ROOT) if turned else (ROOT, self._before)
        found = {code: cpu_s(words, code, self._folder, self._limit_s) for code in sides}
        return found[self._before], found[ROOT]

    def pairs(self, name: str) -> list[tuple[float, float]]:
        """Return (before, after) times of a command, or of the difference of two commands."""
        if name not in DIFFERENCES:
            return [one[name] for one in self.rounds if name in one]
        more, less = DIFFERENCES[name]
        both = [(one[more], one[less]) for one in self.rounds if more in one and less in one]
        found = [(a[0] - b[0], a[1] - b[1]) for a, b in both]
        return [one for one in found if min(one) > 0]


def row(name: str, pairs: list[tuple[float, float]]) -> str:
    """Return a row of the table."""
    before, after = zip(*pairs, strict=True)
    ratios = [new / old for old, new in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    least = min(after) / min(before)
    return (
        f"| {name} | {statistics.median(before):.2f} s | {statistics.median(after):.2f} s "
        f"| {middle:.2f} ({low:.2f}-{high:.2f}) | {least:.2f} | {len(pairs)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="REV")
    parser.add_argument("--rounds", type=int, default=9, help="maximum number of rounds")
    parser.add_argument("--minutes", type=float, default=10, help="start no pair after this time")
    parser.add_argument("--limit", type=float, default=60, help="maximum seconds per command")
    parser.add_argument("--scale", type=float, default=0.1, help="factor for the size of inputs")
    parser.add_argument("--only", action="append", help="only commands with this prefix")
    options = parser.parse_args()
    with (
        runnable_checkout(options.before) as before,
        tempfile.TemporaryDirectory(prefix="uprof-bench-") as temporary,
    ):
        folder = Path(temporary)
        inputs(folder, options.scale)
        chosen = {
            name: words
            for name, words in commands(folder).items()
            if not options.only or name.startswith(tuple(options.only))
        }
        loads = [os.getloadavg()[0]]
        comparison = Comparison(before, folder, options.limit)
        comparison.measure(chosen, options.rounds, time.monotonic() + 60 * options.minutes)
        loads.append(os.getloadavg()[0])
        revision = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    heads = ("`uprof`", options.before, revision, "ratio (quartiles)", "ratio of minimum", "pairs")
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|")
    for name in (*chosen, *DIFFERENCES):
        if pairs := comparison.pairs(name):
            print(row(name, pairs))
    for name, why in comparison.left_out.items():
        print(f"{name}: {why}")
    print(f"scale {options.scale:g}, load {loads[0]:.1f} to {loads[1]:.1f}")


if __name__ == "__main__":
    main()
