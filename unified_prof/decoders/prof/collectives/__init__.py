"""Collective operators and their tasks, whoever ran them: the host, AI CPUs, DPUs, CCUs."""
