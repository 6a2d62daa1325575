"""Comparison of device recordings."""
