"""Qualified names of modules, as `named_modules()` of their root has them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from unified_prof.tracking.torch_objects import children_of

_MAX_SEARCHES = 5
"""Searches of the whole heap: they take a moment, and programs may make modules all the time."""


class NamedModule:
    """What is known of one module; it does not keep the module alive."""

    __slots__ = ("class_name", "members", "module", "path", "root", "settled")

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        """Gives the module, None once it is gone."""
        self.class_name = type(module).__name__
        self.path = ""
        self.root: NamedModule = self
        self.members: dict[NamedModule, None] = {}
        """Of a root: itself and the modules below it."""
        self.settled = False
        """Of a root: whether it is known that no other module holds it."""


class ModuleNames:
    """Finds the path of any module of the program below its root.

    A root is a module that no other module holds. Where several roots hold a module, the first
    one given or found names it. A module may be gone before its root was looked for: it is
    named at once, below the outermost module that was running, and anew once the root is found.
    """

    def __init__(self) -> None:
        self.known: dict[int, NamedModule] = {}
        """By `id`, which is good only as long as the module is the one that is named."""
        self._in_making: dict[str, NamedModule] = {}
        """Stands for modules of a class while they, or what will hold them, are being made."""
        self._unsettled: list[NamedModule] = []
        self._searches_left = _MAX_SEARCHES

    def add_root(self, root: Any) -> None:
        """Name `root` and everything below it; the first name of a shared module counts."""
        self._name_below(root).settled = True

    def find(self, module: Any) -> NamedModule | None:
        """Return what is known of a module."""
        named = self.known.get(id(module))
        return named if named is not None and named.module() is module else None

    def name(self, module: Any, running: Sequence[Any] | None) -> NamedModule:
        """Return what a module is called that runs for the first time.

        Args:
            module: The module.
            running: Modules that are running, the outermost first; None where one is being
                made, so that it cannot be told yet who will hold the module.
        """
        if running is None:
            return self._in_making.setdefault(type(module).__name__, NamedModule(module))
        for holder in running:
            if self.find(holder) is None or holder is module:
                self._unsettled.append(self._name_below(holder))
            if named := self.find(module):
                return named
        # Made for the moment, as in `nn.Softmax(-1)(x)`, or added since its holder was named.
        named = self._name_below(module)
        self._unsettled.append(named)
        return named

    def settle(self) -> None:
        """Look for the roots of what was named since the last time and is still alive."""
        alive = [
            named
            for named in self._unsettled
            if not named.root.settled and named.module() is not None
        ]
        self._unsettled.clear()
        if alive and self._searches_left:
            self._searches_left -= 1
            self._find_roots()

    def path(self, module: Any) -> str:
        """Return what a module is called that need not have run."""
        named = self.find(module)
        return self.name(module, ()).path if named is None else named.path

    def members(self, roots: Iterable[NamedModule]) -> list[Any]:
        """Return all modules below `roots` that are alive, also those added lately."""
        found = []
        for root in roots:
            if (module := root.module()) is not None:
                with suppress(Exception):
                    self._name_below(module)
            found += [one for named in root.members if (one := named.module()) is not None]
        return found

    def _name_below(self, root: Any) -> NamedModule:
        owner = self._named(root)
        for path, module in root.named_modules():
            named = self._named(module)
            # What another root has named keeps its name, unless that turned out to be none.
            if named.root is not owner and not named.root.settled:
                named.path, named.root = path, owner
            if named.root is owner:
                owner.members[named] = None
        return owner

    def _named(self, module: Any) -> NamedModule:
        named = self.find(module)
        if named is None:
            named = self.known[id(module)] = NamedModule(module)
        return named

    def _find_roots(self) -> None:
        from torch.nn import Module

        # By type, not isinstance: that would wake up lazy proxies.
        modules = [item for item in gc.get_objects() if issubclass(type(item), Module)]
        held = {id(child) for module in modules for child in (children_of(module) or {}).values()}
        roots = [
            module
            for module in modules
            if id(module) not in held and children_of(module) is not None
        ]
        for root in roots:
            if (named := self.find(root)) is not None and named.root is named:
                named.settled = True
        for root in roots:
            # Any module of the process comes by here; one may refuse to be walked.
            with suppress(Exception):
                self.add_root(root)
