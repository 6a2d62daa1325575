"""Runs workloads in two checkouts until a verdict is certain, or in one to measure noise."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from unified_prof.compare import confidence, runs
from unified_prof.compare.comparable import Run
from unified_prof.compare.confidence import ALPHA, Noise
from unified_prof.compare.gate import Limits, Verdict, Verdicts, gate, gate_each, require_measured
from unified_prof.errors import CaptureError, UsageError

# Minimum rounds for a verdict, and default maximum.
MIN_ROUNDS = 3
MAX_ROUNDS = 10
# Lines of the output of a failed workload that an error contains, and bytes in which they are
# searched.
_SHOWN_LINES, _SHOWN_BYTES = 3, 20_000


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload for `uprof run`."""

    command: tuple[str, ...]
    """Options of `uprof run`, the script, and its arguments."""
    keep: Path | None = None
    """Directory for the reports; None: the reports are not kept."""
    pythons: tuple[str, str] = (sys.executable, sys.executable)
    """Python interpreters for baseline and candidate."""


def until_sure(
    base: Path,
    new: Path,
    workload: Workload,
    metrics: Sequence[str],
    limits: Limits,
    *,
    noise: Noise | None = None,
    most: int = MAX_ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Verdict, Run, Run]:
    """Run the workload in two checkouts in turn until the verdict is certain.

    In every other round the candidate runs first, so that slow changes of the machine affect both
    sides equally.

    Returns:
        The verdict, and the measurements of both sides.

    Raises:
        UsageError: a checkout is not a directory, or `most` is below MIN_ROUNDS.
        CaptureError: the workload failed, or could not be measured.
        OutputError: the reports cannot be written.
    """
    with _reports(workload.keep) as folder:
        for found in _in_turn((base, new), {folder: workload}, metrics, most, progress):
            before, after = found[folder]
            verdict = gate(before, after, metrics, limits, noise)
            if verdict.outcome != "inconclusive":
                break
    return verdict, before, after


def until_all_sure(
    base: Path,
    new: Path,
    workloads: Mapping[str, Workload],
    metrics: Sequence[str],
    limits: Limits,
    *,
    noise: Noise | None = None,
    most: int = MAX_ROUNDS,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Verdicts, dict[str, tuple[Run, Run]]]:
    """Like `until_sure`, with several workloads in every round and their geometric mean.

    The rounds end when the verdict for all workloads is certain or one of them has regressed. All
    reports are kept in the directory of the first workload, in one subdirectory per workload.

    Returns:
        The verdicts, and the measurements of each workload on both sides.

    Raises:
        UsageError: as for `until_sure`, or there is no workload.
        CaptureError: a workload failed, or could not be measured.
        OutputError: the reports cannot be written.
    """
    if not workloads:
        raise UsageError("no workload to run", slug="wrong-command")
    keep = next(iter(workloads.values())).keep
    with _reports(keep) as folder:
        folders = {folder / name: workload for name, workload in workloads.items()}
        for found in _in_turn((base, new), folders, metrics, most, progress):
            pairs = {path.name: sides for path, sides in found.items()}
            verdicts = gate_each(pairs, metrics, limits, dict.fromkeys(pairs, noise))
            if verdicts.outcome != "inconclusive":
                break
    return verdicts, pairs


