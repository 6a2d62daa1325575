"""Put a function mode below whatever modes the program has, and take it out from there.

`with mode:` would push on top, and the program's own `with` blocks, which end by popping the
top, would pop ours in place of theirs when tracking begins or ends inside such a block.
"""

from __future__ import annotations

from typing import Any


def insert_mode(mode: Any) -> None:
    """Make `mode` the lowest of this thread's function modes, above torch's own device mode.

    torch keeps the mode of `torch.set_default_device` at the very bottom and checks that it is.
    """
    from torch.utils._device import DeviceContext

    others = _pop_all()
    if others and isinstance(others[-1], DeviceContext):
        _push_all([*others[:-1], mode, others[-1]])
    else:
        _push_all([*others, mode])


def remove_mode(mode: Any) -> bool:
    """Take `mode` out of this thread's function modes; return whether it was there."""
    others = _pop_all()
    _push_all([other for other in others if other is not mode])
    return any(other is mode for other in others)


def _pop_all() -> list[Any]:
    """Empty the stack and return it, top first."""
    import torch

    count = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(count)]


def _push_all(modes: list[Any]) -> None:
    import torch

    for mode in reversed(modes):
        torch._C._push_on_torch_function_stack(mode)
