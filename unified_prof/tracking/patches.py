"""Replace attributes of torch's for a while, and put every one back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Attributes replaced and their originals, restored in reverse order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`; descriptors of a class are kept as they were."""
        before = vars(owner).get(name, _INHERITED)
        setattr(owner, name, value)
        self._originals.append((owner, name, before))

    def restore(self) -> None:
        """Put back everything that was replaced."""
        while self._originals:
            owner, name, value = self._originals.pop()
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_INHERITED = object()
"""Stands for an attribute that the owner has from elsewhere."""
