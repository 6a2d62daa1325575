"""Modules that are imported when something of them is asked for: most reports ask for few."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module that has not been needed yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def modules(package: str, *names: str) -> tuple[Any, ...]:
    """Return what stands for some modules of a package.

    Whoever uses it imports them for the type checker all the same, so that import contracts hold.
    """
    return tuple(Later(f"{package}.{name}") for name in names)
