"""`python -m tests.faults`: run trials and print the counts per command and fault."""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults.commands import COMMANDS, Command
from tests.faults.kinds import FAULTS, Fault
from tests.faults.trial import Outcome, Session

Pair = tuple[Command, Fault]


def plan(
    trials: int, seed: int, commands: Sequence[Command] = COMMANDS, faults: Sequence[Fault] = FAULTS
) -> list[Pair]:
    """Return the trials: each pair of command and fault in proportion to its weights."""
    pairs = [(command, fault) for command in commands for fault in faults]
    chance = random.Random(seed)
    chance.shuffle(pairs)
    weights = [command.weight * fault.weight for command, fault in pairs]
    # Pairs in order of weight x random number: every prefix covers many commands and faults.
    chosen = pairs[:trials]
    chosen += chance.choices(pairs, weights, k=trials - len(chosen))
    return chosen


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the counts per fault, and `struck/trials` per command and group of faults."""
    lines = ["| fault | trials | struck | failures |", "|---|---|---|---|"]
    for fault in FAULTS:
        found = [one for one in outcomes if one.fault == fault.name]
        struck, failed = sum(one.struck for one in found), sum(bool(one.failures) for one in found)
        lines.append(f"| {fault.name} | {len(found)} | {struck} | {failed} |")
    groups: dict[str, set[str]] = {}
    for fault in FAULTS:
        groups.setdefault(fault.group, set()).add(fault.name)
    rows = [["", *groups, "failures"]]
    for name in [*(command.name for command in COMMANDS), "all"]:
        of_name = [one for one in outcomes if name in (one.command, "all")]
        row = [name]
        for faults in groups.values():
            found = [one for one in of_name if one.fault in faults]
            row.append(f"{sum(one.struck for one in found)}/{len(found)}")
        rows.append([*row, str(sum(bool(one.failures) for one in of_name))])
    lines.append("")
    for name, *cells in rows:
        ends = (cell.rjust(len(title) + 2) for cell, title in zip(cells, rows[0][1:], strict=True))
        lines.append(name.ljust(22) + "".join(ends))
    failed = sum(bool(one.failures) for one in outcomes)
    return "\n".join([*lines, "", f"{len(outcomes)} trials, {failed} failed"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials; the exit code is 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--command", default="", help="only commands whose name contains this")
    parser.add_argument("--fault", default="", help="only faults whose name contains this")
    parser.add_argument("--part", default="0/1", help="I/N: only trials with number %% N == I")
    parser.add_argument("--results", type=Path, help="file of trials done, which are not repeated")
    given = parser.parse_args(arguments)
    part, parts = map(int, given.part.split("/"))
    commands = [one for one in COMMANDS if given.command in one.name]
    faults = [one for one in FAULTS if given.fault in one.name]
    results: Path | None = given.results
    done: dict[int, Outcome] = {}
    if results is not None and results.exists():
        lines = map(json.loads, results.read_text().splitlines())
        done = {line.pop("number"): Outcome(**line) for line in lines}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        session = Session(Path(folder) / "s")
        chosen = plan(given.trials, given.seed, commands, faults)
        for number, (command, fault) in enumerate(chosen):
            if number % parts != part or number in done:
                continue
            if fault.needs_mount and not session.can_mount:
                continue
            outcome = session.run(command, fault, given.seed * 1_000_000 + number)
            done[number] = outcome
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps({"number": number, **asdict(outcome)}) + "\n")
    print(table([*done.values()]))
    failed = {number: outcome for number, outcome in done.items() if outcome.failures}
    for number, outcome in sorted(failed.items()):
        print(f"trial {number}, {outcome.command}, {outcome.fault}, exit code {outcome.code}:")
        print(*outcome.failures, outcome.message, sep="\n    ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
