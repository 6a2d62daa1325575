"""What objects of the public API have in common: notebooks show them as HTML.

How they look is for `report`, which lies above all that it shows: it is asked by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TypeVar

One = TypeVar("One")


class Displayed:
    """Shown by notebooks as `report.notebook` draws its kind."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module("unified_prof.report.notebook").html_of(self))


class Together(list[One], Displayed):
    """A list that notebooks show as what is in it."""

    __slots__ = ()

    def __init__(self, things: Iterable[One] = ()) -> None:
        super().__init__(things)
