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
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no `id` is used again
        self._unknown: set[int] = set()

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; the first name of a shared module counts."""
        for path, module in root.named_modules():
            if id(module) not in self._paths:
                self._paths[id(module)] = path
                self._kept.append(module)

    def path(self, module: Any) -> str | None:
        """Return the path of `module`, None if it cannot be found."""
        key = id(module)
        if key not in self._paths and key not in self._unknown:
            self._find_roots()
            if key not in self._paths:
                self._unknown.add(key)
                self._kept.append(module)
        return self._paths.get(key)

    def known(self) -> list[Any]:
        """Return every module that has a name."""
        return [module for module in self._kept if id(module) in self._paths]

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
