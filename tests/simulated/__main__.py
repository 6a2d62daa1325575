"""`python -m tests.simulated [NAME...]`: a row per program, and a summary.

Fails if a program has a problem and is not listed as open.
"""

import sys
from collections import Counter

from tests.simulated.programs import FAULTS, HOLDING, PROGRAMS, judge


def main() -> int:
    """Print the table; return 1 if a program has a problem and is not listed as open."""
    print("program|step ms|gain|gain of all|first|right|ratio|sum/step|problems|other")
    counts: Counter[str] = Counter()
    failed = False
    for name, base in PROGRAMS:
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        one = judge(name, base)
        total, cost = (sum(c for _, c in rows) for rows in (one.findings, one.right()))
        first, right, other = (
            ", ".join(f"{kind} {ms:.2f}" for kind, ms in rows)
            for rows in (one.findings[:1], one.right(), one.other())
        )
        ratio = f"{cost / one.gain_ms:.2f}" if one.gain_ms > 0.01 * one.step_ms else "-"
        times = "|".join(f"{ms:.2f}" for ms in (one.step_ms, one.gain_ms, one.everything_ms))
        row = [f"{name} / {base}", times, first, right, ratio, f"{total / one.step_ms:.0%}"]
        print(*row, " ".join(one.problems()), other, sep="|", flush=True)
        failed |= bool(one.problems()) and (name, base) in HOLDING
        group = "faults" if name in FAULTS else "healthy"
        counts.update([group, *(f"{group}: {problem}" for problem in one.problems())])
    print(*(f"{count:5} {what}" for what, count in sorted(counts.items())), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
