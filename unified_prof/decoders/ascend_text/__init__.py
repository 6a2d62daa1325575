"""Decodes the text export of torch_npu's profiler: trace_view.json and the tables beside it.

It holds nearly all of what torch_npu's database does. Intervals come from the trace, descriptions
of kernels and memory from the tables; operators are joined with their launches by the rules that
hold for raw data. Tables that only sum up or cut these are not read.
"""
