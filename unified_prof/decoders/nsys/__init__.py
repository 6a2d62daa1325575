"""Decodes exports of Nsight Systems recordings, SQLite or Parquet tables.

Versions of nsys differ in tables and columns, and mostly omit empty tables. So the decoder checks
for columns and not for versions: a missing column means unknown values.
"""

from unified_prof.decoders.nsys.recording import NAME, decode

__all__ = ["NAME", "decode"]
