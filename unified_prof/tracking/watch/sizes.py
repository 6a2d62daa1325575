"""Bytes that tensors hold, and the storages they hold them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unified_prof.tracking.torch_objects import sparse_parts


def plain_tensors(tensor: Any) -> Iterator[Any]:
    """Yield the tensors with memory of their own that make up `tensor`.

    A wrapper subclass is made of the tensors it names, a sparse tensor of indices and values.
    """
    import torch

    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None and type(tensor) is not torch.Tensor:
        for name in flatten()[0]:
            yield from plain_tensors(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from sparse_parts(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def tensor_bytes(tensor: Any) -> int:
    """Return the bytes of the elements of `tensor`, unrounded; views count only what they show."""
    return sum(part.numel() * part.element_size() for part in plain_tensors(tensor))


def storage_of(tensor: Any) -> Any | None:
    """Return the storage of a plain tensor, None where it has none that can be reached."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # opaque layouts, functorch wrappers
        return None
