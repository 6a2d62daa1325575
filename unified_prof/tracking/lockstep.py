"""Instruments of a run that `uprof gate --until-sure` started: turns, and counts of what ran.

Two runs step in turn, so that slow changes of the machine affect both equally. Messages are lines
over two pipes. A run writes `ready` before its first turn. The gate answers with the number of
iterations of each turn, and the run writes the nanoseconds that the turn took. 0 ends the
measurement.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns, process_time_ns
from typing import Any

from unified_prof.base.run_spec import COUNTED, VARYING, Turns
from unified_prof.tracking.driver import Instrument

COUNTED_ITERATIONS = 2  # Number of iterations whose counts must be equal.


class TurnTaker(Instrument):
    """Lets iterations run only when it is this run's turn; `synchronize` is None on a host."""

    def __init__(self, turns: Turns, synchronize: Callable[[], None] | None) -> None:
        self._turns = turns
        self._synchronize = synchronize
        self._answers = os.fdopen(turns.read, encoding="ascii")
        self._left = 0
        self._began = (0, 0)
        self.is_over = False
        """True if the gate has ended the measurement."""
        _end_with(turns.lifeline)

    def start(self) -> None:
        """Wait for the first turn."""
        self._await_turn("ready")

    def end_iteration(self, index: int) -> None:
        """After the last iteration of a turn, wait for the next turn."""
        self._left -= 1
        if self._left > 0:
            return
        if self._synchronize is not None:
            self._synchronize()
        wall, cpu = perf_counter_ns() - self._began[0], process_time_ns() - self._began[1]
        self._await_turn(f"{wall if self._synchronize else cpu} {wall}")

    def _await_turn(self, message: str) -> None:
        try:
            os.write(self._turns.write, f"{message}\n".encode())
            answer = self._answers.readline()
        except OSError:
            answer = ""
        if not answer:  # the gate was killed
            if os.getpgid(0) == os.getpid():
                os.killpg(os.getpid(), signal.SIGKILL)
            os._exit(1)
        self._left = int(answer)
        self.is_over = not self._left
        self._began = perf_counter_ns(), process_time_ns()


def _end_with(lifeline: int) -> None:
    """Let the kernel kill the process group when the other end of `lifeline` is closed."""
    import fcntl  # not on Windows

    with suppress(OSError, AttributeError):  # only Linux can send another signal than SIGIO
        signal_number = fcntl.F_SETSIG  # type: ignore[attr-defined,unused-ignore]
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, signal_number, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def use_one_thread() -> None:
    """Let torch use one thread, unless the environment sets a number.

    CPU time is the work of all threads, and threads that wait for one another on a busy machine
    make it vary three times as much.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


class OperatorCounts(Instrument):
    """Counts the operators of iterations, their FLOPs, bytes, synchronizations and copies.

    The counts include backward passes and optimizer steps, and do not depend on the machine. A
    program with compiled code is not counted, because its kernels are not operators.
    """

    def __init__(self, device: str, facts: dict[str, str]) -> None:
        self._device = device
        self._facts = facts
        self._found: list[Counter[str]] = []
        self._mode: Any = None

    def begin_iteration(self, index: int) -> None:
        """Start counting, unless the program has compiled code."""
        if _compiled_frames() is None:
            self._found.append(Counter(dict.fromkeys(("copies", "flops", "synchronizations"), 0)))
            self._mode = _counting_mode(self._found[-1], self._device)
            self._mode.__enter__()

    def end_iteration(self, index: int) -> None:
        """Stop counting."""
        self.stop(complete=True)

    def stop(self, complete: bool) -> None:
        """Stop counting; record the counts that were equal in all iterations."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
        if len(self._found) < COUNTED_ITERATIONS:
            return
        first = self._found[0]
        vary = [name for name in first if any(one[name] != first[name] for one in self._found)]
        self._facts |= {f"{COUNTED}{one}": str(first[one]) for one in first if one not in vary}
        if vary:
            self._facts[VARYING] = ", ".join(vary)


def note_compiled(facts: dict[str, str]) -> None:
    """Record the graph breaks and recompilations of the process, if it compiled anything."""
    frames = _compiled_frames()
    if frames is None:
        return
    breaks = sys.modules["torch._dynamo.utils"].counters["graph_break"]
    facts[f"{COUNTED}graph-breaks"] = str(sum(breaks.values()))
    facts[f"{COUNTED}recompilations"] = str(sum(max(0, one - 1) for one in frames.values()))


def _compiled_frames() -> Counter[Any] | None:
    """Return how often each frame was compiled; None if nothing was."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return getattr(module, "FRAME_COMPILE_COUNTER", None) or None


def _counting_mode(found: Counter[str], device: str) -> Any:
    from torch import Tensor, ops
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    aten = ops.aten
    waited_for = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal}
    copying = {aten._to_copy, aten.copy_}

    def is_view(func: Any) -> bool:
        return any(one.alias_info and not one.alias_info.is_write for one in func._schema.returns)

    class Counting(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            with suppress(Exception):  # operators of other packages may have other arguments
                packet = func.overloadpacket
                found["aten-calls"] += 1
                tensors = [one for one in _leaves((args, out)) if isinstance(one, Tensor)]
                kinds = {one.device.type for one in tensors}
                if packet in waited_for and device in kinds:
                    found["synchronizations"] += 1
                if packet in copying and len(kinds) > 1:
                    found["copies"] += 1
                if not is_view(func):
                    found["bytes"] += sum(one.numel() * one.element_size() for one in tensors)
                if packet in flop_registry:
                    found["flops"] += int(
                        flop_registry[packet](*args, **(kwargs or {}), out_val=out)
                    )
            return out

    return Counting()


def _leaves(values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        return [values]
    return [leaf for one in values for leaf in _leaves(one)]
