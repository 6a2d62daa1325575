"""Syntax trees of the package, parsed once for all tests that use them."""

import ast
import gc
from functools import cache
from pathlib import Path

from tests.conftest import ROOT


@cache
def trees(folder: str) -> dict[Path, ast.Module]:
    """Return the tree of every module in a directory of the repository."""
    collects = gc.isenabled()
    gc.disable()  # triples the parsing time
    try:
        return {
            path: ast.parse(path.read_bytes()) for path in sorted((ROOT / folder).rglob("*.py"))
        }
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@cache
def nodes(folder: str) -> dict[Path, tuple[ast.AST, ...]]:
    """Return all nodes of every module in a directory of the repository."""
    return {path: tuple(ast.walk(tree)) for path, tree in trees(folder).items()}
