"""Advice rules; each detects one cause of lost time."""
