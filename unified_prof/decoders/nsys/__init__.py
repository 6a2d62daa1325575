"""Decodes what `nsys export` makes of Nsight Systems recordings, as SQLite or Parquet tables.

Versions of nsys differ in tables and columns, and tables without rows are mostly left out. So
columns are asked for, never versions: what is not there is not known.
"""

from unified_prof.decoders.nsys.recording import NAME, decode

__all__ = ["NAME", "decode"]
