"""Kinds of chips, by the `platform_version` of their info.json, that write their files alike.

0 is the 310, 1 the 910A, 4 the 310P, 5 the 910B, 7 the 310B, 15 and 16 the 950.
"""

from __future__ import annotations

HWTS_PLATFORMS = (1, 4)
"""Their hardware task scheduler logs tasks in files of its own, `hwts` and `aicore`."""

V6_PLATFORMS = (15, 16)
"""Task ids have 32 bits and are unique on the device; records of the device carry no stream."""

ONE_CORE_KIND_PLATFORMS = (7, 8, 11)
"""Cube and vector units share their cores."""

DEVICE_COLLECTIVE_PLATFORMS = (4, 5, 15, 16)
"""AI CPUs run collectives by themselves. Elsewhere the exporter does not read what they record."""
