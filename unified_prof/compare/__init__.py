"""Comparison of runs, with confidence intervals and verdicts, for tracked workloads and devices."""
