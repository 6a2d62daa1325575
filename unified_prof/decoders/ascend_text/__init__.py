"""Decodes the text export of torch_npu's profiler: trace_view.json and the tables beside it.

Intervals come from the trace, descriptions of kernels and memory from the tables. Operators are
joined with their launches by the same rules as raw data. Tables that only summarize others are not
read.
"""
