"""Steps of healthy programs, and the settings that faults change.

Kernel times follow from FLOPs and bytes at the rates that an H100 reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from tests.simulated.machine import AUTOGRAD, COMPUTE, NCCL, PREFETCH, TABLES, Launch, Machine

TFLOPS = {"bf16": 700.0, "fp32": 52.0, "fp64": 47.0}  # Rates of large matrix products.
GBPS = 2900.0  # Rate of element-wise kernels.
BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
C_TYPES = {"bf16": "c10::BFloat16", "fp32": "float", "fp64": "double"}
RANKS, CONTEXT, HEAD = 8, 1024, 128  # Ranks, length of sequences, width of attention heads.
LINEAR, COPY = "aten::linear > aten::mm", "aten::to > aten::_to_copy > aten::copy_"
KERNELS, CHAINS = TABLES["kernels"], TABLES["chains"]


@dataclass(frozen=True)
class Model:
    """A program; the defaults are healthy."""

    kind: str = "attention"  # or "mlp", "conv"
    layers: int = 6
    width: int = 2048
    tokens: int = 8192  # or pixels
    vocabulary: int = 50304
    training: bool = True
    dtype: str = "bf16"
    flash: bool = True
    fused_activation: bool = True
    optimizer: str = "fused"  # or "foreach", "loop", ""
    norm: str = ""  # A chain that replaces the kernel of a norm.
    extra: str = ""  # A chain in each layer.
    logits: str = ""  # A chain before the loss, which then has its type.
    casts: int = 0  # Per layer.
    transposes: int = 0
    pieces: int = 1  # Slices into which a layer is cut.
    input_bytes: int = 1 << 16
    input_copy: str = "prefetched"  # or "pinned", "pageable"
    input_host_us: float = 0.0  # Time of the main process for a batch; 0: worker processes.
    reduction: str = ""  # "overlapped", "at end", "per tensor at end"
    bus_gbps: float = 330.0  # Rate of large all-reduces.
    pipeline: int = 0  # Microbatches of the last of two stages.
    graph: bool = False
    python_us: float = 0.0  # Time of the program itself at the start of a step.
    output_bytes: int = 0  # Copied to the host at the end of a step.
    lookup: str = ""  # "select" or "index": rows of a table that a layer adds.
    zeroes_gradients: bool = False  # zero_grad(set_to_none=False)
    average: str = ""  # "foreach", or "loop": moving averages of the parameters.
    samples: int = 0  # Positions whose next token is chosen.
    logits_of_all: bool = True  # Logits of all positions, not only of these.
    adapter: str = ""  # Low-rank adapter: "x (A B)" or "(x A) B".
    checkpoint: str = ""  # Layers are computed again: within "CheckpointFunction", or "hook".
    masks: str = ""  # A chain at the start of the step.

    @property
    def parameters(self) -> int:
        """Parameters of a layer."""
        return {"attention": 12, "mlp": 1, "conv": 9}[self.kind] * self.width**2

    @property
    def tensors(self) -> int:
        """Tensors of parameters."""
        return self.layers * (12 if self.kind == "attention" else 2)

    def per_tensor(self, names: Mapping[str, float], dtype: str = "fp32") -> list[Op]:
        """Return operations for each tensor of parameters."""
        size = self.parameters * self.layers / self.tensors
        shaped = [size * (1.5 - number % 2) for number in range(self.tensors)]
        return [pointwise(name, size, dtype, n) for size in shaped for name, n in names.items()]


class Op(NamedTuple):
    """An operation with one kernel."""

    path: str  # Names from the outermost to the innermost operation.
    kernel: str
    elements: float  # Of all tensors that the kernel reads and writes.
    dims: tuple[tuple[int, ...], ...]
    dtype: str
    flops: float = 0.0
    rate: float = 1.0  # Share of the usual rate.
    constant: bool = False  # Its inputs need no gradients.

    @property
    def name(self) -> str:
        """Name of the innermost operation."""
        return self.path.split(" > ")[-1]

    def launch(self) -> Launch:
        """Return the kernel."""
        us = self.elements * BYTES[self.dtype] / GBPS / 1e3
        us = max(us, self.flops / TFLOPS[self.dtype] / 1e6) / self.rate + 1.6
        return Launch(self.kernel, us, max(1, int(self.elements / (8192 if self.flops else 1024))))

    def run(self, machine: Machine, key: str = "") -> None:
        """Run the operation; `key` connects it with its backward pass."""
        scalars = TABLES["scalars"].get(self.name, [])
        dims = [[*d] for d in self.dims] + [[] for _ in scalars]
        types = [C_TYPES[self.dtype]] * len(self.dims)
        if self.path == COPY:  # From bf16 to fp32, or back.
            types, dims = ["float", "c10::BFloat16"], dims * 2
        types += ["ScalarList" if "[" in one else "Scalar" for one in scalars]
        details = {"Input Dims": dims, "Input type": types}
        details["Input Strides"] = [[prod(d[i + 1 :]) for i in range(len(d))] for d in dims]
        details["Concrete Inputs"] = [""] * len(self.dims) + scalars
        with machine.range(self.path, "cpu_op", details, key):
            machine.launch(self.launch())

    def gradients(self) -> list[Op]:
        """Return the operations of the backward pass."""
        name = self.name
        if name in TABLES["no gradients"] or self.constant:
            return []
        if "mm" in name:  # A product of 2 or 3 dimensions.
            (*batch, m, k), (*_, n) = self.dims
            pairs = (((*batch, k, m), (*batch, m, n)), ((*batch, m, n), (*batch, n, k)))
            return [self._replace(path=name, dims=dims) for dims in pairs]
        if "conv" in name:
            back = self._replace(path="aten::convolution_backward", dims=(self.dims[0], *self.dims))
            return [back._replace(kernel=self.kernel.replace("fprop", "dgrad"))] * 2
        if name in ("aten::copy_", "aten::add"):
            return [self] * (name == "aten::copy_")
        if name in TABLES["scatters"]:
            path, *kernels = TABLES["scatters"][name]
            return [self._replace(path=path, kernel=one, rate=rate) for one, rate in kernels]
        kernel = self.kernel.replace("fwd", "bwd")
        back = self._replace(path=f"{name.removesuffix('_forward')}_backward", kernel=kernel)
        return [back._replace(elements=1.5 * self.elements, flops=2.5 * self.flops)]


def product(path: str, left: tuple[int, ...], columns: int, dtype: str) -> Op:
    """Return a matrix product."""
    *batch, rows, inner = left
    misaligned = dtype == "bf16" and (columns % 8 or inner % 8)
    kernel, rate = KERNELS["misaligned" if misaligned else dtype]
    size = prod(batch) * (rows * inner + inner * columns + rows * columns)
    dims = (left, (*batch, inner, columns))
    return Op(path, kernel, size, dims, dtype, 2.0 * prod(left) * columns, rate)


def pointwise(path: str, size: float, dtype: str, tensors: float = 2, kernel: str = "") -> Op:
    """Return a memory-bound operation on `tensors` tensors of `size` elements."""
    functor = f"at::native::BinaryFunctor<{C_TYPES[dtype]}>, std::array<char*>"
    kernel = kernel or f"at::native::vectorized_elementwise_kernel<4, {functor}>"
    dims = ((max(1, int(size) // 1024), 1024),) * max(1, int(tensors) - 1)
    return Op(path, f"void {kernel}", tensors * size, dims, dtype)


def attention(model: Model, tokens: int) -> list[Op]:
    """Return attention: one kernel, or matmul, scaling, softmax and matmul."""
    width, dtype, batch = model.width, model.dtype, max(1, tokens // CONTEXT)
    heads, flops = width // HEAD, 2.0 * tokens * CONTEXT * width  # Causal.
    if model.flash:
        path = "aten::scaled_dot_product_attention > aten::_flash_attention_forward"
        dims = ((batch, heads, CONTEXT, HEAD),) * 3
        return [Op(path, KERNELS["flash"], 4.0 * tokens * width, dims, dtype, flops, 0.6)]
    scores, path = float(tokens * CONTEXT * heads), "aten::softmax > aten::_softmax"
    matmul, rows = "aten::matmul > aten::bmm", (batch * heads, CONTEXT)
    return [
        product(matmul, (*rows, HEAD), CONTEXT, dtype),
        pointwise("aten::div", scores, dtype),
        pointwise(path, scores, dtype, 2, f"softmax_warp_fwd<{C_TYPES[dtype]}>"),
        product(matmul, (*rows, CONTEXT), HEAD, dtype),
    ]


def operations(model: Model, t: int) -> list[Op]:
    """Return the operations of a layer on `t` tokens, without casts and copies."""
    w, d = model.width, model.dtype
    size = float(t * w)
    relu = pointwise("aten::relu", size, d)
    if model.kind == "mlp":
        return [product(LINEAR, (t, w), w, d), relu]
    if model.kind == "conv":
        path = "aten::conv2d > aten::convolution > aten::cudnn_convolution"
        dims = (t // 784, w, 28, 28), (w, w, 3, 3)
        conv = Op(path, KERNELS[f"conv {d}"], 2 * size, dims, d, 18.0 * size * w)
        path, kernel = "aten::batch_norm > aten::cudnn_batch_norm", "cudnn::bn_fwd_tr_1C11_NHWC"
        return [conv, pointwise(path, size, d, 2, kernel), relu]
    path, kernel = "aten::layer_norm > aten::native_layer_norm", "vectorized_layer_norm_kernel"
    norm, add = pointwise(path, size, d, 2, kernel), pointwise("aten::add", size, d, 3)
    into, out = product(LINEAR, (t, w), 4 * w, d), product(LINEAR, (t, 4 * w), w, d)
    qkv, project = product(LINEAR, (t, w), 3 * w, d), product(LINEAR, (t, w), w, d)
    norms = chain(model, model.norm, t) if model.norm else [norm]
    names = ["gelu"] if model.fused_activation else CHAINS["gelu"]
    gelu = [pointwise(f"aten::{name}", 4 * size, d) for name in names]
    added, attended = chain(model, model.extra, t), attention(model, t)
    return [*norms, qkv, *added, *attended, project, add, *norms, into, *gelu, out, add]


def chain(model: Model, name: str, t: int) -> list[Op]:
    """Return the operations of a chain in the table, on tensors of a unit of the model."""
    scores = t * CONTEXT
    units = {"hidden": t * model.width, "logits": t * model.vocabulary, "scores": scores}
    units |= {
        "mask": CONTEXT**2,
        "rows": t,
        "cache": 256 * t * model.width,
        "weight": 1 << 22,
        "check": 1 << 26,
        "square": 1 << 27,
    }
    return [
        pointwise(path, float(units[unit]), dtype, tensors, kernel)._replace(
            constant=name.endswith("mask")
        )
        for path, unit, dtype, tensors, kernel in CHAINS.get(name, [])
    ]


def layer(model: Model) -> Iterator[Op]:
    """Return the operations of a layer."""
    tokens = model.tokens // model.pieces
    size, kernel = float(tokens * model.width), "at::native::elementwise_kernel<128, 4, copy>"
    if model.adapter:
        w, d = model.width, model.dtype
        sizes = [((tokens, w), 16), ((tokens, 16), w)]
        if model.adapter == "x (A B)":
            sizes = [((w, 16), w), ((tokens, w), w)]
        yield from [product("aten::matmul > aten::mm", left, columns, d) for left, columns in sizes]
        yield pointwise("aten::add", size, d, 3)
    moved = pointwise("aten::contiguous > aten::clone > aten::copy_", size, model.dtype, 2, kernel)
    if model.lookup:
        path = {"select": "aten::index_select", "index": "aten::index"}[model.lookup]
        yield pointwise(
            path, size, model.dtype, 2, "at::native::vectorized_gather_kernel<16, long>"
        )
    for number, op in enumerate(operations(model, tokens) * model.pieces):
        yield op
        yield from [pointwise(COPY, size, "fp32", 1.5, kernel)] * (number < model.casts)
        yield from [moved._replace(rate=0.4)] * (number < model.transposes)


def to_host(machine: Machine, size_bytes: int, memory: str, path: str) -> None:
    """Copy to the host and wait."""
    with machine.range(path):
        machine.copy("DtoH", size_bytes, memory)
        machine.call("cudaStreamSynchronize", waits=COMPUTE)


def reduce(machine: Machine, model: Model, number: int) -> None:
    """Start the collectives for the gradients of a layer."""
    count = 48 if "per tensor" in model.reduction else 1
    size = model.parameters // count
    us = 4 * size * (RANKS - 1) / RANKS / model.bus_gbps / 1e3 + 14.0
    details = {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size}
    details |= {"Group size": RANKS, "dtype": "BFloat16", "Process Group Name": "0"}
    details |= {"Process Group Ranks": str([*range(RANKS)])}
    path = "c10d::allreduce_ > record_param_comms"
    for _ in range(count):
        with (
            machine.range(path, "cpu_op", details),
            machine.range("nccl:all_reduce", "user_annotation"),
        ):
            machine.record("gradients", COMPUTE)
            machine.wait("gradients", NCCL)
            machine.launch(Launch(KERNELS["all-reduce"], us, 24, NCCL, details))
            machine.record("reduced", NCCL)


def fetch(machine: Machine, model: Model) -> None:
    """Wait for a batch and copy it to the device."""
    prefetched, pageable = model.input_copy == "prefetched", model.input_copy == "pageable"
    if prefetched:  # The batch of this step was copied during the last one.
        machine.wait("batch", COMPUTE)
    kind = "_SingleProcess" if model.input_host_us else "_MultiProcessing"
    name = f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__"
    frame = "torch/utils/data/dataloader.py(720): __next__"
    with machine.range(name, "user_annotation"), machine.range(frame, "python_function"):
        machine.fetch(model.input_host_us)
    with machine.range(COPY):
        stream, memory = PREFETCH if prefetched else COMPUTE, "Pageable" if pageable else "Pinned"
        machine.copy("HtoD", model.input_bytes, memory, stream)
        if pageable:
            machine.call("cudaStreamSynchronize", waits=COMPUTE)
    if prefetched:
        machine.record("batch", PREFETCH)


def optimize(machine: Machine, model: Model) -> None:
    """Run the optimizer's step."""
    head = model.vocabulary * model.width * (model.kind == "attention")
    size = float(model.parameters * model.layers + head)
    rule, _, how = model.optimizer.rpartition(" ")
    passes = {"": 7, "sgd": 5, "lion": 5}[rule]  # Tensors that one kernel reads or writes.
    ops = [pointwise("aten::_fused_adamw_", size / 4, "fp32", passes, KERNELS["adam"])] * 4
    if how != "fused":
        is_loop = how == "loop"
        tensors = model.tensors if is_loop else 4
        kernel, prefix = ("", "") if is_loop else (KERNELS["foreach"], "_foreach_")
        ops = [
            pointwise(f"aten::{prefix}{name}", size / tensors, "fp32", n, kernel)
            for name, n in CHAINS[rule or "adam"]
        ] * tensors
    with machine.range(f"Optimizer.step#{rule.title() or 'AdamW'}.step", "user_annotation"):
        for op in ops:
            machine.work(1.5)
            op.run(machine)


