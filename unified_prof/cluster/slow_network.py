"""Rules about the network: all links between hosts are slow, or single transfers time out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.cluster.replay import ReplayChange
from unified_prof.cluster.rule_context import (
    NS_PER_MS,
    Candidate,
    RuleContext,
    format_time,
    join_first,
    steps_text,
)
from unified_prof.recording.collectives import bus_factor

SLOW_NETWORK, RETRANSMISSION = "slow_network", "retransmission"

# RDMA sends a message again that is not acknowledged within 4 s, by default of HCCL and NCCL.
_TIMEOUT_NS = 4 * 1_000_000_000
_MAX_USUAL_SHARE = 0.1  # Maximum usual time of a collective, as a share of the one with a timeout.

# Nominal network bandwidth of hosts per device, GB/s: one adapter of 400 or 200 Gb/s each (user
# guides of DGX H100, H200, B200 and A100, and of the Atlas 800T A2).
_NETWORK_GB_PER_S = {
    **dict.fromkeys(("H100", "H200", "H800", "B200"), 50.0),
    **dict.fromkeys(("A100", "A800", "910B"), 25.0),
}
_USUAL_NETWORK_SHARE = 0.8  # Share of it that large messages usually reach ...
_MAX_SLOW_NETWORK_SHARE = 0.3  # ... and below which all communication between hosts is slow.
# Minimum size of a message per device of a host that can reach the bandwidth of the adapters.
_MIN_NETWORK_BYTES = 4 << 20
_MIN_ADAPTERS_PER_DEVICE = 0.5  # Some clouds have fewer, or slower, adapters than devices.
_MIN_NETWORK_COST_SHARE = 0.01  # Minimum cost of a slow network, as a share of the step.


def slow_network(context: RuleContext) -> Iterator[Candidate]:
    """Yield the network if its bus bandwidth is far below that of hosts with such devices.

    If all groups use a slow adapter (a ring has the rate of its slowest link), there is no faster
    link to compare with, and the adapter cannot be located. The hosts may also have fewer or slower
    adapters, which recordings do not show; so it is no fault of a host.
    """
    matched, waits = context.matched, context.waits
    models = {facts.device_name or "" for facts in matched.facts}
    nominal = {
        next((rate for name, rate in _NETWORK_GB_PER_S.items() if name in model), 0.0)
        for model in models
    }
    hosts = context.hosts(range(len(matched.ranks)))
    if len(nominal) != 1 or not (rate := nominal.pop()) or len(hosts) < 2:
        return
    events = matched.events
    # By kind of group: event -> (bandwidth, usual bandwidth, ratio to the lowest one).
    rates: dict[str, dict[int, tuple[float, float, float]]] = {}
    usable = events.complete & (waits.transfer > 0) & np.isin(events.step, list(context.steps))
    for event in np.flatnonzero(usable & (events.bytes >= _MIN_NETWORK_BYTES)).tolist():
        kind = matched.kinds[events.kind[event]]
        ranks = [int(events.src[event]), int(events.dst[event])]
        group = int(events.group[event])
        title = matched.groups[group].kind if group >= 0 else "pp"
        if ranks[0] < 0:
            ranks = matched.present(matched.groups[group].ranks)
        factor, on_hosts = bus_factor(kind, len(ranks)), context.hosts(ranks)
        per_host = len(ranks) / max(len(on_hosts), 1)
        size = int(events.bytes[event])
        if not factor or kind == "all_to_all" or len(on_hosts) < 2:
            continue
        if size >= _MIN_NETWORK_BYTES * per_host:
            usual = _USUAL_NETWORK_SHARE * rate * per_host
            slowest = _MAX_SLOW_NETWORK_SHARE * rate * max(per_host * _MIN_ADAPTERS_PER_DEVICE, 1)
            found = factor * size / int(waits.transfer[event])
            rates.setdefault(title, {})[event] = (found, usual, found / slowest)
    slow = {
        title: found
        for title, found in rates.items()
        if np.quantile([excess for _, _, excess in found.values()], 0.9) <= 1
    }
    if not slow:
        return
    all_slow = {event: one for found in slow.values() for event, one in found.items()}
    median, usual, _ = np.median([*all_slow.values()], axis=0).tolist()
    groups = "groups" if len(slow) == len(rates) else f"{' and '.join(sorted(slow))} groups"
    text = (
        f"slow network: communication between {len(hosts)} hosts reaches {median:.1f} GB/s in all "
        f"{groups} alike, usual with an adapter of {rate:.0f} GB/s per device: {usual:.0f} GB/s; "
        "if the hosts have such adapters, test all of them, as no link is faster than the others"
    )
    figures = {"gb_per_s": round(median, 3), "usual_gb_per_s": usual}
    change = ReplayChange(
        transfer={event: min(one / usual, 1) for event, (one, usual, _) in all_slow.items()}
    )
    least_ns = _MIN_NETWORK_COST_SHARE * context.step_ns
    cost = (SLOW_NETWORK, (), context.steps, change, text, figures)
    yield Candidate(*cost, min_cost_ns=least_ns, is_bound=True)


def retransmissions(context: RuleContext) -> Iterator[Candidate]:
    """Yield groups with collectives of 4 s and more after all members have come.

    The first collective of a kind in a group is left out, because it may connect the ranks.
    """
    matched, waits = context.matched, context.waits
    events = matched.events
    inside = events.complete & (events.members > 1) & np.isin(events.step, list(context.steps))
    slow = inside & (waits.least >= _TIMEOUT_NS)
    for group in np.unique(events.group[slow & (events.src < 0)]).tolist():
        of_group = np.flatnonzero(inside & (events.group == group))
        # Events of a kind are in the order of their numbers.
        _, first = np.unique(events.kind[of_group], return_index=True)
        usable = of_group[~slow[of_group]]
        change: dict[int, float] = {}
        for event in np.setdiff1d(of_group[slow[of_group]], of_group[first]).tolist():
            alike = usable[events.kind[usable] == events.kind[event]]
            of_size = alike[events.bytes[alike] == events.bytes[event]]
            usual = waits.least[of_size if len(of_size) else alike]
            factor = float(np.median(usual)) / float(waits.least[event]) if len(usual) else 1.0
            if factor <= _MAX_USUAL_SHARE:
                change[event] = factor
        if not change:
            continue
        longest = max(change, key=lambda event: int(waits.least[event]))
        longest_ns = float(waits.least[longest])
        ranks = matched.present(matched.groups[group].ranks)
        steps = tuple(np.unique(events.step[[*change]]).tolist())
        text = (
            f"retransmission: {matched.kinds[events.kind[longest]]} of ranks "
            f"{join_first(context.global_ranks(ranks))} takes {format_time(longest_ns)}"
            f"{steps_text(context, steps)}, usually {format_time(longest_ns * change[longest])}, "
            "after its last rank has started, as with an RDMA timeout: check the "
            "switches (PFC, packet loss) and the counters of the network cards"
        )
        figures = {"times": len(change), "longest_ms": longest_ns / NS_PER_MS}
        both = ReplayChange(transfer=change, setup=change)
        yield Candidate(RETRANSMISSION, ranks, steps, both, text, figures)
