"""A trace of a pipeline of two ranks, recorded by the second one."""

from pathlib import Path

from tests.decoders.kineto.builders import call, complete, kernel, write

# The second rank (global rank 6) receives, computes, sends.
GROUP = {"Process Group Name": "pp_1", "Process Group Ranks": "[2, 6]", "Group size": 2}
PIPELINE = GROUP | {"In msg nelems": 500_000, "Out msg nelems": 500_000, "dtype": "Float"}


def pipeline_kernel(
    ts: float, dur: float, correlation: int, name: str, **more: object
) -> dict[str, object]:
    args = {**PIPELINE, "Collective name": name, "stream": 9, **more}
    return kernel(ts, dur, correlation, name="ncclDevKernel_SendRecv(x)", args=args)


def pipeline(path: Path, *more: dict[str, object], rank: int | None = 6) -> Path:
    events = [
        complete("user_annotation", "ProfilerStep#7", 0, 100),
        *(call(10 * i, 1, i) for i in range(1, 4)),
        pipeline_kernel(30, 40, 1, "recv", **{"Src Rank": 2, "Seq": 0}),
        kernel(60, 30, 2),
        pipeline_kernel(100, 10, 3, "send", **{"Dst Rank": 2, "Seq": 1}),
    ]
    metadata = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return write(path, [*events, *more], **metadata)
