"""What became of the kernels under each operation."""

from __future__ import annotations

from dataclasses import dataclass

from unified_prof.analysis.compare.comparable import Kernels


@dataclass(frozen=True, slots=True)
class KernelChange:
    """What became of one kernel under the operations of one name."""

    operation: str
    name: str
    base_ns: float | None
    """None: it did not run there."""
    new_ns: float | None

    @property
    def delta_ns(self) -> float:
        """New time less base time."""
        return (self.new_ns or 0.0) - (self.base_ns or 0.0)


def kernel_changes(base: Kernels, new: Kernels) -> list[KernelChange]:
    """Put the kernels of both sides under each operation; another device has other kernels."""
    found: list[list[KernelChange]] = []
    for operation in base.keys() | new.keys():
        before, after = base.get(operation, {}), new.get(operation, {})
        changes = [
            KernelChange(operation, name, before.get(name), after.get(name))
            for name in before.keys() | after.keys()
        ]
        found.append(sorted(changes, key=lambda one: (-abs(one.delta_ns), one.name)))
    found.sort(key=lambda ones: (-abs(sum(one.delta_ns for one in ones)), ones[0].operation))
    return [change for changes in found for change in changes]
