"""Decodes Chrome traces of torch.profiler (Kineto) from NVIDIA and AMD devices and the CPU."""

from unified_prof.decoders.kineto.session import NAME, decode

__all__ = ["NAME", "decode"]
