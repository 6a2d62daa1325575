"""A profile that one callback begins and another one ends.

What a profiler has just recorded, as databases: `on_trace_ready` of torch and torch_npu.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from unified_prof.errors import UprofError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.distributed import rank_here
from unified_prof.pipeline.live import Profile, profile


class Measurement:
    """`unified_prof.profile` for programs that somebody else's loop runs.

    A measurement never ends a training: what goes wrong with it is a warning, and `failure` says
    it again. It ends at the latest with the program.

    Attributes:
        profile: What came of it, once it has begun.
        failure: Why nothing, or not all, was measured; None: all was.
    """

    _under_way: Measurement | None = None
    """The one of this program that has begun and not ended."""

    def __init__(self, output: str | Path | None = None, **options: Any) -> None:
        self._output, self._options = output, options
        self._open: AbstractContextManager[Profile] | None = None
        self.profile: Profile | None = None
        self.failure: str | None = None
        self._of: object = None

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and not ended."""
        return self._open is not None

    def begin(self, of: object = None) -> None:
        """Begin to measure; where it has begun already, nothing happens.

        Args:
            of: The loop, where callbacks are not told that one failed: what another loop left
                under way is ended first.
        """
        if self._open is not None or self.profile is not None:
            return
        left = Measurement._under_way
        if of is not None and left is not None and left._of is not None and left._of is not of:
            left.end(RuntimeError("the loop ended before its end, and another one began"))
        self._of = of
        opened = profile(self._output, **self._options)
        try:
            self.profile = opened.__enter__()
        except UprofError as err:
            self._fail(err)
            return
        self._open, self._owner = opened, os.getpid()
        Measurement._under_way = self
        atexit.register(self.end)

    def end(self, error: BaseException | None = None) -> None:
        """End it and write the reports; where it is not under way, nothing happens.

        Args:
            error: What ended the loop, if that did not end well.
        """
        if self._open is None or os.getpid() != self._owner:  # a process that was forked since
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
            if err is not error:  # the loop's own is raised where it happened
                raise
        if self.profile is not None and self.profile.failure is not None:
            self.failure = self.failure or self.profile.failure

    def summary(self) -> str:
        """Return where the reports are and what an iteration takes, in a few lines of text."""
        if self.failure is not None and (self.profile is None or not self.profile.files):
            return f"uprof: nothing was measured: {self.failure}"
        if self.profile is None or self.is_under_way:
            return "uprof: nothing was measured yet"
        found = self.profile.summary
        lines = [f"uprof: {kind} report: {path}" for kind, path in self.profile.files.items()]
        if found is not None and found.iteration_ms is not None:
            lines.insert(0, f"uprof: an iteration takes {found.iteration_ms:,.4g} ms")
        return "\n".join(lines)

    def _fail(self, err: UprofError) -> None:
        self.failure = str(err)
        hint = f" ({err.hint})".replace("--force", "force=True") if err.hint else ""
        warnings.warn(f"uprof measured nothing: {err.told}{hint}", RuntimeWarning, stacklevel=3)


def is_imported(package: str) -> bool:
    """Return whether the program uses a package."""
    return package in sys.modules


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
            `uprof convert OUTPUT` makes them later.

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