def _in_turn(
    checkouts: tuple[Path, Path],
    workloads: Mapping[Path, Workload],
    metrics: Sequence[str],
    most: int,
    progress: Callable[[str], None],
) -> Iterator[dict[Path, tuple[Run, Run]]]:
    """Run each workload in both checkouts in turn; yield the runs so far after each round.

    Args:
        checkouts: Directories of baseline and candidate.
        workloads: Report directory -> workload.
        metrics: Metrics to compare; the first round checks that they are measured.
        most: Maximum number of rounds.
        progress: Called with a short description of the current step.
    """
    for checkout in checkouts:
        if not checkout.is_dir():
            raise UsageError(
                f"{checkout} is not a directory: --until-sure needs two checkouts", slug="no-folder"
            )
    if most < MIN_ROUNDS:
        raise UsageError(
            f"--rounds {most}: a verdict needs at least {MIN_ROUNDS} rounds", slug="too-few-runs"
        )
    sides = tuple(zip(("base", "new"), checkouts, strict=True))
    for number in range(1, most + 1):
        for folder, workload in workloads.items():
            for name, where in sides if number % 2 else reversed(sides):
                what = f" of {folder.name}" if len(workloads) > 1 else ""
                progress(f"round {number} of at most {most}: {name}{what}")
                python = workload.pythons[name == "new"]
                measure(workload.command, where, folder / f"{name}-{number}", python=python)
        if 1 < number < MIN_ROUNDS:
            continue
        pairs = {
            folder: (
                _loaded(folder, "base", checkouts[0], number),
                _loaded(folder, "new", checkouts[1], number),
            )
            for folder in workloads
        }
        if number == 1:
            require_measured(pairs.values(), metrics)
        else:
            yield pairs


def _loaded(folder: Path, side: str, checkout: Path, rounds: int) -> Run:
    found = runs.load([folder / f"{side}-{number}" for number in range(1, rounds + 1)])
    return found.with_label(f"{checkout} ({rounds} runs)")


def several(
    workload: Workload,
    rounds: int,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Run one workload `rounds` times in the current directory and return the measurements.

    Raises:
        UsageError: too few rounds.
        CaptureError: the workload failed, or could not be measured.
    """
    if rounds < MIN_ROUNDS:
        raise UsageError(
            f"--rounds {rounds}: at least {MIN_ROUNDS} needed",
            slug="too-few-runs",
        )
    with _reports(workload.keep) as folder:
        paths = [folder / f"run-{number}" for number in range(1, rounds + 1)]
        for number, path in enumerate(paths, start=1):
            progress(f"run {number} of {rounds}")
            measure(workload.command, Path.cwd(), path, python=workload.pythons[0])
        return runs.load(paths)


def seen(noise: Noise, limits: Limits, runs_a_side: int) -> float:
    """Return the smallest regression that is usually detected with `runs_a_side` runs per side.

    A regression of this size is detected in half of the cases, a slightly larger one nearly always.
    """
    degrees = noise.degrees + 2 * (runs_a_side - 1)
    error = noise.relative * math.sqrt(2 / runs_a_side)
    return (1 + limits.max_regress) * math.exp(confidence.quantile(ALPHA, degrees) * error) - 1


def measure(
    command: Sequence[str], folder: Path, target: Path, *, python: str = sys.executable
) -> None:
    """Run the workload in a separate process in `folder`, and write its reports to `target`.

    Raises:
        CaptureError: the workload failed (the message contains the end of its output), or wrote no
            report.
    """
    full = [python, "-m", "unified_prof", "run", "--quiet", "-o", str(target), *command]
    # A file, because a pipe stays open as long as any process that the workload started.
    with TemporaryFile() as printed:
        try:
            code = subprocess.run(
                full,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        except OSError as err:
            raise CaptureError(
                f"cannot start the interpreter {python}: {err.strerror or err}",
                slug="round-failed",
            ) from None
        if code:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _SHOWN_BYTES))
            text = printed.read().decode(errors="replace")
    if code:
        told = [line for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]
        raise CaptureError(
            f"`uprof run {' '.join(command)}` in {folder} exited with code {code}"
            + (f": {' / '.join(line.strip() for line in told)}" if told else ""),
            slug="round-failed",
        )
    if not target.exists():
        raise CaptureError(
            f"`uprof run {' '.join(command)}` in {folder} wrote no report: does {python} "
            "have uprof installed?",
            slug="round-failed",
        )


@contextmanager
def _reports(keep: Path | None) -> Iterator[Path]:
    """Yield the directory for the reports: `keep`, or a temporary directory."""
    if keep is None:
        with TemporaryDirectory(prefix="uprof-rounds-") as folder:
            yield Path(folder)
        return
    from unified_prof.pipeline.outputs import output_directory

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
