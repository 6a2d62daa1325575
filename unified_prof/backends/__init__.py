"""Backends: run a workload under the profiler for one kind of device."""
