"""Instruments that see what torch does in an iteration, and leave it raw."""
