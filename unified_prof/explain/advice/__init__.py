"""Advice rules: each looks for one cause of lost time in a recording."""
