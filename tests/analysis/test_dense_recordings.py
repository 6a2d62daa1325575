"""Every figure of random recordings whose times are multiples of 10 us, so that bounds touch."""

from pathlib import Path
from random import Random

import pytest

from tests.analysis.advice.faulty_runs import FaultyRun
from tests.compared import diff_recordings, open_analyses
from tests.results import same
from unified_prof.errors import UsageError
from unified_prof.explain.report_questions import Change

UNIT = 10_000
GAPS = (0, 0, 0, 1, 1, 2, 5, 40, 120)
KERNELS = (
    *(("ampere_bf16_gemm", "aten::mm"), ("elementwise_mul", "aten::mul")),
    *(("elementwise_mul", "aten::mul"), ("copy_kernel", "aten::to"), ("softmax_fwd", "Softmax")),
    *(("layer_norm_kernel", "aten::layer_norm"), ("fill_zero", "aten::zero_")),
    *(("reduce_sum", "aten::sum"), ("adam_multi_tensor", "aten::_foreach_add_")),
)
CALLS = (
    *("cudaStreamSynchronize", "cudaMalloc", "cudaEventRecord", "cudaStreamWaitEvent"),
    *("cudaDeviceSynchronize", "cudaMemcpy"),
)
INPUTS = (
    ("1024,64;64,1024", "c10::BFloat16;c10::BFloat16"),
    ("256;256", "float;float"),
    ("0;1", "c10::Half;c10::Half"),
)
FRAMES = ("/w/train.py(3): run", "/w/net.py(9): f", "torch/nn/functional.py(1): g")
ENGINE = "autograd::engine::evaluate_function: "


class DenseRun(FaultyRun):
    """Writes a random recording."""

    def fill(self, random: Random, vendor: str) -> None:
        """Write steps of operations, each on the thread that is free, and what they launch."""
        self.random, self.vendor = random, vendor
        self.free = dict.fromkeys((2, 7), 0)  # End of the last task of each stream.
        at = 0
        for step in range(random.choice((0, 1, 3, 4))):
            begin = at
            for number in range(random.randrange(4, 14)):
                at += random.choice(GAPS)
                at = self.part(at, number)
            at = max(at, *self.free.values()) if random.random() < 0.3 else at
            end = at + random.choice(GAPS)
            self.step(step, begin * UNIT, end * UNIT)
            if random.random() < 0.8:
                self.call(begin * UNIT, end * UNIT, f"ProfilerStep#{step}")
            self.memory(begin * UNIT, "PTA", random.choice((0, 1, 1, 3)) << 28)
            at = end + random.choice((0, 0, 0, 3))
        for number in range(random.choice((0, 6, 60))):
            at = self.part(at + random.choice(GAPS), number)

    def part(self, at: int, number: int) -> int:
        """Write an operation with what it calls, and return its end."""
        random = self.random
        kind, thread = random.choice("oooooosscgbwm"), 2 if random.random() < 0.2 else 1
        end = at + random.choice((0, 1, 1, 2, 3))
        if kind == "g":
            self.row("GC_RECORD", startNs=at * UNIT, endNs=end * UNIT, globalTid=thread)
        elif kind == "w":
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            self.call(at * UNIT, end * UNIT, name, thread=1)
        elif kind == "m":
            text = self.text(random.choice(("forward", "loss", "batch")))
            row = {"globalTid": thread, "domainId": self.text("default"), "eventType": 2}
            row |= {"startNs": at * UNIT, "endNs": (end + 2) * UNIT, "message": text}
            self.row("MSTX_EVENTS", **row)
        elif kind == "c":
            start = max(at, self.free[7])
            done = start + random.choice((0, 1, 4))
            size = random.choice((0, 64, 1 << 20))
            connection = self.api(at * UNIT, end * UNIT, "cudaMemcpyAsync", thread=thread)
            times = start * UNIT, done * UNIT
            self.task(*times, "MEMCPY_ASYNC", stream=7, connection=connection, copy=size)
            self.free[7] = done
        elif kind == "b":
            start = max(at, self.free[2])
            name = random.choice(("allReduce", "allGather"))
            times = start * UNIT, (start + 2) * UNIT
            self.collective(*times, f"hcom_{name}__{number}", f"hcom_{name}_", group="0")
        elif kind == "s":
            done = max(end, *self.free.values()) if random.random() < 0.6 else end
            self.api(at * UNIT, done * UNIT, random.choice(CALLS), thread=thread)
            return done
        else:
            self.operation(at, end, thread, number)
        return end

    def operation(self, at: int, end: int, thread: int, number: int) -> None:
        """Write an operation, sometimes within others, that launches a kernel."""
        random = self.random
        kernel, name = random.choice(KERNELS)
        connection = self.api(at * UNIT, end * UNIT, "cudaLaunchKernel", thread=thread)
        if random.random() < 0.3:
            self.call(at * UNIT, end * UNIT, "nn.Module: Net_0", kind=50003, thread=thread)
        if random.random() < 0.3:
            frame = self.text(random.choice(FRAMES))
            row = {"startNs": at * UNIT, "endNs": end * UNIT, "globalTid": thread, "name": frame}
            self.row("UPROF_PYTHON_FRAMES", **row)
        options = {"sequence": number, "thread": thread, "chain": random.choice((-1, 1, 2))}
        if thread == 2:
            self.call(at * UNIT, end * UNIT, f"{ENGINE}MulBackward0", thread=2)
            options |= {"forward_thread": 1, "chain": -1}
        inputs = random.choice(INPUTS)
        self.call(at * UNIT, end * UNIT, name, launches=connection, inputs=inputs, **options)
        stream = random.choice((2, 2, 2, 7))
        start = max(self.free[stream], at + random.choice((0, 0, 1, 3)))
        self.free[stream] = start + random.choice((0, 1, 1, 2, 4))
        times = start * UNIT, self.free[stream] * UNIT
        task = self.task(*times, connection=connection, kernel=(kernel, kernel), stream=stream)
        if self.vendor == "GPU":
            texts = {"name": self.text(kernel), "operation": self.text(name)}
            sizes = {"gridDim": 0, "blockDim": 0, "blocksPerSm": random.choice((0.5, 1.0, 2.0))}
            self.row("UPROF_GPU_TASKS", globalTaskId=task, **texts, **sizes)


