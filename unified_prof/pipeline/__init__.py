"""Whole jobs: from a recording or a workload to finished report files."""
