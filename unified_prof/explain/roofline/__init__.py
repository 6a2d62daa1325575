"""Roofline: FLOPs and bytes of operations compared with the peaks of devices."""
