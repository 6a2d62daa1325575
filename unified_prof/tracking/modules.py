"""Qualified names of modules, as `named_modules()` of their root has them."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

from unified_prof.tracking.torch_internals import children_of

_MAX_SEARCHES = 5
"""Searches of the whole heap: they take a moment, and programs may make modules all the time."""


class ModuleNames:
    """Finds the path of any module of the program below its root.

    A root is a module that no other module holds. Where several roots hold a module, the first
    one given or found names it.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._roots: dict[int, int] = {}
        self._members: dict[int, list[Any]] = {}
        self._ran: set[int] = set()
        self._searches_left = _MAX_SEARCHES

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; the first name of a shared module counts."""
        members = self._members.setdefault(id(root), [])
        for path, module in root.named_modules():
            if id(module) not in self._paths:
                self._paths[id(module)] = path
                self._roots[id(module)] = id(root)
                members.append(module)  # kept, so that its `id` stays its own

    def path(self, module: Any) -> str:
        """Return the path of a module that ran."""
        key = id(module)
        if key not in self._paths:
            if self._searches_left:
                self._searches_left -= 1
                self._find_roots()
            if key not in self._paths:  # made for the moment, as in `nn.Softmax(-1)(x)`
                self.add_root(module)
        self._ran.add(self._roots[key])
        return self._paths[key]

    def running(self) -> list[Any]:
        """Return all modules of the models of which some module ran."""
        return [module for root in self._ran for module in self._members[root]]

    def _find_roots(self) -> None:
        from torch.nn import Module

        # By type, not isinstance: that would wake up lazy proxies.
        modules = [item for item in gc.get_objects() if issubclass(type(item), Module)]
        held = {id(child) for module in modules for child in (children_of(module) or {}).values()}
        for module in modules:
            if id(module) not in held and children_of(module) is not None:
                # Any module of the process comes by here; one may refuse to be walked.
                with suppress(Exception):
                    self.add_root(module)
