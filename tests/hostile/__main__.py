"""`python -m tests.hostile`: attack all formats, print counts, exit with 1 if anything failed."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.hostile.attacks import ATTACKS
from tests.hostile.formats import FORMATS
from tests.hostile.harness import Counts, attack, attack_once


def main() -> int:
    """Run the trials of the given formats and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="formats or attacks; all by default")
    parser.add_argument("--rounds", type=int, default=1000, help="mutations per format")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    options = parser.parse_args()
    sys.modules["torch"] = None  # type: ignore[assignment]  # not needed, and larger than the rest
    rows: list[tuple[str, Counts]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, form in FORMATS.items():
            if not options.names or name in options.names:
                place = Path(folder, f"f{len(rows)}")
                rows.append((name, attack(name, form, place, options.rounds, options.first)))
                _print_failures(rows[-1][1])
        for name, form in ATTACKS.items():
            if not options.names or name in options.names:
                rows.append((name, attack_once(name, form, Path(folder, f"a{len(rows)}"))))
                _print_failures(rows[-1][1])
    print("| input | trials | refused | peak MB | slowest s of CPU | failures |")
    print("|---|---|---|---|---|---|")
    for name, counts in rows:
        print(
            f"| {name} | {counts.trials:,} | {counts.refused:,} | {counts.peak_mb:,} |"
            f" {counts.slowest_s:.1f} | {len(counts.failures)} |",
            flush=True,
        )
    return int(any(counts.failures for _, counts in rows))


def _print_failures(counts: Counts) -> None:
    for failure in counts.failures:
        print(f"FAILED {failure}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