def average(machine: Machine, model: Model) -> None:
    """Update the moving averages of the parameters."""
    ops = model.per_tensor({"aten::mul_": 2.0, "aten::add_": 3.0})
    if model.average == "foreach":
        size = sum(op.elements for op in ops) / 5
        chain = [("mul_", 2.0), ("add_", 3.0)]
        ops = [
            pointwise(f"aten::_foreach_{name}", size / 4, "fp32", n, KERNELS["foreach"])
            for name, n in chain
            for _ in range(4)
        ]
    for op in ops if model.average else []:
        op.run(machine)


def perform(machine: Machine, name: str) -> None:
    """Make the calls of a name in the table."""
    for one in TABLES["calls"].get(name, []):
        match one:
            case str():
                perform(machine, one)
            case ["read", *args]:
                to_host(machine, *args)
            case ["pause", us, category, path]:
                with machine.range(path, category):
                    machine.thread.now += us
            case ["idle", us]:
                machine.thread.now += us
            case ["within", category, path, times, calls]:
                with machine.range(path, category):
                    for _ in range(times):
                        perform(machine, calls)
            case ["kernels", name]:
                for op in chain(Model(), name, 8192):
                    op.run(machine)
            case ["on_thread", thread, calls]:
                with machine.on_thread(thread, join=False):
                    perform(machine, calls)
            case ["validate", name]:
                with machine.range(name, "user_annotation"):
                    for op in [*layer(Model())] * 4:
                        op.run(machine)
            case [method, *args]:
                getattr(machine, method)(*args)


