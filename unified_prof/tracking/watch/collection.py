"""Hold off Python's garbage collector while many objects are made that will not be garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = (0, 0, 0)

_held: tuple[int, int, int] | None = None
"""What the thresholds were before, while it is held off."""


@contextmanager
def collection_held_off() -> Iterator[None]:
    """Start no automatic collection within the block.

    By the thresholds, not by `gc.disable`: that is the program's own switch, which it may turn
    within the block, and ask for. Thresholds that the program sets within the block stay.
    """
    global _held
    if _held is not None or gc.get_threshold()[0] == 0:  # nested, or the program's own wish
        yield
        return
    _held = gc.get_threshold()
    gc.set_threshold(*_NEVER)
    try:
        yield
    finally:
        _give_back()


def _give_back() -> None:
    global _held
    before, _held = _held, None
    # Python 3.14 knows no third threshold and always gives 0 for it.
    if before is not None and gc.get_threshold()[0] == 0:
        gc.set_threshold(*before)


if hasattr(os, "register_at_fork"):  # a child of another thread's has no end of the block
    os.register_at_fork(after_in_child=_give_back)
