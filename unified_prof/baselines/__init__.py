"""Baselines: named, versioned runs to compare later runs with."""
