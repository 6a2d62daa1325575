"""Measurements for trainer callbacks, and a handler for `on_trace_ready`."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.errors import UprofError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.live import Profile, profile, watch
from unified_prof.pipeline.outputs import rank_here
from unified_prof.tracking.live import step

if TYPE_CHECKING:
    from unified_prof.pipeline.watch import Watch


class Measurement:
    """`unified_prof.profile`, or `unified_prof.watch`, for callbacks of a trainer.

    Errors of the measurement do not stop the training: they become warnings and `failure`. The
    measurement ends when the program exits at the latest.

    Args:
        output: Directory of the files; by default `uprof_<script>_<timestamp>`.
        watch: If True, watch the whole training instead of profiling some iterations.
        options: Other arguments of `unified_prof.profile` or `unified_prof.watch`.

    Attributes:
        profile: The profile; None before the start.
        watch: The watched run; None before the start.
        failure: Why the measurement is missing or partial; None if it is complete.
    """

    _under_way: Measurement | None = None  # The running measurement of this program.

    def __init__(
        self, output: str | Path | None = None, *, watch: bool = False, **options: Any
    ) -> None:
        self._output, self._is_watched, self._options = output, watch, options
        self._open: AbstractContextManager[Profile | Watch] | None = None
        self.profile: Profile | None = None
        self.watch: Watch | None = None
        self.failure: str | None = None
        self._loop: object = None

    @property
    def is_under_way(self) -> bool:
        """True between `begin` and `end`."""
        return self._open is not None

    def begin(self, loop: object = None) -> None:
        """Start measuring; does nothing if the measurement has started.

        Args:
            loop: The training loop, for trainers that do not report failures: a measurement
                that another loop left running is ended first.
        """
        if self._open is not None or self.profile is not None or self.watch is not None:
            return
        left = Measurement._under_way
        if left is not None and None not in (loop, left._loop) and left._loop is not loop:
            left.end(RuntimeError("the training loop stopped early, and another one started"))
        self._loop = loop
        opened: AbstractContextManager[Profile | Watch]
        try:
            if self._is_watched:
                opened = self.watch = watch(self._output, **self._options)
                self.watch.__enter__()
            else:
                opened = measured = profile(self._output, **self._options)
                self.profile = measured.__enter__()
        except UprofError as err:
            self._fail(err)
            return
        self._open, self._owner = opened, os.getpid()
        Measurement._under_way = self
        atexit.register(self.end)

    def step(self) -> None:
        """Mark the end of a step of the trainer, if the training is watched."""
        if self._is_watched and self.is_under_way:
            step()

    def leave_out(self) -> None:
        """Count the time since the last step, such as a validation, to no step."""
        if self.watch is not None and self.is_under_way:
            self.watch.leave_out()

    def end(self, error: BaseException | None = None) -> None:
        """End the measurement and write the reports; does nothing if it is not running.

        `error` is the exception that ended the loop.
        """
        if self._open is None or os.getpid() != self._owner:  # a forked process
            return
        opened, self._open = self._open, None
        Measurement._under_way = None
        atexit.unregister(self.end)
        try:
            if error is None:
                opened.__exit__(None, None, None)
            else:
                opened.__exit__(type(error), error, error.__traceback__)
        except UprofError as err:
            self._fail(err)
        except BaseException as err:
            if err is not error:  # the trainer raises the error of the loop
                raise
        if self.profile is not None and self.profile.failure is not None:
            self.failure = self.failure or self.profile.failure

    def summary(self) -> str:
        """Return the paths of the reports and the iteration time as text."""
        if self.watch is not None:
            return f"uprof: watched, see uprof report {self.watch.folder}"
        if self.failure is not None and (self.profile is None or not self.profile.files):
            return f"uprof: not measured: {self.failure}"
        if self.profile is None or self.is_under_way:
            return "uprof: not measured yet"
        found = self.profile.summary
        lines = [f"uprof: {kind} report: {path}" for kind, path in self.profile.files.items()]
        if found is not None and found.iteration_ms is not None:
            lines.insert(0, f"uprof: iteration {found.iteration_ms:,.4g} ms (median)")
        return "\n".join(lines)

    def _fail(self, err: UprofError) -> None:
        self.failure = str(err)
        hint = f" ({err.hint})".replace("--force", "force=True") if err.hint else ""
        text = f"uprof measured nothing: {err.tagged_message}{hint}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def trace_handler(
    output: str | Path, *, keep_trace: bool = True, now: bool = True
) -> Callable[[Any], None]:
    """Return a handler for `on_trace_ready` of torch.profiler or torch_npu.profiler.

    Each recording becomes a trace and a database below `output`, such as `rank0_step12.json.gz` and
    `rank0_step12.db`; with torch_npu an `*_ascend_pt` directory with the database inside. If a
    trace cannot be converted, it is kept, a warning is issued and the training continues.

    Args:
        output: Directory; created if needed.
        keep_trace: Keep torch's trace beside the database.
        now: Convert during the training; otherwise run `uprof convert OUTPUT` later.

    Raises:
        OSError: The directory cannot be created.
    """
    folder = Path(output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    npu = sys.modules.get("torch_npu")
    of_npu: Callable[[Any], None] | None = None
    if npu is not None:  # its handler has to be created before recording
        of_npu = npu.profiler.tensorboard_trace_handler(str(folder), analyse_flag=False)

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
        except OSError as err:  # for example a full disk
            trace.unlink(missing_ok=True)
            _warn(f"uprof: cannot write {trace}: {err.strerror or err}")
            return
        database = trace.with_name(trace.name.removesuffix(".json.gz") + ".db")
        if now and _convert(trace, database) and not keep_trace:
            trace.unlink()

    return ready


def _free(folder: Path, stem: str) -> Path:
    """Return an unused path for a trace: neither it nor its database exists."""
    for number in count(1):
        name = stem if number == 1 else f"{stem}_{number}"
        trace = folder / f"{name}.json.gz"
        if not trace.exists() and not (folder / f"{name}.db").exists():
            break
    return trace


def _convert(recording: Path, target: Path | None) -> bool:
    """Convert a recording; if that fails, warn and return False."""
    try:
        convert(recording, target)
    except UprofError as err:
        _warn(f"uprof: cannot convert {recording}: {err}")
        return False
    return True


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
