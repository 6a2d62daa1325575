"""Decodes rocprofv3 recordings of AMD devices: rocpd databases and JSON."""

from unified_prof.decoders.rocm.recording import NAME, decode

__all__ = ["NAME", "decode"]
