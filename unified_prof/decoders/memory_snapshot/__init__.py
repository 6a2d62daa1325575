"""Decodes snapshots of PyTorch's caching allocator: `torch.cuda.memory._dump_snapshot()`."""

from unified_prof.decoders.memory_snapshot.snapshot import NAME, DecodedSnapshot, decode

__all__ = ["NAME", "DecodedSnapshot", "decode"]
