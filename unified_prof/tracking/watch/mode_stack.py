"""Put a function mode below whatever modes the program has, and take it out from there.

`with mode:` would push on top, and the program's own `with` blocks, which end by popping the
top, would pop ours in place of theirs when tracking begins or ends inside such a block.
"""

from __future__ import annotations

from typing import Any

from unified_prof.tracking.torch_internals import TorchInternals


class ModeStack:
    """The function modes of the calling thread."""

    def __init__(self, internals: TorchInternals) -> None:
        self._is_device_mode = internals.is_device_mode
        self._count, self._pop, self._push = internals.mode_stack()

    def insert(self, mode: Any) -> None:
        """Make `mode` the lowest of the modes, above torch's own device mode.

        torch keeps the mode of `torch.set_default_device` at the very bottom and checks that it
        is.
        """
        others = self._pop_all()
        if others and self._is_device_mode(others[-1]):
            self._push_all([*others[:-1], mode, others[-1]])
        else:
            self._push_all([*others, mode])

    def remove(self, mode: Any) -> bool:
        """Take `mode` out; return whether it was there."""
        others = self._pop_all()
        self._push_all([other for other in others if other is not mode])
        return any(other is mode for other in others)

    def _pop_all(self) -> list[Any]:
        """Empty the stack and return it, top first."""
        return [self._pop() for _ in range(self._count())]

    def _push_all(self, modes: list[Any]) -> None:
        for mode in reversed(modes):
            self._push(mode)
