"""Runs commands on hostile inputs, each in a process of its own, and counts what goes wrong.

`python -m tests.hostile --rounds 1000` attacks every format and prints a table. A trial is a forked
process that runs the command line with limits on memory, processor time and file size.
"""

import csv
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.analysis.builders import training_step
from tests.hostile import mutators
from tests.hostile.formats import DOCUMENTED, Command, Format
from unified_prof.cli.app import main
from unified_prof.decoders import compression
from unified_prof.pipeline import temporary_inputs

# Limits of a trial; the inputs of mutations have a few kilobytes.
MAX_MEMORY_BYTES = 1 << 31  # of address space, of which Arrow reserves 1 GiB
MAX_CPU_S = 30
MAX_FILE_BYTES = 1 << 30
# A process that waits, for example for a pipe, uses no processor time.
MAX_WALL_S = 150
# Limits of uprof are lowered to these for a trial: inputs above its own take seconds.
MAX_ARCHIVE_MEMBERS = 12_000
MAX_INNER_ARCHIVE_BYTES = 128 << 20
# The result of a conversion is checked in one of so many trials.
_AFTERWARDS_EVERY = 4

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]")
_ASCII_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_MARKUP = re.compile(r"<script>alert|<img src=x|<svg onload")
_FORMULA = re.compile(r"^\s*[=+\-@\t\r](?![\d.,e%]*$)(?!-?(?:inf|nan)$)")


@dataclass
class Outcome:
    """What the commands of one trial did."""

    codes: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    peak_mb: int = 0
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)
    """JSON output of the first command."""


@dataclass
class Counts:
    """Results of many trials of one format."""

    trials: int = 0
    refused: int = 0
    peak_mb: int = 0
    slowest_s: float = 0.0
    mutations: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, outcome: Outcome) -> None:
        """Count a trial."""
        self.trials += 1
        self.refused += bool(outcome.codes and outcome.codes[0])
        self.peak_mb = max(self.peak_mb, outcome.peak_mb)
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        self.failures += [f"{name}: {what}" for what in outcome.wrong]


def import_everything() -> None:
    """Import what commands import on first use, so that forked processes need not."""
    import unified_prof

    for found in pkgutil.walk_packages(unified_prof.__path__, "unified_prof.", lambda _: None):
        with suppress(ImportError):  # without torch
            importlib.import_module(found.name)
    for name in ("pyarrow.parquet", "zstandard", "tomllib", "html", "csv"):
        importlib.import_module(name)


def attack(name: str, form: Format, folder: Path, rounds: int, first: int = 0) -> Counts:
    """Run the commands of a format on mutated inputs."""
    counts = Counts()
    made = _made(form, folder)
    whole = run(form, made, folder / "trial")
    assert not whole.wrong, whole.wrong
    assert whole.codes[0] == 0, whole
    for number in range(first, first + rounds):
        chance = random.Random(f"{name} {number}")
        copy = _copied(made, folder / "copy")
        mutation, path = mutators.mutate(copy, chance)
        if chance.random() < 0.1:
            with suppress(IndexError, MemoryError, RecursionError):  # nothing is left to change
                again, _ = mutators.mutate(copy, chance)
                mutation = f"{mutation}, {again}"
        counts.mutations[mutation] += 1
        outcome = run(form, copy, folder / "trial", afterwards=number % _AFTERWARDS_EVERY == 0)
        if mutation == "cut":
            outcome.wrong += _silent_loss(outcome, whole, path)
        counts.add(f"{name}, round {number}, {path.name} {mutation}", outcome)
    return counts


def attack_once(name: str, form: Format, folder: Path) -> Counts:
    """Run the commands of a format on its input, which is hostile itself."""
    counts = Counts()
    counts.add(name, run(form, _made(form, folder), folder / "trial"))
    return counts


def _made(form: Format, folder: Path) -> Path:
    import_everything()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "report.db").exists():
        training_step(folder / "report.db")
    (folder / "whole").mkdir()
    return form.make(folder / "whole")


def _copied(made: Path, target: Path) -> Path:
    _remove(target)
    target.mkdir()
    copy = target / made.name
    if made.is_dir():
        shutil.copytree(made, copy)
    else:
        shutil.copy(made, copy)
    return copy


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def run(form: Format, made: Path, trial: Path, *, afterwards: bool = True) -> Outcome:
    """Run the commands of a format in a forked process, and check what they leave."""
    _remove(trial)
    (trial / "tmp").mkdir(parents=True)
    database = trial / "out.db"
    places = {"IN": str(made), "OUT": str(database)}
    commands = [
        [places.get(one, one.replace("OUT/", f"{trial}/", 1)) for one in command]
        for command in (*form.commands, *(form.afterwards if afterwards else ()))
    ]
    outcome = _in_child(commands, len(form.commands), made.parent, trial)
    for number, code in enumerate(outcome.codes):
        command = commands[number]
        text = "".join(
            (trial / f"{name}{number}").read_text(encoding="utf-8", errors="surrogateescape")
            for name in ("output", "errors")
        )
        outcome.wrong += _wrong_output(command, code, text, is_after=number >= len(form.commands))
    if outcome.codes and outcome.codes[0] != 0 and database.exists():
        outcome.wrong.append("a database exists although the command failed")
    left = [path.name for path in (*(trial / "tmp").iterdir(), *trial.glob("*.partial*"))]
    if left and not outcome.wrong:
        outcome.wrong.append(f"left behind: {left}")
    outcome.wrong += _hostile_files(trial)
    if outcome.codes and outcome.codes[0] == 0 and "--json" in commands[0]:
        with suppress(ValueError):
            (outcome.record,) = json.loads((trial / "output0").read_text(encoding="utf-8"))
    return outcome


