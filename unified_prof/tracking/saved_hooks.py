"""The stack of saved-tensor hooks, also where torch does not show what is on it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Pair = tuple[Any, Any]
"""A pack hook and its unpack hook."""


class UnknownHooksError(LookupError):
    """Hooks are in place that cannot be taken away for a while, as nobody saw them pushed."""


class SavedTensorHooks:
    """The stack of pairs of hooks that torch gives saved tensors to; only the top is called."""

    def __init__(
        self,
        push: Callable[[Any, Any], None],
        pop: Callable[[], None],
        top: Callable[[bool], Pair | None],
    ) -> None:
        self.push = push
        self.pop = pop
        self._top = top

    def top(self) -> Pair | None:
        """Return the pair of hooks on top, None where there is none."""
        return self._top(True)  # also where none may be used at present

    def pop_all(self) -> list[Pair]:
        """Empty the stack and return it, top first.

        Raises:
            UnknownHooksError: There are others below; the stack is as it was.
        """
        hooks: list[Pair] = []
        try:
            while (top := self.top()) is not None:
                hooks.append(top)
                self.pop()
        except UnknownHooksError:
            for pair in reversed(hooks):
                self.push(*pair)
            raise
        return hooks


class PushedHooks:
    """What each thread pushed and has not popped: `top` for a torch that has none.

    torch refuses to disable hooks while there are any; that is how an empty stack is told.
    """

    def __init__(self, disabled: Callable[[str], AbstractContextManager[None]]) -> None:
        self._disabled = disabled
        self._threads = threading.local()

    def wrap_push(self, push: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Return `push`, which also notes what is pushed."""

        @functools.wraps(push)
        def noting_push(pack: Any, unpack: Any) -> None:
            push(pack, unpack)
            self._stack().append((pack, unpack))

        return noting_push

    def wrap_pop(self, pop: Callable[[], None]) -> Callable[[], None]:
        """Return `pop`, which also forgets what is popped."""

        @functools.wraps(pop)
        def noting_pop() -> None:
            pop()
            del self._stack()[-1:]

        return noting_pop

    def top(self, _also_while_tracing: bool) -> Pair | None:
        """Return the pair of hooks on top, None where there is none.

        Raises:
            UnknownHooksError: Those on top were pushed before pushing was watched, or the
                autograd engine gave them to one of its threads.
        """
        stack = self._stack()
        if self._is_empty():
            stack.clear()  # the engine ends with the stack that it began with
            return None
        if not stack:
            raise UnknownHooksError("saved-tensor hooks were in place before tracking began")
        return stack[-1]

    def _stack(self) -> list[Pair]:
        try:
            return self._threads.stack  # type: ignore[no-any-return]
        except AttributeError:
            stack: list[Pair] = []
            self._threads.stack = stack
            return stack

    def _is_empty(self) -> bool:
        try:
            with self._disabled("uprof looks whether there are saved-tensor hooks"):
                return True
        except RuntimeError:
            return False
