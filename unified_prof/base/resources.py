"""Finds the data folders that travel with the package: schemas, migrations, examples."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Return the folder `name`, inside an installed package or at the top of a checkout.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"unified_prof is installed without its folder {name!r}")
