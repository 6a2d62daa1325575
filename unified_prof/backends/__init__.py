"""Run a workload under a profiler of one kind of device."""
