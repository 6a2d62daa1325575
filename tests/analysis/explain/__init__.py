"""Tests of what follows from a recording."""
