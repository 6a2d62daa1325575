"""The agents of a session: CPUs and GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from unified_prof.decoders.gpu.numbers import MISSING, Int64s
from unified_prof.decoders.rocm.tables import SessionTables
from unified_prof.vocabulary import NOT_AVAILABLE

_INT32 = range(-(2**31), 2**31)


class Agents:
    """Rows of info_agent, by their numbers."""

    def __init__(self, tables: SessionTables) -> None:
        self.devices: dict[int, dict[str, Any]] = {}
        """GPUs by their number, with what the file says of each."""
        self._agents: dict[int, tuple[str, int]] = {}
        """Row -> (CPU or GPU, number among those of its type)."""
        self._read(tables)

    def _read(self, tables: SessionTables) -> None:
        wanted = {"id": MISSING, "type_index": MISSING, "logical_index": MISSING}
        names = ["type", "product_name", "name", "model_name", "vendor_name"]
        for cells in tables.slices("info_agent", wanted, names):
            for at, row in enumerate(cells["id"].tolist()):
                kind = (cells["type"][at] or "").upper()
                index = int(cells["type_index"][at])
                if index not in _INT32 or index < 0:
                    index = MISSING
                self._agents[row] = (kind, index)
                if kind == "GPU" and index != MISSING:
                    told = {name: cells[name][at] for name in names[1:] if cells[name][at]}
                    told["name"] = told.get("product_name") or told.get("name") or NOT_AVAILABLE
                    self.devices.setdefault(index, told)

    def numbers_of_devices(self, agents: Int64s) -> Int64s:
        """Return the device that each agent is, MISSING where it is none."""
        distinct, inverse = np.unique(agents, return_inverse=True)
        found = []
        for agent in distinct.tolist():
            kind, index = self._agents.get(agent, ("", MISSING))
            found.append(index if kind == "GPU" else MISSING)
        return np.array(found, np.int64)[inverse]

    def direction(self, source: int, target: int) -> tuple[str, int]:
        """Return what a copy from agent to agent is called, and the device that it belongs to."""
        nothing = ("", MISSING)
        kinds = (self._agents.get(source, nothing), self._agents.get(target, nothing))
        device = next((index for kind, index in reversed(kinds) if kind == "GPU"), MISSING)
        letters = [{"CPU": "H", "GPU": "D"}.get(kind) for kind, _ in kinds]
        if None in letters:
            return "Memcpy Unknown", device
        if letters == ["D", "D"] and source != target:
            return "Memcpy PtoP", device
        return f"Memcpy {letters[0]}to{letters[1]}", device
