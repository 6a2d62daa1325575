"""Utilities that do not depend on profiles: text, streams, signals, redaction, run records."""
