"""How far from the hardware: FLOPs and bytes of operations against the peaks of devices."""
