"""The test device works, and its times are exact to the nanosecond."""

import os
import time
import warnings
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.device import bench
from tests.device.on_bench.models import CASES

MS = 1_000_000


def event(device: str = "bench") -> torch.Event:
    return torch.Event(device, enable_timing=True)


def device_events(profiler: Any) -> list[Any]:
    found = profiler.profiler.kineto_results.events()
    return [one for one in found if one.device_type() == torch.autograd.DeviceType.PrivateUse1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["bench:0", "bench:1"])
def test_models_have_the_same_losses_as_on_the_cpu(name: str, device: str) -> None:
    assert CASES[name].losses(device) == CASES[name].losses("cpu")


def test_training_has_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CASES["mlp"].losses("bench")


def test_kernel_takes_its_set_duration() -> None:
    start, end = event(), event()
    bench.launch("ahead", 500 * MS)  # the host may lose its processor for some time
    start.record()
    bench.launch("long", 3 * MS)
    before_end = end.query()
    end.record()
    assert before_end  # nothing was recorded yet
    assert not end.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    torch.accelerator.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == pytest.approx(3, abs=1e-9)


def test_kernels_of_a_stream_run_one_after_another() -> None:
    bench.launch("ahead", 500 * MS)
    start, end = event(), event()
    start.record()
    for _ in range(100):
        bench.launch("short", 3_000)
    end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) == pytest.approx(0.3, abs=1e-9)


def test_synchronization_waits_for_the_kernel() -> None:
    began = time.perf_counter()
    bench.launch("long", 500 * MS)
    assert time.perf_counter() - began < 0.5
    torch.accelerator.synchronize()
    assert time.perf_counter() - began >= 0.5


def test_streams_run_in_parallel_and_wait_for_events() -> None:
    side = torch.Stream(device="bench")
    starts, ends = [event(), event()], [event(), event()]
    starts[0].record()
    bench.launch("long", 500 * MS)
    ends[0].record()
    with side:
        bench.launch("short", MS)
        ends[1].record()
    ends[1].synchronize()
    assert not ends[0].query()
    side.wait_event(ends[0])
    with side:
        bench.launch("after", MS)
        after = event()
        after.record()
    torch.accelerator.synchronize()
    assert ends[0].elapsed_time(after) >= 1.0


def test_events_of_different_devices_cannot_be_compared() -> None:
    one, other = event("bench:0"), event("bench:1")
    one.record()
    other.record(torch.accelerator.current_stream(1))
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    with pytest.raises(RuntimeError):
        one.elapsed_time(other)
    with pytest.raises(RuntimeError):
        other.record(torch.accelerator.current_stream(0))


def test_captured_graph_runs_when_replayed() -> None:
    x = torch.ones(4, device="bench")
    torch.accelerator.synchronize()
    graph = bench.Graph()
    captured = event()
    with graph:
        assert torch.bench.is_current_stream_capturing()
        x + 1
        captured.record()
        with pytest.raises(RuntimeError, match="stream is capturing"):
            captured.query()
        with pytest.raises(RuntimeError, match="stream is capturing"):
            torch.accelerator.synchronize()
    assert graph.names == ["add", "event"]
    assert torch.accelerator.current_stream().query()  # nothing ran
    start, end = event(), event()
    bench.launch("ahead", 500 * MS)
    start.record()
    graph.replay()
    end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) == pytest.approx(0.01, abs=1e-9)


def test_kernel_error_is_raised_at_synchronization() -> None:
    x = torch.ones(4, device="bench")
    torch.ops.bench.failing(x, 500 * MS, "index out of bounds")
    x + 1  # the kernel fails later
    with pytest.raises(RuntimeError, match="index out of bounds"):
        torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match="index out of bounds"):
        x + 1
    bench.recover()
    x + 1


def test_memory_is_cached_and_counted() -> None:
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(3 * 2**20, dtype=torch.uint8, device="bench")
    assert torch.accelerator.memory_allocated() - before == 3 * 2**20
    reserved = torch.accelerator.memory_reserved()
    assert reserved >= before + 20 * 2**20
    address = x.data_ptr()
    del x
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() - before == 3 * 2**20
    assert torch.accelerator.memory_reserved() == reserved
    assert torch.empty(2**21, dtype=torch.uint8, device="bench").data_ptr() == address


def test_cache_is_emptied_before_out_of_memory_is_raised() -> None:
    bench.set_capacity(64 * 2**20)
    try:
        before = torch.accelerator.memory_stats()
        x = torch.empty(40 * 2**20, dtype=torch.uint8, device="bench")
        del x
        torch.empty(50 * 2**20, dtype=torch.uint8, device="bench")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 * 2**20, dtype=torch.uint8, device="bench")
        after = torch.accelerator.memory_stats()
    finally:
        bench.set_capacity(2**30)
    assert after["num_alloc_retries"] - before["num_alloc_retries"] == 2
    assert after["num_ooms"] - before["num_ooms"] == 1


def test_profiler_links_calls_kernels_and_copies() -> None:
    bench.set_duration(3 * MS, "addmm")
    model, x = torch.nn.Linear(8, 8).to("bench"), torch.ones(4, 8, device="bench")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        model(x).sum().backward()
        x.cpu()
    events = profiler.profiler.kineto_results.events()
    calls = {e.correlation_id(): e for e in events if e.name() == "benchLaunchKernel"}
    kernels = {e.name(): e for e in device_events(profiler)}
    assert kernels["addmm"].duration_ns() == 3 * MS
    assert {"addmm", "sum", "mm", "Memcpy DtoH"} <= {*kernels}
    for name in ("addmm", "sum", "mm"):
        call = calls[kernels[name].correlation_id()]
        assert call.start_ns() <= kernels[name].start_ns()
    operators = {e.correlation_id(): e.name() for e in events if e.name().startswith("aten::")}
    assert operators[kernels["addmm"].linked_correlation_id()] == "aten::addmm"
    assert operators[kernels["mm"].linked_correlation_id()] == "aten::mm"


def test_profiler_can_lose_records() -> None:
    x = torch.ones(4, device="bench")
    bench.lose_kernels(0.5)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        for _ in range(10):
            x + 1
    assert len(device_events(profiler)) == 5


def test_cpu_profile_has_no_kernels() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(4, device="bench") + 1
    assert not device_events(profiler)


def test_forked_child_cannot_use_an_initialized_device() -> None:
    torch.ones(1, device="bench")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        message = "no error"
        try:
            torch.ones(1, device="bench")
        except RuntimeError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"Cannot re-initialize bench in forked subprocess" in os.read(read, 1000)
    os.close(read)
    os.close(write)
