"""CPU time of the commands of this checkout beside that of another revision.

    python scripts/bench_before.py --before REV [--rounds 9] [--scale 1] [--only PART ...]

The inputs are those of the other benchmarks, smaller. Each command runs in a process of its own,
once with each checkout in turn, so that what else the machine does disturbs both alike. Shown are
medians of the processor time (user and system, children included), the median ratio of the pairs,
the quarter and three quarter points of these ratios, and the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bench_diff
import bench_import
import bench_report
import bench_upgrade
from checkouts import ROOT, checkout, command, environment

# A training of small steps: what tracking costs shows, and it is not over at once.
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


def inputs(folder: Path, scale: float) -> None:
    """Write what the commands read."""
    bench_report.make(folder / "tasks.db", int(1_000_000 * scale))
    bench_upgrade.make(folder / "old.db", "1.0.0_20241112", int(580_000 * scale))
    bench_import.write_trace(folder / "trace.json", int(50 * bench_import.MB * scale))
    for name, seed in (("base", 1), ("new", 2)):
        count = int(10_000 * scale)
        bench_diff.make_report(folder / f"{name}.sqlite", count, 20, seed=seed, changed=seed == 2)
    generator = [sys.executable, str(ROOT / "scripts" / "make_prof.py"), str(folder / "prof")]
    options = ("--operators", str(int(50_000 * scale)), "--pmu", "PipeUtilization")
    subprocess.run([*generator, *options], check=True, stdout=subprocess.DEVNULL)
    (folder / "training.py").write_text(TRAINING, encoding="utf-8")


def commands(prof: Path) -> dict[str, tuple[str, ...]]:
    """Return the commands, by what they are called in the table."""
    return {
        "--help": ("--help",),
        "report --top 20": ("report", "tasks.db", "--top", "20"),
        "report --by kernel": ("report", "tasks.db", "--by", "kernel"),
        "report -o page.html": ("report", "tasks.db", "-o", "page.html", "--force"),
        "trace": ("trace", "tasks.db", "-o", "trace.perfetto-trace", "--force"),
        "diff": ("diff", "base.sqlite", "new.sqlite"),
        "gate": ("gate", "base.sqlite", "new.sqlite", "--max-regress", "90%"),
        "build": ("build", str(prof), "-o", "built.db", "--force", "-q"),
        "import": ("import", "trace.json", "-o", "imported.db", "--force", "-q"),
        "db upgrade": ("db", "upgrade", "old.db", "-o", "upgraded.db", "--force"),
        "run, measuring 200": (
            *("run", "--backend", "cpu", "--iterations", "200", "-q", "-o", "out", "--force"),
            "training.py",
        ),
    }


def cpu_s(words: tuple[str, ...], code: Path, folder: Path) -> float:
    """Run `uprof` of a checkout; return its seconds of processor time."""
    process = subprocess.Popen(
        command(*words),
        cwd=folder,
        env=environment(code),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code}: uprof {' '.join(words)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="REV")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=float, default=1, help="of the inputs' sizes")
    parser.add_argument("--only", action="append", help="commands that begin like this")
    options = parser.parse_args()
    with (
        checkout(options.before) as before,
        tempfile.TemporaryDirectory(prefix="uprof-bench-") as temporary,
    ):
        folder = Path(temporary)
        inputs(folder, options.scale)
        chosen = {
            name: words
            for name, words in commands(next(folder.glob("prof/PROF_*"))).items()
            if not options.only or name.startswith(tuple(options.only))
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        loads = [os.getloadavg()[0]]
        for number in range(options.rounds + 1):
            for name, words in chosen.items():
                sides = (before, ROOT) if number % 2 else (ROOT, before)
                found = {code: cpu_s(words, code, folder) for code in sides}
                if number:  # the first fills caches
                    times[name].append((found[before], found[ROOT]))
            loads.append(os.getloadavg()[0])
        revision = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    print(f"| command | {options.before} | {revision} | ratio (quarters) |")
    print("|---|---|---|---|")
    for name, pairs in times.items():
        old, new = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [after / first for first, after in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(
            f"| `uprof {name}` | {old:.2f} s | {new:.2f} s | {middle:.2f} ({low:.2f}-{high:.2f}) |"
        )
    print(f"{options.rounds} pairs each, load {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main()
