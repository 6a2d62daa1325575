"""Ranks that others wait for, and whose device stood idle meanwhile: nothing says why.

What has a cause is told by it: slower kernels, late launches of all of them, input. What is left
is one long stop (a pause of the interpreter, a checkpoint, a logger, another program on that host,
a loader that was not recorded), of which the recording has the place and the length alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.finding import Finding
from unified_prof.cluster.case import MS, Case, cost_of, finding, in_steps
from unified_prof.cluster.change import Change
from unified_prof.cluster.partial import NONE, START, STEP
from unified_prof.cluster.spread import deviation, farthest

Floats = NDArray[np.float64]

LATE_RANK = "late_rank"

_LEAST_SHARE = 0.005
"""Idle time that is a smaller part of a step is not worth a name without a cause."""
_OTHERS_WAIT = 0.5
"""So much of the idle time others must have waited for it: else it was late for nobody."""
_FEW_RANKS = 5


def late_ranks(case: Case) -> Iterator[Finding]:
    """Ranks that are late, their device idle, for no reason that the recording has."""
    evidence = case.evidence
    gaps = np.maximum(evidence.middle_gap - evidence.peers_middle_gap, 0.0)
    launch = np.nan_to_num(gaps * evidence.kernels / max(len(evidence.steps), 1))
    excess = evidence.idle_at - evidence.peers_idle_at - launch[:, None]
    known = np.isfinite(excess)
    if not known.any():
        return
    scatter = excess
    if len(excess) < _FEW_RANKS:  # half of them may be late: compare with itself
        own = np.where(known, evidence.idle_at, np.nan)
        scatter = own - _middle(own)[:, None]
    limit = farthest(int(known.sum())) * deviation(scatter[known])
    limit = max(limit, _LEAST_SHARE * case.step_ns)
    late_at = known & (excess > limit)
    if not late_at.any():
        return
    caused = _caused(case)
    for one in np.flatnonzero(late_at.any(axis=1)).tolist():
        places = [
            at
            for at in np.flatnonzero(late_at[one]).tolist()
            if caused is None
            or evidence.steps[at] not in caused
            or caused[evidence.steps[at]][one] > _OTHERS_WAIT * excess[one, at]
        ]
        if places:
            steps = tuple(evidence.steps[at] for at in places)
            yield _late(case, one, steps, {evidence.steps[at]: excess[one, at] for at in places})


def _late(case: Case, one: int, steps: tuple[int, ...], idle_ns: Mapping[int, float]) -> Finding:
    late_ns = float(np.median(list(idle_ns.values())))
    walk = case.walk
    if not set(steps) <= set(walk.steps) and not set(steps) >= set(case.steps):
        walk = walk.over(case.with_communication(steps))
    stops = walk.longest_idle(one, idle_ns)
    cost = cost_of(case, Change(stretch_ns=stops), steps, late_ns)
    where = _place(case, max(stops, key=lambda at: stops[at])) if stops else None
    why = "nothing in its recording says why"
    if not case.matched.facts[one].loader_recorded:
        why = "no loader of input is recorded, so it may be that; nothing else says why"
    text = (
        f"{case.named(one)}: its device stands idle {late_ns / MS:.2f} ms longer than others'"
        f"{in_steps(case, steps) or ' in every step'}{f', mostly {where}' if where else ''}, and "
        f"others wait for it; {why}; {cost.words}"
    )
    figures = {"late_ms": round(late_ns / MS, 4), "where": where}
    return finding(case, LATE_RANK, [one], steps, cost, text, figures)


def _place(case: Case, stop: tuple[int, int]) -> str:
    """Say where a stretch of a rank's timeline lies."""
    rank, mark = stop
    one = case.matched.partials[rank]
    marks = one.marks
    behind = mark + 1
    last = behind >= len(marks["what"])
    lead, busy, tail = (int(marks[name][mark]) for name in ("lead", "busy", "tail"))
    length = lead + busy + tail if last else int(marks["time"][behind] - marks["time"][mark])
    between = length - lead - busy - tail
    begins = not last and int(marks["what"][behind]) == START
    following = _named(case, rank, int(marks["op"][behind])) if begins else None
    if busy and between > max(lead, tail):
        return f"between kernels{f' before its {following}' if following else ''}"
    if int(marks["what"][mark]) == STEP and (lead >= tail or not busy):
        return "at the begin of the step"
    if following and (tail > lead or not busy):
        return f"before its {following}"
    return f"behind its {_named(case, rank, int(marks['op'][mark]))}"


def _named(case: Case, rank: int, op: int) -> str:
    """Name a communication operation of a rank: its kind, and that of its group."""
    one = case.matched.partials[rank]
    kind = one.kinds[int(one.communication["kind"][op])]
    group = int(one.communication["group"][op])
    number = int(case.matched.numbers[rank][group]) if group >= 0 else NONE
    told = case.matched.groups[number].kind if number >= 0 else "other"
    return kind if told == "other" else f"{kind} ({told})"


def _caused(case: Case) -> dict[int, Floats] | None:
    """Return by step how long others waited for each rank; None: nothing is known of waiting."""
    rows, events, waits = case.matched.rows, case.matched.events, case.waits
    whole = np.flatnonzero(events.complete & (events.members > 1) & (events.step >= 0))
    if not len(whole):
        return None
    total = np.zeros(len(events))
    known = np.flatnonzero((rows.event >= 0) & (waits.wait > 0))
    # Of many that wait for one the longest wait counts: they wait at the same time.
    np.maximum.at(total, rows.event[known], waits.wait[known])
    ranks = len(case.matched.ranks)
    found: dict[int, Floats] = {}
    culprit = rows.rank[waits.last[whole]]
    for step in np.unique(events.step[whole]).tolist():
        mine = events.step[whole] == step
        found[step] = np.zeros(ranks)
        np.add.at(found[step], culprit[mine], total[whole][mine])
    return found


def _middle(values: Floats) -> Floats:
    result = np.zeros(len(values))
    for index, row in enumerate(values):
        if (known := row[np.isfinite(row)]).size:
            result[index] = float(np.median(known))
    return result
