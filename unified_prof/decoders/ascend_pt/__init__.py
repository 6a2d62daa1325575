"""Decodes `*_ascend_pt` directories of torch_npu's profiler: FRAMEWORK/ and PROF_*.

FRAMEWORK/ contains the records of PyTorch on the host, PROF_* those of CANN and the devices; either
may be missing. `decoders.prof` decodes PROF_*; `RecordingSink` keeps the rows that are joined with
operators.
"""
