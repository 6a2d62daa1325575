"""Hand-written tracked runs for the tests of everything after tracking."""

from dataclasses import replace
from typing import Any

from unified_prof.base.run_spec import (
    ActivationRecord,
    Frame,
    GapRecord,
    IterationRecord,
    OperationRecord,
    RegionRecord,
    TrackedRun,
    WeightRecord,
)


def tracked_run(**changes: Any) -> TrackedRun:
    """Return a run of `linear`, `relu`, `linear` with three iterations, the second unmatched."""
    fields: dict[str, Any] = {
        "device": "cpu: a processor",
        "operations": (
            OperationRecord(
                "linear",
                (Frame("net.py", 11), Frame("net.py", 20)),
                "blocks.0",
                "Linear",
                forward_ms=(1.0, 3.0),
                backward_ms=(2.0, 4.0),
            ),
            OperationRecord(
                "relu",
                (Frame("net.py", 12),),
                "",
                "Net",
                (0.5, 0.7),
                None,
                GapRecord("net.py", 11, 12, (0.1, 0.3)),
            ),
            OperationRecord(
                "linear",
                (Frame("net.py", 11), Frame("net.py", 21)),
                "blocks.1",
                "Linear",
                forward_ms=(5.0, 5.0),
                backward_ms=(1.0, 1.0),
            ),
        ),
        "weights": (
            WeightRecord("weight", "blocks.0", "Linear", 400, 400, (Frame("net.py", 5),)),
            WeightRecord("bias", "blocks.0", "Linear", 40, 0, ()),
        ),
        "activations": (ActivationRecord("relu", "", "Net", 128, (Frame("net.py", 12),)),),
        "iterations": (
            IterationRecord(20.0, 8.0, 4.0, 1000, matched=True),
            IterationRecord(90.0, 50.0, 4.0, 3000, matched=False),
            IterationRecord(24.0, 10.0, 6.0, 2000, matched=True),
        ),
        "peak_usage_bytes": 3000,
        "complete": True,
        "anomalies": {"iterations_unmatched": (1, "iteration 1 has 4 operations instead of 3")},
        "facts": {"torch": "2.13.0"},
    }
    return TrackedRun(**{**fields, **changes})


def run_with_regions() -> TrackedRun:
    """Return this run with regions: `first`, recursive, in `model` in `step`; and `data`."""
    run = tracked_run()
    linear, relu, last = run.operations
    (activation,) = run.activations
    return replace(
        run,
        operations=(replace(linear, region=2), replace(relu, region=3), replace(last, region=1)),
        activations=(replace(activation, region=3),),
        regions=(
            RegionRecord("step", None, (1, 1, 1), 3000),
            RegionRecord("model", 0, (1, 1, 1), 3000),
            RegionRecord("first", 1, (1, 9, 1), 2000),
            RegionRecord("first", 2, (1, 9, 1), 2500),
            RegionRecord("data", None, (2, 2, 4), None),
        ),
    )
