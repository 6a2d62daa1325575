"""A trace of a pipeline of two ranks, as the second one recorded it."""

from __future__ import annotations

from pathlib import Path

from tests.decoders.kineto.builders import call, complete, kernel, write

# A pipeline of two ranks, seen by the second one (global rank 6): it receives, computes, sends.
PIPELINE = {
    "Process Group Name": "pp_1",
    "Process Group Ranks": "[2, 6]",
    "In msg nelems": 500_000,
    "Out msg nelems": 500_000,
    "dtype": "Float",
    "Group size": 2,
}


def passed(ts: float, dur: float, correlation: int, name: str, **more: object) -> dict[str, object]:
    args = {**PIPELINE, "Collective name": name, "stream": 9, **more}
    return kernel(ts, dur, correlation, name="ncclDevKernel_SendRecv(x)", args=args)


def pipeline(path: Path, *more: dict[str, object], rank: int | None = 6) -> Path:
    events = [
        complete("user_annotation", "ProfilerStep#7", 0, 100),
        *(call(10 * i, 1, i) for i in range(1, 4)),
        passed(30, 40, 1, "recv", **{"Src Rank": 2, "Seq": 0}),
        kernel(60, 30, 2),
        passed(100, 10, 3, "send", **{"Dst Rank": 2, "Seq": 1}),
    ]
    about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return write(path, [*events, *more], **about)
