"""Counters sampled on the device and on the host, one module for each kind of file."""
