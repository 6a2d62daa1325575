"""Whose a database is, and where it was recorded: what it says itself, and never a guess."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np

from unified_prof.analysis.read.folder import rank_near
from unified_prof.analysis.read.strings import NOTHING_KNOWN
from unified_prof.cluster.partial import RankFacts
from unified_prof.cluster.rank_database import Database
from unified_prof.errors import StoreError
from unified_prof.vocabulary import NO_RANK

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
}


class Identity:
    """What a database says of its ranks and their host."""

    def __init__(self, database: Database) -> None:
        self._report = database.report
        self._run = database.run
        self._is_gpu = database.is_gpu
        self._database = database
        self._meta = database.texts("META_DATA")

    def owners(self, given: int | None) -> list[tuple[int, int | None]]:
        """Return (rank, device) of each rank in the file; never a number that nothing says."""
        rows = self._report.rows("SELECT DISTINCT rankId, deviceId FROM RANK_DEVICE_MAP")
        told = sorted(
            (rank, device)
            for rank, device in rows
            if isinstance(rank, int) and 0 <= rank < NO_RANK and isinstance(device, int)
        )
        devices = np.unique(self._database.tasks.device).tolist()
        if given is not None:
            return [(given, devices[0] if len(devices) == 1 else None)]
        if len({rank for rank, _ in told}) == len(told) > 1:
            here: list[tuple[int, int | None]] = [one for one in told if one[1] in devices]
            return here or [told[0]]
        if len(told) == 1:
            return [told[0]]
        device = devices[0] if len(devices) == 1 else None
        if (rank := self._own_rank()) is not None:
            return [(rank, device)]
        raise StoreError(
            f"{self._report.path} does not say which rank it is of",
            hint="name it: RANK=FILE, or put it into a folder or file named rankN",
            slug="rank-unknown",
        )

    def _own_rank(self) -> int | None:
        if (text := self._run.get("rank", "")).isdecimal():
            return int(text)
        for group in self._database.groups.values():
            if group.ranks and group.place is not None and 0 <= group.place < len(group.ranks):
                return group.ranks[group.place]
        return rank_near(str(self._report.path.absolute()))

    def facts(
        self,
        rank: int,
        device: int | None,
        *,
        steps_recorded: bool,
        loader_recorded: bool,
        notes: tuple[str, ...],
    ) -> RankFacts:
        """Return what is known of a rank beside its times."""
        return RankFacts(
            rank=rank,
            world_size=self._world_size(),
            host=self._host(),
            device_id=device,
            device_name=self._device_name(device),
            vendor=self._vendor(),
            shape=self._shape(),
            steps_recorded=steps_recorded,
            loader_recorded=loader_recorded,
            notes=notes,
        )

    def _world_size(self) -> int | None:
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(self._run["trace_metadata"])["distributedInfo"]["world_size"]
            return int(told) if int(told) > 0 else None
        told = self._arguments().get("world_size")
        return told if isinstance(told, int) and told > 0 else None

    def _arguments(self) -> dict[str, Any]:
        found = self._meta.get("distributed_args")
        with suppress(ValueError, RecursionError):
            decoded = json.loads(found or "{}")
            return decoded if isinstance(decoded, dict) else {}
        return {}

    def _shape(self) -> dict[str, int]:
        told = self._arguments()
        return {
            kind: value
            for kind, name in _SIZES.items()
            if isinstance(value := told.get(name), int) and value > 0
        }

    def _host(self) -> str | None:
        for (name,) in self._report.rows("SELECT hostName FROM HOST_INFO"):
            if name not in NOTHING_KNOWN:
                return str(name)
        return None

    def _device_name(self, device: int | None) -> str | None:
        rows = {
            number: str(name)
            for number, name in self._report.rows("SELECT id, name FROM NPU_INFO")
            if name not in NOTHING_KNOWN
        }
        return rows.get(device) or next(iter(rows.values()), None)

    def _vendor(self) -> str | None:
        if told := self._run.get("device_vendor"):
            return {"NVIDIA": "nvidia", "AMD": "amd"}.get(told, told.lower())
        return "nvidia" if self._is_gpu else "huawei"
