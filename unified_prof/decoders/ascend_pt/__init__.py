"""Decodes `*_ascend_pt` folders of torch_npu's profiler: FRAMEWORK/ together with PROF_*.

What PyTorch did on the host lies in FRAMEWORK/, what CANN and the devices did in PROF_*; either may
be missing. PROF_* is the business of `decoders.prof`; what it writes is watched on its way, so that
operators can be joined with what they launched.
"""
