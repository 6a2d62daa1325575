"""What a profiler has just recorded, as databases: `on_trace_ready` of torch and torch_npu."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unified_prof.errors import UprofError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.ranks import rank_here


def trace_handler(
    output: str | Path, *, keep_trace: bool = True, now: bool = True
) -> Callable[[Any], None]:
    """Return what `torch.profiler.profile(on_trace_ready=...)` takes, or that of torch_npu.

    Each recording becomes a trace and a database of the same name below `output`, such as
    `rank0_step12.json.gz` and `rank0_step12.db`; under torch_npu a `*_ascend_pt` folder and the
    database of its analysis inside. A trace that cannot be converted stays, with a warning: the
    training goes on.

    Args:
        output: The folder; it is made.
        keep_trace: Whether torch's trace stays beside the database.
        now: Whether databases are made at once, in the training's own time; else
            `uprof import OUTPUT` makes them later.

    Raises:
        OSError: the folder cannot be made.
    """
    folder = Path(output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    of_npu = _npu_handler(folder)

    def ready(profiler: Any) -> None:
        if of_npu is not None and type(profiler).__module__.partition(".")[0] == "torch_npu":
            before = set(folder.glob("*_ascend_pt"))
            of_npu(profiler)
            made = sorted(set(folder.glob("*_ascend_pt")) - before) or sorted(before)[-1:]
            if now:
                for recording in made:
                    _convert(recording, None)
            return
        trace = _free(folder, f"rank{rank_here().number or 0}_step{profiler.step_num}")
        try:
            profiler.export_chrome_trace(str(trace))
        except OSError as err:  # a full disk, say
            trace.unlink(missing_ok=True)
            _warn(f"uprof: {trace} could not be written: {err.strerror or err}")
            return
        database = trace.with_name(trace.name.removesuffix(".json.gz") + ".db")
        if now and _convert(trace, database) and not keep_trace:
            trace.unlink()

    return ready


def _npu_handler(folder: Path) -> Callable[[Any], None] | None:
    """Return torch_npu's own handler, which has to be made before it records; None without it."""
    npu = sys.modules.get("torch_npu")
    if npu is None:
        return None
    made: Callable[[Any], None] = npu.profiler.tensorboard_trace_handler(
        str(folder), analyse_flag=False
    )
    return made


def _free(folder: Path, stem: str) -> Path:
    """Return a name that neither a trace nor a database has: nothing is overwritten."""
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}_{number}"
        trace = folder / f"{name}.json.gz"
        if not trace.exists() and not (folder / f"{name}.db").exists():
            return trace
        number += 1


def _convert(recording: Path, target: Path | None) -> bool:
    """Make the database, or say why not."""
    try:
        convert(recording, target)
    except UprofError as err:
        _warn(f"uprof: {recording} has no database: {err}")
        return False
    return True


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
