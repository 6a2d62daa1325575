"""From raw calls to what a report shows of them: name, frames, module."""

from __future__ import annotations

from dataclasses import dataclass

from unified_prof.runs.records import Frame
from unified_prof.tracking.measure.gaps import GapSite, gap_site
from unified_prof.tracking.watch.calls import CallSite, CallSites
from unified_prof.tracking.watch.code_entries import Stack, frames_of
from unified_prof.tracking.watch.names import OperationNames, is_placeholder
from unified_prof.tracking.watch.scopes import Scope


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One place in the program that calls one operation in one module.

    Of one table, equal ones are the same object: comparing and hashing them costs nothing.
    """

    name: str
    frames: tuple[Frame, ...]
    module_path: str | None
    module_class: str | None
    kept: bool
    """Whether the report shows it."""


class SiteTable:
    """What a report shows of call sites; equal ones give the same object."""

    def __init__(self, sites: CallSites, scope: Scope) -> None:
        self._call_sites = sites
        self._names = OperationNames()
        self.scope = scope
        self._known: dict[tuple[bool, int], Site] = {}
        self._sites: dict[tuple[object, ...], Site] = {}
        self._stacks: dict[int, Stack] = {}
        self._gaps: dict[tuple[Stack, Stack], GapSite | None] = {}

    def site(self, number: int, *, with_set_up: bool = False) -> Site:
        """Return the site with a number in `CallSites`.

        Args:
            number: Of a call of an iteration.
            with_set_up: The iteration holds the program's set-up: what modules do while they
                are made is not part of the iteration.
        """
        key = (with_set_up, number)
        site = self._known.get(key)
        if site is None:
            site = self._make(self._call_sites.sites[number], with_set_up)
            value = (site.name, site.frames, site.module_path, site.module_class, site.kept)
            site = self._known[key] = self._sites.setdefault(value, site)
        return site

    def stack(self, number: int) -> Stack:
        """Return the part of the stack at a site that is shown."""
        stack = self._stacks.get(number)
        if stack is None:
            stack = self._stacks[number] = self.scope.frames(self._call_sites.sites[number].stack)
        return stack

    def gap(self, stacks: tuple[Stack, Stack]) -> GapSite | None:
        """Return the lines between two operations with these stacks; see `gap_site`."""
        if stacks not in self._gaps:
            self._gaps[stacks] = gap_site(*stacks)
        return self._gaps[stacks]

    def _make(self, call: CallSite, with_set_up: bool) -> Site:
        func = call.func
        if isinstance(func, str):
            name, private = func, False
        else:
            name = self._names.name(func, call.caller.code, call.caller_at)
            private = self._names.is_private(func)
        stack = self.scope.frames(call.stack) or (call.stack if call.in_module else ())
        kept = self.scope.keeps(call, private=private)
        if is_placeholder(name, call.caller.code):
            kept = False
        if with_set_up and any(entry.code.co_name == "__init__" for entry in stack[::2]):
            kept = False
        return Site(
            name=name,
            frames=frames_of(stack),
            module_path=None if call.module is None else call.module.path,
            module_class=None if call.module is None else call.module.class_name,
            kept=kept,
        )
