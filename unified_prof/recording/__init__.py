"""Compute totals, breakdowns and per-step figures from report files."""
