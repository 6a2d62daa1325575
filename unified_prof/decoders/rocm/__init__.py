"""Decodes what rocprofv3 records of AMD devices: rocpd databases and its JSON."""

from unified_prof.decoders.rocm.recording import NAME, decode

__all__ = ["NAME", "decode"]
