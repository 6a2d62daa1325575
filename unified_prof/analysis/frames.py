"""Source frames of host ranges: from recorded call chains, or from the Python ranges around them.

Only the user's own files count. A recording made elsewhere says no more about a file than its path,
so a file is foreign when it lies where installed packages or the standard library do.
"""

from __future__ import annotations

import posixpath
import re
import sys

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.source import Source
from unified_prof.analysis.tasks import Strings

_FRAME = re.compile(r"(?P<file>[^\n]+?\.(?:py|ipynb)[^\n()]*)\((?P<line>\d+)\)(?:: |$)")
# Installed packages and the standard library; profilers shorten the paths of those to what they are
# imported as, so torch may also stand at the beginning.
_FOREIGN = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*)/|^(?:torch|torch_npu)/|^<"
)


class Frames:
    """Stacks of `file:line`, outermost first, of the ranges of `framework.Framework`."""

    def __init__(
        self,
        source: Source,
        strings: Strings,
        *,
        chain: NDArray[np.int64],
        parent: NDArray[np.int64],
        python_names: list[str | None],
    ) -> None:
        self._chain = chain.tolist()
        self._parent = parent.tolist()
        self._chains = _callchains(source, strings)
        self._own = [None if name is None else _frame(name) for name in python_names]
        self._around: dict[int, tuple[str, ...]] = {}
        used = [frame for frames in self._chains.values() for frame in frames]
        used += [frame for frame in self._own if frame is not None]
        self.root = _common_folder({frame.rpartition(":")[0] for frame in used})
        """Folder that all absolute paths share; it is left out of the frames."""

    def stack(self, index: int) -> tuple[str, ...]:
        """Return the frames around a range, outermost first; empty where none is known."""
        frames = self._chains.get(self._chain[index]) or self._python_stack(index)
        return tuple(frame.removeprefix(self.root) for frame in frames)

    def _python_stack(self, index: int) -> tuple[str, ...]:
        path = []
        while index != -1 and index not in self._around:
            path.append(index)
            index = self._parent[index]
        stack = () if index == -1 else self._around[index]
        for one in reversed(path):
            frame = self._own[one]
            if frame is not None:
                stack = (*stack, frame)
            self._around[one] = stack
        return stack


def _callchains(source: Source, strings: Strings) -> dict[int, tuple[str, ...]]:
    """Return the user's frames of each recorded call chain, outermost first."""
    chains: dict[int, list[str]] = {}
    query = "SELECT id, stack FROM PYTORCH_CALLCHAINS ORDER BY id, stackDepth DESC"
    for number, stack in source.rows(query):
        text = strings.get(stack) if isinstance(stack, int) else stack
        frame = None if text is None else _frame(str(text))
        if frame is not None:
            chains.setdefault(number, []).append(frame)
    return {number: tuple(frames) for number, frames in chains.items()}


def _frame(text: str) -> str | None:
    """Return `file:line` of a frame such as `/home/me/train.py(12): step`, if it is the user's."""
    found = _FRAME.match(text)
    if found is None:
        return None
    file = found["file"].replace("\\", "/")
    top = posixpath.splitext(file.partition("/")[0])[0]
    if _FOREIGN.search(file) or (
        not file.startswith(("/", ".")) and top in sys.stdlib_module_names
    ):
        return None
    return f"{file}:{found['line']}"


def _common_folder(files: set[str]) -> str:
    absolute = [file for file in files if file.startswith("/")]
    if not absolute:
        return ""
    folder = posixpath.commonpath([posixpath.dirname(file) for file in absolute])
    return folder if folder.endswith("/") else f"{folder}/"
