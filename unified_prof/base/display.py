"""Base classes for objects that notebooks display as HTML.

The renderer is imported by name, because `report` is a higher layer than these classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TypeVar

Item = TypeVar("Item")


class Displayed:
    """Base class of objects that `report.api` displays as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module("unified_prof.report.api").object_html(self))


class DisplayedList(list[Item], Displayed):
    """List that notebooks display as HTML."""

    __slots__ = ()

    def __init__(self, items: Iterable[Item] = ()) -> None:
        super().__init__(items)
