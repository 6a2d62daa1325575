"""How much runs differ, as an option says or as was learned.

Several workloads at a time, as they are named on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli import convert as converting
from unified_prof.compare.gate import told_noise
from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.compare.comparable import Run
    from unified_prof.compare.confidence import Noise
    from unified_prof.compare.gate import Noises, Pairs


def noise(text: str | None, run: Run) -> Noise | None:
    """Return how much runs differ: as `text` says, else as was learned where `run` ran.

    Raises:
        UsageError: the text is no share.
        StoreError: what was learned cannot be read.
    """
    from unified_prof.baselines import noise as learned

    return learned.of(run) if text is None else told_noise(text)


WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME=BASE:NEW",
        help="The reports of a workload, in place of BASE and NEW; may be repeated, for several "
        "workloads and for several runs of one.",
    ),
]
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_HINT = "for example --workload bert=base/bert:new/bert"

Given = dict[str, tuple[list[Path], list[Path]]]
"""Workload -> its reports before and after the change."""


def parsed(texts: Sequence[str]) -> Given:
    """Return the reports that are named, by workload.

    Raises:
        UsageError: a text is not NAME=BASE:NEW, or means more than one thing.
    """
    found: Given = {}
    for text in texts:
        match = re.fullmatch(rf"({_NAME})=(.+)", text)
        if match is None or ":" not in match[2]:
            raise UsageError(
                f"--workload takes NAME=BASE:NEW, not {text!r}", hint=_HINT, slug="wrong-workload"
            )
        base, new = _two_paths(match[2], text)
        sides = found.setdefault(match[1], ([], []))
        sides[0].append(base)
        sides[1].append(new)
    return found


def _two_paths(text: str, whole: str) -> tuple[Path, Path]:
    """Divide at the colon that leaves two paths that are there; names of files may have others."""
    ways = [
        (Path(text[:at]), Path(text[at + 1 :]))
        for at, letter in enumerate(text)
        if letter == ":" and 0 < at < len(text) - 1
    ]
    there = [way for way in ways if all(path.exists() for path in way)]
    chosen = there or ways
    if len(chosen) != 1:
        missing = "means more than one pair of paths" if there else "names no two paths"
        raise UsageError(f"--workload {whole}: it {missing}", hint=_HINT, slug="wrong-workload")
    return chosen[0]


def load(given: Given, *, convert: bool, quiet: bool, output: Path | None) -> Pairs:
    """Return the runs of each workload.

    Raises:
        UprofError: as of `converting.run_of`.
    """
    pairs = {}
    for name, (base, new) in given.items():
        before, after = (
            converting.run_of(side, convert=convert, quiet=quiet, output=output)
            for side in (base, new)
        )
        pairs[name] = before, after
    return pairs


def noises(text: str | None, pairs: Pairs) -> Noises:
    """Return how much runs of each workload differ: as `text` says, else as was learned."""
    return {name: noise(text, new) for name, (_, new) in pairs.items()}


def commands(text: str) -> dict[str, str]:
    """Return the commands of a text that has one a line, by their names.

    A line is `NAME=COMMAND` or a command, which is called after its script. Empty lines and those
    that begin with # are none.

    Raises:
        UsageError: two of them have one name.
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        match = re.fullmatch(rf"({_NAME})=(.*)", line)
        name, command = (match[1], match[2]) if match else (_script(line), line)
        if name in found:
            raise UsageError(
                f"two workloads are called {name!r}",
                hint=f"name them: {name}-1={command}",
                slug="wrong-workload",
            )
        found[name] = command
    return found


def _script(command: str) -> str:
    """Return what to call a command that has no name: its script or module."""
    script = re.search(r"(?:^|\s)(?:-m\s+(\S+)|(\S+)\.py\b)", command)
    if script is None:
        return "workload"
    stem = script[1] or script[2].replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^\w.+-]", "_", stem)
