"""Which files are the user's project."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from unified_prof.tracking.watch.cells import cell_name

_OWN_PACKAGE = Path(__file__).resolve().parents[2]
MODEL_CODE = (
    "transformers.models",
    "diffusers.models",
    "timm.models",
    "timm.layers",
    "torchvision.models",
)
"""Packages whose frames are kept unasked: the models of well-known libraries."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})


class Project:
    """Decides which files are the user's: below the root, but not installed there.

    A virtual environment or a `site-packages` folder inside the root is not the project, nor
    is the standard library or uprof itself. Symbolic links are followed on both sides. Files of
    included packages are shown as well, wherever they are installed.
    """

    def __init__(self, root: Path, include: Sequence[str] = MODEL_CODE) -> None:
        self._include = tuple(include)
        self._roots = tuple(dict.fromkeys((_absolute(root), root.resolve())))
        self._paths: dict[str, str | None] = {}
        self._environments: dict[Path, bool] = {}
        names = ("stdlib", "platstdlib")
        self._library = {Path(sysconfig.get_path(name)).resolve() for name in names}

    def relative_path(self, filename: str) -> str | None:
        """Return `filename` relative to the root with forward slashes, None if not the user's."""
        try:
            return self._paths[filename]
        except KeyError:
            path = self._paths[filename] = self._find(filename)
            return path

    def included_path(self, filename: str, module: object) -> str | None:
        """Return the path of an included file from the folder that holds its package.

        Args:
            filename: Of the file.
            module: The name under which it was imported, as its `__name__` has it.
        """
        if not isinstance(module, str):
            return None
        if not any(module == name or module.startswith(f"{name}.") for name in self._include):
            return None
        path = Path(filename)
        depth = module.count(".") + (2 if path.stem == "__init__" else 1)
        return "/".join(path.parts[-depth:])

    def _find(self, filename: str) -> str | None:
        if (cell := cell_name(filename)) is not None:
            return cell
        if filename.startswith("<"):
            return None
        for path in (_absolute(Path(filename)), Path(filename).resolve()):
            for root in self._roots:
                if path.is_relative_to(root) and self._is_users(path, root):
                    return path.relative_to(root).as_posix()
        return None

    def _is_users(self, path: Path, root: Path) -> bool:
        if path.resolve().is_relative_to(_OWN_PACKAGE):
            return False
        if any(
            path.is_relative_to(lib) and lib != root and lib.is_relative_to(root)
            for lib in self._library
        ):
            return False
        folders = [
            folder for folder in path.parents if folder != root and folder.is_relative_to(root)
        ]
        return not any(f.name in _INSTALLED or self._is_environment(f) for f in folders)

    def _is_environment(self, folder: Path) -> bool:
        known = self._environments.get(folder)
        if known is None:
            known = (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()
            self._environments[folder] = known
        return known


def _absolute(path: Path) -> Path:
    """Return `path` absolute and without `..`, its symbolic links as they are."""
    return Path(os.path.normpath(path.absolute()))
