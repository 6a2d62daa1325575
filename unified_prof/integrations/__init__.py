"""uprof inside other people's trainers: nobody has to rewrite a loop to measure it.

`lightning` and `transformers` have a module each, which imports its package; `traces` takes what
torch.profiler or torch_npu.profiler has just recorded; `pytest_uprof` is a plugin of pytest.
"""
