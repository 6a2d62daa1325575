"""Replace attributes of torch's for a while, and put every one back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Attributes replaced and their originals, restored in reverse order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`; descriptors of a class are kept as they were."""
        self._originals.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put back everything that was replaced."""
        while self._originals:
            setattr(*self._originals.pop())