def run_step(machine: Machine, model: Model, added: Mapping[str, str]) -> None:
    """Run a step; `added` has calls for start, layer, middle, loss and end."""
    perform(machine, added.get("start", ""))
    with machine.range("train.py(61): prepare", "python_function"):
        machine.thread.now += model.python_us
    fetch(machine, model)
    if model.pipeline:
        pipeline(machine, model)
        optimize(machine, model)
        return
    for op in chain(model, model.masks, model.tokens):
        op.run(machine)
    groups = [[*layer(model)] for _ in range(model.layers)]
    if model.kind == "attention":
        t, v = model.tokens, model.vocabulary
        path = "aten::cross_entropy_loss > aten::log_softmax > aten::_log_softmax"
        dtype = "fp32" if model.logits else model.dtype
        loss = pointwise(path, float(t * v), dtype, 2, "at::native::cunn_SoftMax_fwd")
        logits = [product(LINEAR, (t, model.width), v, model.dtype), *chain(model, model.logits, t)]
        if model.samples:
            rows = t if model.logits_of_all else model.samples
            kernel = "at::native::reduce_kernel<512, 1, at::native::ReduceOp<ArgMaxOps<float>>>"
            chosen = pointwise("aten::argmax", float(model.samples * v), model.dtype, 1, kernel)
            chosen = chosen._replace(dims=((model.samples, v),))
            logits = [product(LINEAR, (rows, model.width), v, model.dtype), chosen]
        groups.append([*logits, loss] if model.training else logits)
    if model.graph:
        with machine.range("torch/cuda/graphs.py(149): replay", "python_function"):
            machine.launch(*[op.launch() for ops in groups for op in ops], call="cudaGraphLaunch")
        groups = [[]]
    for number, ops in enumerate(groups):
        with machine.range(f"nn.Module: Block_{number}", "python_function"):
            machine.work(15.0)
            for index, op in enumerate(ops):
                op.run(machine, f"{number}.{index}")
        perform(machine, added.get("layer", ""))
        perform(machine, added.get("middle" if number == len(groups) // 2 else "", ""))
    perform(machine, added.get("loss", ""))
    if model.training:
        with machine.range("torch/_tensor.py(566): backward", "python_function"):
            backward(machine, model, groups)
        for number in range(model.layers * model.reduction.endswith("at end")):
            reduce(machine, model, number)
        if model.reduction:
            machine.wait("reduced", COMPUTE)
        if model.optimizer:
            optimize(machine, model)
        with machine.range("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
            machine.work(60.0)
            fill = {"aten::zero_ > aten::fill_": 1.0}
            for op in model.per_tensor(fill) if model.zeroes_gradients else []:
                op.run(machine)
        average(machine, model)
    if model.output_bytes:
        to_host(machine, model.output_bytes, "Pageable", COPY)
    perform(machine, added.get("end", ""))


def exchange(machine: Machine, model: Model, name: str, until: float = 0.0) -> float:
    """Send to the stage before this one, or receive, and return when this ends."""
    size = model.tokens * model.width
    details = {"Collective name": name, "In msg nelems": size, "Out msg nelems": size}
    details |= {"Group size": 2, "dtype": "BFloat16", "Process Group Name": "1"}
    us = 2 * size / model.bus_gbps / 1e3 + 14.0
    with machine.range(f"nccl:{name}", "user_annotation"):
        machine.record("computed", COMPUTE)
        machine.wait("computed", NCCL)
        machine.launch(Launch(KERNELS["send"], us, 24, NCCL, details, until))
        machine.record("exchanged", NCCL)
    if name == "recv":
        machine.wait("exchanged", COMPUTE)
    return machine.tails[NCCL]


def pipeline(machine: Machine, model: Model) -> None:
    """Run the microbatches of a step, one forward and one backward pass at a time (1F1B)."""
    ops = [op for _ in range(model.layers) for op in layer(model)]
    scale, grads = machine.settings.peer_scale, [one for op in ops for one in op.gradients()]
    forward_us, backward_us = (scale * sum(op.launch().us for op in part) for part in (ops, grads))
    sent: list[float] = []
    for number in range(model.pipeline):
        if number > 1:  # The other stage runs a backward pass before the next forward pass.
            machine.peer = max(machine.peer, sent[number - 2]) + backward_us
        machine.peer += forward_us
        exchange(machine, model, "recv", machine.peer)
        for index, op in enumerate(ops):
            op.run(machine, f"{number}.{index}")
        backward(machine, model, [ops])
        sent.append(exchange(machine, model, "send"))
    for end in sent[-2:]:
        machine.peer = max(machine.peer, end) + backward_us
    machine.peer += 500.0


def node_of(name: str) -> str:
    """Return the ranges of the backward pass of an operation."""
    node = name.removeprefix("aten::").strip("_").title() + "Backward0"
    return f"autograd::engine::evaluate_function: {node} > {node}"


@contextmanager
def recompute(machine: Machine, how: str, number: int, ops: list[Op]) -> Iterator[None]:
    """Compute a layer again as activation checkpointing does, before its backward pass."""
    if how == "CheckpointFunction":  # A node in which the backward pass of the layer runs.
        node = f"{how}Backward"
        with machine.range(f"autograd::engine::evaluate_function: {node} > {node}"):
            for index, op in enumerate(ops):
                op.run(machine, f"again {number}.{index}")
            yield
        return
    if how == "hook":  # The first node of the layer that needs a saved tensor runs the hook.
        with machine.range(node_of(ops[-1].name), key=f"{number}.{len(ops) - 1}"):
            frame = "torch/utils/checkpoint.py(1557): recompute_fn"
            with machine.range(frame, "python_function"):
                for op in ops:
                    op.run(machine)
    yield


def backward(machine: Machine, model: Model, groups: list[list[Op]]) -> None:
    """Run the backward pass on its thread."""
    with machine.on_thread(AUTOGRAD):
        for number, ops in reversed([*enumerate(groups)]):
            again = model.checkpoint * (number < model.layers)
            prefix = "again " if again == "CheckpointFunction" else ""
            with recompute(machine, again, number, ops):
                for index, op in reversed([*enumerate(ops)]):
                    with machine.range(node_of(op.name), key=f"{prefix}{number}.{index}"):
                        for gradient in op.gradients():
                            gradient.run(machine)
            if model.zeroes_gradients and number < model.layers:
                node = "torch::autograd::AccumulateGrad"
                path = f"autograd::engine::evaluate_function: {node} > {node}"
                for op in replace(model, layers=1).per_tensor({"aten::add_": 3.0}):
                    with machine.range(path):
                        op.run(machine)
            if model.reduction == "overlapped" and number < model.layers:
                reduce(machine, model, number)
