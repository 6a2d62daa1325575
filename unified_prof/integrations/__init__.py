"""Callbacks for trainers, a pytest plugin, and notebook magics.

`lightning` and `transformers` import their package; `measurement` also has the `on_trace_ready`
handler of torch.profiler and torch_npu.profiler; `pytest_uprof` is the pytest plugin.
"""