def _in_child(commands: Sequence[Command], required: int, cwd: Path, trial: Path) -> Outcome:
    outcome = Outcome()
    began = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(commands, required, cwd, trial, write)  # does not return
    os.close(write)
    data = b""
    while True:
        left = began + MAX_WALL_S - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            os.kill(child, signal.SIGKILL)
            break
        if not (part := os.read(read, 4096)):
            break
        data += part
    os.close(read)
    _, status, usage = os.wait4(child, 0)
    outcome.seconds = usage.ru_utime + usage.ru_stime
    outcome.peak_mb = usage.ru_maxrss // 1024
    outcome.codes = [int(line) for line in data.split()]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        running = commands[min(len(outcome.codes), len(commands) - 1)]
        outcome.wrong.append(
            f"{' '.join(running)}: ended by {name} after {outcome.seconds:.0f} s of CPU time"
        )
    return outcome


def _child(
    commands: Sequence[Command], required: int, cwd: Path, trial: Path, results: int
) -> None:
    """Run commands up to the first that fails, after those required; write their exit codes."""
    temporary_inputs._MAX_MEMBERS = MAX_ARCHIVE_MEMBERS
    compression._MAX_INNER_ARCHIVE_BYTES = MAX_INNER_ARCHIVE_BYTES
    os.environ.update(TMPDIR=str(trial / "tmp"), HOME=str(trial), COLUMNS="100")
    tempfile_reset()
    os.chdir(cwd)
    with Path("/proc/self/statm").open() as file:
        memory = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (memory + MAX_MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    for number, command in enumerate(commands):
        for stream, name in enumerate(("output", "errors"), start=1):
            os.dup2(os.open(trial / f"{name}{number}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.argv = ["uprof", *command]
        code = 255
        try:
            main([*command])
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as err:
            print(f"Traceback: {err!r}", file=sys.stderr)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os.write(results, f"{code}\n".encode())
        if number + 1 >= required and code != 0 and number == 0:
            break
    os._exit(0)


def tempfile_reset() -> None:
    """Have `tempfile` use the TMPDIR of the trial."""
    import tempfile

    tempfile.tempdir = None


def _wrong_output(command: Command, code: int, text: str, *, is_after: bool) -> Iterator[str]:
    shown = " ".join(command[:1])
    end = text.strip()[-700:]
    if code == 70 or "Traceback" in text:
        yield f"{shown}: internal error: {end}"
    elif is_after and code != 0 and command[0] != "cluster":
        yield f"{shown} of the result: exit code {code}: {end}"
    elif code not in DOCUMENTED[command[0]]:
        yield f"{shown}: exit code {code} is not documented: {end}"
    if found := _CONTROL.search(text):
        yield f"{shown}: control character {found[0]!r} in the output"


def _hostile_files(trial: Path) -> Iterator[str]:
    """Check written text files: no formulas, markup or control characters."""
    for path in trial.rglob("*"):
        if path.suffix not in (".csv", ".html", ".json") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        # In JSON, a parser gives characters beyond ASCII to a program, not to a terminal.
        pattern = _CONTROL if path.suffix != ".json" else _ASCII_CONTROL
        if found := pattern.search(text):
            yield f"{path.name}: control character {found[0]!r}"
        if path.suffix == ".html" and (found := _MARKUP.search(text)):
            yield f"{path.name}: markup of a name: {found[0]}"
        if path.suffix == ".csv":
            for row in csv.reader(text.splitlines()):
                for cell in row:
                    if _FORMULA.match(cell):
                        yield f"{path.name}: formula {cell[:60]!r}"


def _silent_loss(outcome: Outcome, whole: Outcome, path: Path) -> Iterator[str]:
    """Check that a cut file is refused, or that the loss is counted."""
    if not outcome.record or not whole.record or not path.is_file():
        return
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return  # indistinguishable from a complete file
    rows = outcome.record["rows"]
    lost = {t: n - rows.get(t, 0) for t, n in whole.record["rows"].items() if rows.get(t, 0) < n}
    if lost and outcome.record["anomalies"] == whole.record["anomalies"]:
        yield f"rows are lost without an anomaly: {lost}"
