"""Decodes the Chrome traces that torch.profiler (Kineto) writes, of NVIDIA and AMD devices."""

from unified_prof.decoders.kineto.session import NAME, decode

__all__ = ["NAME", "decode"]
