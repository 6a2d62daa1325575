"""Hardware counters of a session: of dispatches, and samples over time."""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.decoders.gpu.numbers import MISSING, Int64s
from unified_prof.decoders.rocm.session import INTERVAL, NO_TIME, Session
from unified_prof.vocabulary import NOT_AVAILABLE

_ENTRIES = "pmc_event"


class SessionCounters:
    """Reads the counters of a session; its tasks have to be read before."""

    def __init__(self, session: Session) -> None:
        self._session, self._parts = session, session.parts
        self._names: dict[int, str] = {}
        self._agents: dict[int, int] = {}

    def read(self, counted: Int64s) -> None:
        """Put the values of tasks into `Parts.counters`, and write those of samples.

        Args:
            counted: The events of the session's tasks.
        """
        self._counters()
        samples = self._samples()
        without = 0
        tasks = np.unique(counted)
        for cells in self._session.tables.slices(
            _ENTRIES, {"event_id": MISSING, "pmc_id": MISSING}, reals=["value"]
        ):
            events, values = cells["event_id"], cells["value"]
            names = self._session.names(cells["pmc_id"], self._names)
            known = ~np.isnan(values)
            of_task = known & (find(tasks, events) != NOWHERE)
            self._parts.counters.add(
                self._session.events.key(events[of_task]), names[of_task], values[of_task]
            )
            rest = known & ~of_task
            sampled = np.zeros(len(events), bool)
            if samples is not None and rest.any():
                at = find(samples[0], events)
                agents = [self._agents.get(one, MISSING) for one in cells["pmc_id"].tolist()]
                devices = self._session.agents.numbers_of_devices(np.array(agents, np.int64))
                sampled = rest & (at != NOWHERE) & (devices != MISSING)
                moments = samples[1][at]
                timed = {"start": moments[sampled], "end": moments[sampled]}
                times, valid = self._session.timed(timed, INTERVAL, "gpu_metric")
                self._parts.sink.write(
                    "UPROF_GPU_METRICS",
                    {
                        "timestampNs": times["start"][valid],
                        "deviceId": devices[sampled][valid],
                        "name": names[sampled][valid],
                        "value": values[sampled][valid],
                    },
                )
            without += int(np.count_nonzero(~of_task & ~sampled))
        if without:
            self._parts.sink.anomaly(
                "counter_without_task", without, "values of no dispatch and no sample of a GPU"
            )

    def _counters(self) -> None:
        for cells in self._session.tables.slices(
            "info_pmc", {"id": MISSING, "agent_id": MISSING}, ["name", "symbol"]
        ):
            for at, row in enumerate(cells["id"].tolist()):
                self._names[row] = cells["name"][at] or cells["symbol"][at] or NOT_AVAILABLE
                self._agents[row] = int(cells["agent_id"][at])

    def _samples(self) -> tuple[Int64s, Int64s] | None:
        """Return events of samples, in order, and when each was taken."""
        parts = [
            (cells["event_id"], cells["timestamp"])
            for cells in self._session.tables.slices(
                "sample", {"event_id": MISSING, "timestamp": NO_TIME}
            )
        ]
        if not parts:
            return None
        events, times = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(events, kind="stable")
        return events[order], times[order]
