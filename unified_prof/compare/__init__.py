"""Two runs against each other: what changed, how sure that is, whether it may pass."""
