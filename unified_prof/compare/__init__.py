"""Comparison of runs and verdicts with confidence, for tracked workloads and devices."""
