"""What is written in a `with` block: all of it if the block ends well, nothing if it raises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType


class Block(ABC):
    """The end of such a block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._close()

    @abstractmethod
    def _finish(self) -> None:
        """Give what was written its name."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything, and remove what has no name."""