def write(path: Path, seed: int) -> Path:
    """Write a random recording."""
    random = Random(seed)
    with DenseRun(path) as run:
        run.chain(1, *FRAMES[1::-1])
        run.chain(2, FRAMES[2], FRAMES[0])
        vendor = random.choice(("GPU", "NPU"))
        run.row("NPU_INFO", id=0, name="NVIDIA H100" if vendor == "GPU" else "Ascend910B")
        run.fill(random, vendor)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_all_figures_of_a_dense_recording_are_as_before(tmp_path: Path, seed: int) -> None:
    path = write(tmp_path / "a.db", seed)
    with open_analyses(path) as (analysis,):
        for name in analysis.summary.available:
            analysis.breakdown(name)
        for name in ("steps", "why_idle", "advice", "path_track", "launch_latency"):
            getattr(analysis, name)()
        for name in ("groups", "kernels_of_operations", "gaps", "tracks", "memory_series"):
            getattr(analysis, name)()
        timeline = analysis.timeline(20)
        analysis.host_threads(timeline, 20)
        analysis.idle_lanes(20)
        for measure in analysis.measures:
            analysis.stacks(measure)
        try:
            analysis.what_if([])
            for name in ("kernel", "communication", "copy", "host", "input", "synchronizing"):
                analysis.what_if([Change(name, 2.0)])
        except UsageError as error:
            same(str(error))


@pytest.mark.parametrize("seed", range(12, 18))
def test_difference_of_dense_recordings_is_as_before(tmp_path: Path, seed: int) -> None:
    base, new = write(tmp_path / "a.db", seed), write(tmp_path / "b.db", seed + 100)
    difference = diff_recordings([base], [new])
    assert difference is None or difference.base.leaves
