"""Qualified names of modules, as `named_modules()` of their root has them."""

from __future__ import annotations

import gc
from typing import Any


class ModuleNames:
    """Finds the path of any module of the program below its root.

    A root is a module that no other module holds. Where several roots hold a module, the first
    one given or found names it.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str | None] = {}
        self._roots: dict[int, int] = {}
        self._members: dict[int, list[Any]] = {}
        self._ran: set[int] = set()

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; the first name of a shared module counts."""
        members = self._members.setdefault(id(root), [])
        for path, module in root.named_modules():
            if self._paths.get(id(module)) is None:
                self._paths[id(module)] = path
                self._roots[id(module)] = id(root)
                members.append(module)  # kept, so that its `id` stays its own

    def path(self, module: Any) -> str | None:
        """Return the path of a module that ran, None if it cannot be found."""
        key = id(module)
        if key not in self._paths:
            self._find_roots()
            if key not in self._paths:
                self._paths[key] = None
                self._members.setdefault(0, []).append(module)
        if key in self._roots:
            self._ran.add(self._roots[key])
        return self._paths[key]

    def running(self) -> list[Any]:
        """Return all modules of the models of which some module ran."""
        return [module for root in self._ran for module in self._members[root]]

    def _find_roots(self) -> None:
        from torch.nn import Module

        # By type, not isinstance: that would wake up lazy proxies.
        modules = [item for item in gc.get_objects() if issubclass(type(item), Module)]
        held = {
            id(child) for module in modules for child in vars(module).get("_modules", {}).values()
        }
        for module in modules:
            if id(module) not in held and "_modules" in vars(module):
                self.add_root(module)
