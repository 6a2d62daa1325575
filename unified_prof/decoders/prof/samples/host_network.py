"""HOST_NETWORK_USAGE: traffic of the host's network cards, host_network.data (text)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import HostDirectory

_RECEIVED, _SENT = 0, 8  # columns of /proc/net/dev
_FIELDS = 16
_BYTES_PER_MEGABIT = 125_000
_BYTES_PER_KB = 1024.0


@dataclass(slots=True)
class _Moment:
    time_ns: int
    bytes_of: dict[str, int] = field(default_factory=dict)
    """Bytes sent and received so far, by interface."""


def decode(host: HostDirectory, sink: Sink) -> None:
    """Write HOST_NETWORK_USAGE: bytes per second and percent between neighbouring samples.

    A row has the time of the earlier sample. `speed` is that of all cards together, `usage` the
    mean of the cards that were active in relation to the speed of the last one of these.
    """
    speeds = _card_speeds(host)
    times: list[int] = []
    usage: list[float] = []
    speed: list[float] = []
    earlier: _Moment | None = None
    for later in _moments(host, sink, speeds):
        if earlier is not None:
            times.append(earlier.time_ns)
            percent, rate = _between(earlier, later, speeds)
            usage.append(percent)
            speed.append(rate)
        earlier = later
    if not times:
        return
    columns = {
        "timestampNs": host.clocks.monotonic.to_ns(np.array(times, np.int64)),
        "usage": sampling.rounded(np.array(usage), 6),
        "speed": np.array(speed),
    }
    sampling.write_samples(sink, "HOST_NETWORK_USAGE", host, columns)


def _card_speeds(host: HostDirectory) -> dict[str, int]:
    """Return Mbit/s of every card that info.json describes."""
    cards = {}
    for card in host.info.records("netCard"):
        name, speed = card.text("netCardName"), card.integer("speed")
        if name and speed is not None and speed > 0:
            cards[name] = speed
    return cards


def _moments(host: HostDirectory, sink: Sink, speeds: Mapping[str, int]) -> Iterator[_Moment]:
    damaged = 0
    for time_ns, lines in sampling.timed_blocks(host, sink, "host_network"):
        moment = _Moment(time_ns)
        for line in lines:
            name, colon, counters = line.partition(":")
            if not colon:
                continue  # the two heading lines of /proc/net/dev
            values = sampling.integers(counters)
            if values is None or len(values) < _FIELDS:
                damaged += 1
            elif name.strip() in speeds:
                moment.bytes_of[name.strip()] = values[_RECEIVED] + values[_SENT]
        yield moment
    sampling.count_damaged(sink, host, "host_network.data", damaged)


def _between(earlier: _Moment, later: _Moment, speeds: Mapping[str, int]) -> tuple[float, float]:
    """Return percent of the capacity and bytes per second."""
    # Seconds are subtracted as float64, as the exporter does: its results carry that noise.
    seconds = later.time_ns / 1e9 - earlier.time_ns / 1e9
    total, cards, capacity = 0.0, 0, 0
    if seconds <= 0:
        return 0.0, 0.0
    for name, sent_and_received in later.bytes_of.items():
        moved = sent_and_received - earlier.bytes_of.get(name, sent_and_received)
        if moved > 0:
            total += moved / _BYTES_PER_KB / seconds * _BYTES_PER_KB
            cards += 1
            capacity = speeds[name] * _BYTES_PER_MEGABIT
    return (total / cards / capacity * 100 if cards else 0.0), total
