"""What torch's modules, nodes, tensors and devices hold, under the names of every torch so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any


def parameters_of(module: Any) -> Mapping[str, Any]:
    """Return name -> parameter, or None, of what a module itself holds."""
    return _mapping(getattr(module, "_parameters", None))


def buffers_of(module: Any) -> Mapping[str, Any]:
    """Return name -> buffer, or None, of what a module itself holds."""
    return _mapping(getattr(module, "_buffers", None))


def children_of(module: Any) -> Mapping[str, Any] | None:
    """Return name -> module, or None, of what a module holds; None if it is not made yet."""
    found = vars(module).get("_modules")
    return None if found is None else _mapping(found)


def _mapping(found: Any) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        return found
    return dict(found.items()) if hasattr(found, "items") else {}  # as TorchScript's modules have


def leaf_of(node: Any) -> Any:
    """Return the tensor into whose `.grad` a node accumulates, None if it is no such node."""
    return getattr(node, "variable", None)


def sparse_parts(tensor: Any) -> Iterator[Any]:
    """Yield indices and values of a sparse tensor, coalesced or not."""
    yield from (tensor._indices(), tensor._values())


def accelerator_kind() -> str:
    """Return the type of torch's current accelerator, `cpu` where there is none."""
    import torch

    if hasattr(torch, "accelerator"):
        if torch.accelerator.is_available():
            return str(torch.accelerator.current_accelerator().type)
        return "cpu"
    with suppress(Exception):  # of torch 2.4 and 2.5; the CPU where there is none
        return str(torch._C._get_accelerator().type)
    return "cuda" if torch.cuda.is_available() else "cpu"
