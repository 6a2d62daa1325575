"""Decodes `*_ascend_pt` directories of torch_npu's profiler: FRAMEWORK/ and PROF_*.

FRAMEWORK/ has the records of PyTorch on the host, PROF_* those of CANN and the devices; either may
be missing. `decoders.prof` decodes PROF_*; a sink in between keeps the rows that operators are
joined with.
"""
