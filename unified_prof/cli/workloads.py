"""Several workloads on the command line, and their run-to-run variation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unified_prof.cli import report_input
from unified_prof.cli.command import HELP_ALL, option
from unified_prof.compare.gate import parse_noise
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise
    from unified_prof.compare.gate import Noises, Pairs


def noise(text: str | None, run: Run) -> Noise | None:
    """Return the run-to-run variation given by `text`, else the one stored for the device of `run`.

    Raises:
        UsageError: The text is not a share.
        StoreError: The stored value cannot be read.
    """
    from unified_prof.baselines import noise as learned

    return learned.load(run) if text is None else parse_noise(text)


WorkloadOption = Annotated[
    list[str] | None,
    option(
        "--workload",
        metavar="NAME=BASE:NEW",
        help="Reports of a workload, instead of BASE and NEW. Repeatable, for several "
        "workloads and several runs of one.",
        shown_by=HELP_ALL,
    ),
]
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_HINT = "for example --workload bert=base/bert:new/bert"

# Workload -> reports of the baseline and of the candidate.
WorkloadPairs = dict[str, tuple[list[Path], list[Path]]]


def parse_workloads(texts: Sequence[str]) -> WorkloadPairs:
    """Return the reports by workload.

    Raises:
        UsageError: A text is not NAME=BASE:NEW, or is ambiguous.
    """
    found: WorkloadPairs = {}
    for text in texts:
        match = re.fullmatch(rf"({_NAME})=(.+)", text)
        if match is None or ":" not in match[2]:
            raise UsageError(
                f"--workload {text!r}: expected NAME=BASE:NEW", hint=_HINT, slug="wrong-workload"
            )
        base, new = _two_paths(match[2], text)
        sides = found.setdefault(match[1], ([], []))
        sides[0].append(base)
        sides[1].append(new)
    return found


def _two_paths(text: str, whole: str) -> tuple[Path, Path]:
    """Split at the colon that yields two existing paths; file names may contain colons."""
    ways = [
        (Path(text[:at]), Path(text[at + 1 :]))
        for at, letter in enumerate(text)
        if letter == ":" and 0 < at < len(text) - 1
    ]
    there = [way for way in ways if all(path.exists() for path in way)]
    chosen = there or ways
    if len(chosen) != 1:
        missing = (
            ("ambiguous, more than one pair of paths exists") if there else "no two existing paths"
        )
        raise UsageError(f"--workload {whole}: {missing}", hint=_HINT, slug="wrong-workload")
    return chosen[0]


def load(given: WorkloadPairs, reader: report_input.Reader) -> Pairs:
    """Return the runs of each workload.

    Raises:
        UprofError: Same as `Reader.run`.
    """
    return {name: (reader.run(base), reader.run(new)) for name, (base, new) in given.items()}


def noises(text: str | None, pairs: Pairs) -> Noises:
    """Return the run-to-run variation of each workload; see `noise`."""
    return {name: noise(text, new) for name, (_, new) in pairs.items()}


def commands(text: str) -> dict[str, str]:
    """Return the commands of a text with one command per line, by name.

    A line is `NAME=COMMAND`, or a command that is named after its script. Empty lines and lines
    that start with # are ignored.

    Raises:
        UsageError: Two commands have the same name.
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


def _script(command: str) -> str:
    """Return the name of an unnamed command: its script or module."""
    script = re.search(r"(?:^|\s)(?:-m\s+(\S+)|(\S+)\.py\b)", command)
    if script is None:
        return "workload"
    stem = script[1] or script[2].replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^\w.+-]", "_", stem)
