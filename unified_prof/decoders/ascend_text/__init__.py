"""Decodes text exports of torch_npu's profiler: trace_view.json and the CSV tables with it.

Intervals are read from the trace, details of kernels and memory from the tables. Operators are
joined with their launches by the same rules as in raw data. Tables that only summarize other tables
are not read.
"""
