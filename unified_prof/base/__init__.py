"""Foundations without knowledge of profiles: text, streams, signals, redaction, run records."""
