"""Run workloads in two checkouts in lock-step until a verdict is certain.

In each round, both checkouts are started anew as live processes that step in turn: base, candidate,
candidate, base, and so on. Slow changes of the machine therefore affect both equally, and the
rounds average out what differs between processes. See `tracking.lockstep` for the other side.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

import numpy as np
from msgspec import Struct, structs

from unified_prof.base.redaction import redact
from unified_prof.base.run_spec import TURNS_VARIABLE, Turns
from unified_prof.compare import runs
from unified_prof.compare.comparable import PEAK, TOTAL, Run, pool, program_times
from unified_prof.compare.confidence import (
    ALPHA,
    MIN_PAIRED_ROUNDS,
    Noise,
    paired_changes,
    quantile,
)
from unified_prof.compare.gate import (
    OPERATION,
    Effort,
    Limits,
    Verdicts,
    default_metrics,
    gate_workloads,
    require_measured,
)
from unified_prof.errors import CaptureError, UsageError, system_errors
from unified_prof.pipeline.outputs import output_directory
from unified_prof.sqlite.atomic import temporary_folder

# Minimum rounds for a verdict on times, and default maximum.
MIN_ROUNDS = MIN_PAIRED_ROUNDS
MAX_ROUNDS = 12
# Minimum and maximum CPU time that a round measures per side, and maximum wall time of both.
_MIN_S, _MAX_S, _MAX_WALL_S = 1.0, 4.0, 12.0
# Standard error of a round's change at which more iterations add little to the verdict.
_GOOD_ERROR = 0.01
# Aim for the duration of a turn: long enough to refill caches, short against drift.
_TURN_S = 0.03
_MIN_TURNS = 6
# Settings that make the CPU time of processes vary less, unless the environment sets them. Threads
# that wait for others sleep; NumPy uses one thread, like torch (`lockstep.use_one_thread`). Freed
# memory stays with the process (glibc): otherwise, the layout of its heap decides how many pages
# each iteration has to get from the kernel, up to 30 % of its time.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
# Lines of the output of a failed workload that an error contains, and bytes in which they are
# searched.
_SHOWN_LINES, _SHOWN_BYTES = 3, 20_000
_CHECK_S = 0.2  # Seconds between checks whether a process that sends nothing has ended.
TIMEOUT_S = 600  # Default limit of the time without progress.


class Workload(Struct, frozen=True):
    """A workload for `uprof run`."""

    command: tuple[str, ...]  # Options of `uprof run`, the script, and its arguments.
    keep: Path | None = None  # Directory for the reports; None: the reports are not kept.
    # Python interpreters for baseline and candidate.
    pythons: tuple[str, str] = (sys.executable, sys.executable)
    timeout_s: float = TIMEOUT_S  # Maximum time without progress of a run.


class Messages(Struct, frozen=True):
    """Receivers of messages while runs are in progress."""

    # Called with a short description of the current step.
    progress: Callable[[str], None] = lambda _: None
    # Called with the output of each run of the first round.
    relay: Callable[[str], None] = lambda _: None


def until_sure(
    base: Path,
    new: Path,
    workloads: Mapping[str, Workload],
    metrics: Sequence[str],
    limits: Limits,
    *,
    noise: Noise | None = None,
    most: int = MAX_ROUNDS,
    messages: Messages | None = None,
) -> tuple[Verdicts, dict[str, tuple[Run, Run]]]:
    """Run workloads in two checkouts in lock-step until the verdict is certain.

    The rounds end when the verdict for all workloads is certain or one of them has regressed.
    Reports are kept in the directory of the first workload; if there are several workloads, each
    has a subdirectory. Without `metrics`, the default is judged, and memory may not rise either;
    `noise` is the run-to-run variation given by the user, `most` the maximum number of rounds.

    Returns:
        The verdicts, and the measurements of each workload on both sides.

    Raises:
        UsageError: a checkout is not a directory, there is no workload, `most` is below
            MIN_ROUNDS, or the system has no `waitid`.
        CaptureError: a workload failed, hung, or could not be measured.
        OutputError: the reports cannot be written.
    """
    if not metrics:
        limits = replace(limits, by_metric={PEAK: 0.0, **limits.by_metric})
    began, number = time.monotonic(), 0
    for pairs, paired in _rounds((base, new), workloads, metrics, most, messages or Messages()):
        number += 1
        judged = metrics or default_metrics(pairs.values())
        noises = dict.fromkeys(pairs, noise)
        verdicts = gate_workloads(pairs, judged, limits, noises, paired=paired)
        if _is_final(verdicts, number, paired):
            break
    return structs.replace(verdicts, effort=Effort(number, time.monotonic() - began)), pairs


def with_itself(
    workload: Workload, rounds: int, *, messages: Messages | None = None
) -> tuple[tuple[Run, Run], Effort]:
    """Run one workload against itself in the current directory, in `rounds` rounds.

    Raises:
        UsageError: too few rounds.
        CaptureError: the workload failed, hung, or could not be measured.
    """
    here, began = Path.cwd(), time.monotonic()
    *_, (pairs, _) = _rounds((here, here), {"": workload}, [], rounds, messages or Messages())
    return pairs[""], Effort(rounds, time.monotonic() - began)


def smallest_change(pair: tuple[Run, Run], limits: Limits, rounds: int) -> float:
    """Return the smallest regression that is usually detected in `rounds` rounds.

    A regression of this size is detected in half of the cases, a slightly larger one nearly always.
    `pair` has both sides of a workload that was run against itself. Raises UsageError if the
    workload has no times, or too few rounds had enough iterations.
    """
    base, new, _ = program_times(*pair)
    changes = paired_changes(base.sample(TOTAL), new.sample(TOTAL))
    if len(changes) < MIN_ROUNDS:
        raise UsageError(
            f"only {len(changes)} rounds had enough iterations, at least {MIN_ROUNDS} needed",
            hint="let the script run more iterations",
            slug="too-few-runs",
        )
    error = float(np.std(changes, ddof=1)) / math.sqrt(rounds)
    return (1 + limits.max_regress) * math.exp(quantile(ALPHA, len(changes) - 1) * error) - 1


def _is_final(verdicts: Verdicts, number: int, paired: bool) -> bool:
    """Return True if no further round is needed.

    With fewer than MIN_ROUNDS rounds in turn, times can only be compared run by run, and two runs
    of a side may agree by chance: only metrics without a clock are decided earlier.
    """
    if verdicts.outcome == "inconclusive" or not paired or number >= MIN_ROUNDS:
        return verdicts.outcome != "inconclusive"
    checks = [*verdicts.together, *(one for each in verdicts.each.values() for one in each.checks)]
    exact = [one.outcome for one in checks if one.shift is None]
    return "regression" in exact or len(exact) == len(checks)


def _rounds(
    checkouts: tuple[Path, Path],
    workloads: Mapping[str, Workload],
    metrics: Sequence[str],
    most: int,
    messages: Messages,
) -> Iterator[tuple[dict[str, tuple[Run, Run]], bool]]:
    """Run each workload in both checkouts; yield the runs so far after each round.

    The second value is True if all of them stepped in turn.
    """
    if not hasattr(os, "waitid"):
        raise UsageError(
            "this system cannot run checkouts in turn (Windows, macOS before Python 3.13)",
            hint="compare reports instead: uprof gate BASE NEW",
            slug="not-on-this-system",
        )
    for checkout in checkouts:
        if not checkout.is_dir():
            raise UsageError(
                f"{checkout} is not a directory: --until-sure needs two checkouts", slug="no-folder"
            )
    if most < MIN_ROUNDS:
        raise UsageError(
            f"--rounds {most}: a verdict needs at least {MIN_ROUNDS} rounds", slug="too-few-runs"
        )
    if not workloads:
        raise UsageError("no workload to run", slug="wrong-command")
    loaded: dict[str, tuple[list[Run], list[Run]]] = {one: ([], []) for one in workloads}
    timed_whole = not any(one.startswith(OPERATION) for one in metrics)
    paired = True
    with _reports(next(iter(workloads.values())).keep) as kept:
        for number in range(1, most + 1):
            for name, workload in workloads.items():
                what = f" of {name}" if len(workloads) > 1 else ""
                messages.progress(f"round {number} of at most {most}{what}")
                folder = kept / name if len(workloads) > 1 else kept
                targets = (folder / f"base-{number}", folder / f"new-{number}")
                paired &= measure(
                    workload,
                    checkouts,
                    targets,
                    messages if number == 1 else None,
                    swapped=number % 2 == 0,
                    timed_whole=timed_whole,
                    together=paired and number > 1,
                )
                for side, target in zip(loaded[name], targets, strict=True):
                    side.append(runs.load([target]))
            count = "1 run" if number == 1 else f"{number} runs"
            pairs = {
                name: (
                    pool(base).with_label(f"{checkouts[0]} ({count})"),
                    pool(new).with_label(f"{checkouts[1]} ({count})"),
                )
                for name, (base, new) in loaded.items()
            }
            if number == 1 and metrics:
                require_measured(pairs.values(), metrics)
            yield pairs, paired


def measure(
    workload: Workload,
    checkouts: tuple[Path, Path],
    targets: tuple[Path, Path],
    first: Messages | None = None,
    *,
    swapped: bool = False,
    timed_whole: bool = True,
    together: bool = False,
) -> bool:
    """Run the workload once in each checkout, and write the reports to `targets`.

    If `first` is given, exact metrics and memory are measured too, and the output is relayed. If
    `swapped`, the candidate starts first; if `timed_whole`, times of operations are not needed.
    `together` allows both to set up at the same time, because they are known to take turns.

    Returns:
        True if the runs stepped in turn. If a backend has no iterations to take turns with, they
        run one after the other.

    Raises:
        CaptureError: a run failed (the message contains the end of its output), hung, or wrote no
            report.
    """
    per_sample = sys.maxsize if timed_whole else 2
    order = (1, 0) if swapped else (0, 1)
    with ExitStack() as stack:
        sides: dict[int, _Process] = {}
        for one in order:
            process = _Process(
                workload, one, checkouts[one], targets[one], first is not None, per_sample
            )
            sides[one] = stack.enter_context(process)
            if not together:
                process.await_ready()
        if together:
            for one in order:
                sides[one].await_ready()
        pair = sides[0], sides[1]
        in_turn = all(one.is_waiting for one in pair)
        if in_turn:
            _step_in_turn(pair, 1 if timed_whole else per_sample)
        for process in pair:
            process.end_turns()
        for process in pair:
            process.finish()
            if first is not None:
                first.relay(process.output())
    return in_turn


def _step_in_turn(sides: tuple[_Process, _Process], unit: int) -> None:
    """Let two runs step in turn until enough was measured or one has ended.

    `unit` is the minimum number of iterations of a turn.
    """
    size, longest = unit, 1e-6
    took: tuple[list[float], list[float]] = ([], [])
    began = time.monotonic()
    while len(took[0]) < _MIN_TURNS or not (
        time.monotonic() - began > _MAX_WALL_S
        or min(map(sum, took)) > (_MIN_S if _error(*took) < _GOOD_ERROR else _MAX_S)
    ):
        for one in (0, 1) if len(took[0]) % 2 == 0 else (1, 0):
            seconds = sides[one].take_turn(size)
            if seconds is None:
                return
            took[one].append(seconds)
            longest = max(longest, seconds / size)
        size = unit * max(1, math.ceil(_TURN_S / unit / longest))


def _error(base_s: list[float], new_s: list[float]) -> float:
    """Return the standard error of the median change of the turns so far."""
    changes = np.log(np.maximum(new_s, 1e-9)) - np.log(np.maximum(base_s, 1e-9))
    deviation = float(np.median(np.abs(changes - np.median(changes))))
    # 1.4826: standard deviation by MAD; 1.2533: standard error of the median by that of the mean.
    return 1.4826 * 1.2533 * deviation / math.sqrt(len(changes))


class _Process:
    """A run in one checkout.

    `side` is 0 for the baseline, 1 for the candidate; if `is_first`, exact metrics are measured,
    too.
    """

    def __init__(
        self,
        workload: Workload,
        side: int,
        folder: Path,
        target: Path,
        is_first: bool,
        per_sample: int,
    ) -> None:
        self._workload, self._folder, self._target = workload, folder, target
        self._python = workload.pythons[side]
        self._turns = is_first, per_sample
        self._what = f"`uprof run {' '.join(workload.command)}` in {folder}"
        self._received = b""
        self._code = 0
        self.is_waiting = False  # True if the run waits for its turn.

    def __enter__(self) -> _Process:
        # Closed also if the system runs out of descriptors.
        with ExitStack() as ours, ExitStack() as theirs:
            read, self._write = _pipe(theirs, ours)
            self._read, write = _pipe(ours, theirs)
            lifeline, _ = _pipe(theirs, ours)
            descriptors = (read, write, lifeline)
            self._target.parent.mkdir(parents=True, exist_ok=True)
            log = self._target.with_name(f"output-{self._target.name}.txt")
            self._printed: IO[bytes] = ours.enter_context(log.open("wb+"))
            environment = {
                **_ENVIRONMENT,
                **os.environ,
                TURNS_VARIABLE: json.dumps(asdict(Turns(*descriptors, *self._turns))),
            }
            options = ("-m", "unified_prof", "run", "--quiet", "-o", str(self._target))
            with system_errors(
                CaptureError, f"cannot start the interpreter {self._python}", slug="round-failed"
            ):
                self._process = subprocess.Popen(
                    [self._python, *options, *self._workload.command],
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=subprocess.STDOUT,
                    pass_fds=descriptors,
                    start_new_session=True,
                )
            self._open = ours.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the run and all processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._open.close()

    def await_ready(self) -> None:
        """Wait until the run waits for its first turn, or has ended."""
        self.is_waiting = self._line() is not None

    def take_turn(self, iterations: int) -> float | None:
        """Let the run take a turn; return the seconds it took, None if the run has ended."""
        line = "ready"
        while line == "ready":  # the run has found other iterations and measures anew
            self._send(iterations)
            answer = self._line()
            if answer is None:
                self.is_waiting = False
                return None
            line = answer
        return int(line.split()[0]) / 1e9

    def end_turns(self) -> None:
        """End the measurement, so that the run writes its reports."""
        if self.is_waiting:
            self._send(0)

    def finish(self) -> None:
        """Wait for the end of the run."""
        while self._line() is not None:  # it waits for a turn, after one iteration or anew
            self._send(0)
        if self._code:
            shown = [one.strip() for one in redact(self.output()).splitlines() if one.strip()]
            ended = f"exited with code {self._code}"
            if self._code < 0:
                ended = f"was killed by signal {-self._code}"
            raise CaptureError(
                f"{self._what} {ended}"
                + (f": {' / '.join(shown[-_SHOWN_LINES:])}" if shown else ""),
                slug="round-failed",
            )
        if not self._target.exists():
            raise CaptureError(
                f"{self._what} wrote no report: does {self._python} have uprof installed?",
                slug="round-failed",
            )

    def output(self) -> str:
        """Return the end of what the run has printed."""
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - _SHOWN_BYTES))
        return self._printed.read().decode(errors="replace")

    def _send(self, iterations: int) -> None:
        with suppress(BrokenPipeError):  # it has ended, which the next read notices
            os.write(self._write, f"{iterations}\n".encode())

    def _line(self) -> str | None:
        """Return the next message, None if the run has ended.

        Raises CaptureError if it made no progress.
        """
        deadline = time.monotonic() + self._workload.timeout_s
        while b"\n" not in self._received:
            if select.select([self._read], [], [], _CHECK_S)[0]:
                data = os.read(self._read, 4096)
                if not data:
                    while not self._has_exited():
                        if time.monotonic() > deadline:
                            self._raise_hung()
                        time.sleep(_CHECK_S / 10)
                    return None
                self._received += data
            elif self._has_exited():  # processes that it started may still hold the pipe
                return None
            elif time.monotonic() > deadline:
                self._raise_hung()
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def _has_exited(self) -> bool:
        # Not reaped, so that the process group keeps its number until it is killed.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self._process.pid, options)
        if found is not None:
            exited = found.si_code == os.CLD_EXITED
            self._code = found.si_status if exited else -found.si_status
        return found is not None

    def _raise_hung(self) -> None:
        raise CaptureError(
            f"{self._what} made no progress for {self._workload.timeout_s:g} s and was ended",
            hint="raise --timeout if its setup takes longer",
            slug="round-failed",
        )


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return the ends of a pipe, which the stacks close."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


@contextmanager
def _reports(keep: Path | None) -> Iterator[Path]:
    """Yield the directory for the reports: `keep`, or a temporary directory."""
    if keep is None:
        with temporary_folder() as folder:
            yield folder
        return
    if keep.exists() and not keep.is_dir():
        raise UsageError(
            f"--keep {keep} is a file, expected a new directory", slug="already-exists"
        )
    if keep.exists() and any(keep.iterdir()):
        raise UsageError(
            f"--keep {keep}: the directory is not empty",
            hint="choose another one",
            slug="already-exists",
        )
    with output_directory(keep.absolute()) as made:
        yield made


_NAME = r"[A-Za-z0-9_][\w.+-]*"


def commands(text: str) -> dict[str, str]:
    """Return the commands of a text with one command per line, by name.

    A line is `NAME=COMMAND`, or a command that is named after its script. Empty lines and lines
    that start with # are ignored. Raises UsageError if two commands have the same name.
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        match = re.fullmatch(rf"({_NAME})=(.*)", line)
        name, command = (match[1], match[2]) if match else (_script(line), line)
        if name in found:
            raise UsageError(
                f"two workloads have the name {name!r}",
                hint=f"give them names: {name}-1={command}",
                slug="wrong-workload",
            )
        found[name] = command
    return found


def parse_command(text: str) -> tuple[str, ...]:
    """Return the words of a command line, or raise UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as err:
        raise UsageError(
            f"cannot parse the command {text!r}: {err}", slug="wrong-command"
        ) from None
    if not words:
        raise UsageError(
            "the command is empty", hint="for example 'train.py --epochs 1'", slug="wrong-command"
        )
    return words


def _script(command: str) -> str:
    """Return the name of an unnamed command: its script or module."""
    script = re.search(r"(?:^|\s)(?:-m\s+(\S+)|(\S+)\.py\b)", command)
    if script is None:
        return "workload"
    stem = script[1] or script[2].replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^\w.+-]", "_", stem)
