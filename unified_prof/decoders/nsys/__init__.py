"""Decodes exports of Nsight Systems recordings (SQLite or Parquet tables).

Tables and columns differ between versions of nsys, and empty tables are usually missing. The
decoder therefore checks for columns instead of versions; values of a missing column are unknown.
"""

from unified_prof.decoders.nsys.recording import NAME, decode

__all__ = ["NAME", "decode"]
