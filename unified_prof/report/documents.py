"""Plain data as JSON text: one spelling for every command."""

from __future__ import annotations

import json


def dumped(document: object) -> str:
    """Return a document as JSON; a number that is not finite is a bug, not a NaN."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
