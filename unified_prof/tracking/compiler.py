"""Keep torch's compiler away from this package, whose hooks run in the midst of what it compiles.

A program that compiles its optimizer's step has our hooks of that step in what is compiled. The
compiler then takes whatever they call for the program's: with numpy's arrays as tensors, graphs by
the dozen, and errors of its own in the midst of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import iter_modules

_LOOKED_AT = "unified_prof.tracking.watch.interception"
"""Its functions stand in for torch's, and a call that was skipped would break a graph."""

_told: set[str] = set()


def leave_out(skip: Callable[[str], None]) -> None:
    """Tell the compiler, by its `skip`, all modules that it need not look at; once a process."""
    for name in _modules():
        if name not in _told:
            skip(name)
            _told.add(name)


def _modules() -> Iterator[str]:
    """Return the names of all but one module, packages for all that is in them."""
    top = Path(__file__).parents[1]
    for folder in (top, top / "tracking", top / "tracking" / "watch"):
        package = ".".join(folder.relative_to(top.parent).parts)
        for module in iter_modules([str(folder)], f"{package}."):
            if not _LOOKED_AT.startswith(module.name):
                yield module.name
