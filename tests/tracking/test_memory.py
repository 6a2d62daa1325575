"""Weights, gradients, activations and the peak; each storage counts once."""

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, names, saved

FLOAT = 4
ROW = 4 * 8 * FLOAT


def net(init: str, forward: str) -> str:
    return f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}
"""


def weights(tracked: object) -> list[tuple[str, str, int, int]]:
    """Return module path, name, bytes and gradient bytes of each weight."""
    return [
        (w.module_path, w.name, w.size_bytes, w.grad_size_bytes)
        for w in tracked.weights  # type: ignore[attr-defined]
    ]


def test_weights_have_size_gradient_and_place(workload: Workload) -> None:
    tracked = workload.model(net("self.lin = nn.Linear(8, 3)", "return self.lin(x)"))
    assert weights(tracked) == [("lin", "weight", 96, 96), ("lin", "bias", 12, 12)]
    (frame,) = tracked.weights[0].frames
    assert (frame.file_path, frame.line_number) == ("main.py", 8)
    assert tracked.weights[0].module_class == "Linear"


@pytest.mark.parametrize(
    ("init", "forward", "expected"),
    [
        pytest.param(
            "self.emb = nn.Embedding(8, 8); self.out = nn.Linear(8, 8, bias=False)\n"
            "        self.out.weight = self.emb.weight",
            "self.out(x)",
            [("emb", "weight", 256, 256)],
            id="tied: once, under the first name",
        ),
        pytest.param(
            "self.lin = nn.Linear(8, 8); self.lin.bias.requires_grad_(False)",
            "self.lin(x)",
            [("lin", "weight", 256, 256), ("lin", "bias", 32, 0)],
            id="frozen: no gradient",
        ),
        pytest.param(
            "self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8, bias=False))",
            "self.lin(x)",
            [("lin.parametrizations.weight", "weight", 256, 256)],
            id="parametrized: the registered name",
        ),
        pytest.param(
            "self.lin = nn.LazyLinear(3); self.lin(torch.ones(1, 8))",
            "self.lin(x)",
            [("lin", "weight", 96, 96), ("lin", "bias", 12, 12)],
            id="lazy: the later size",
        ),
        pytest.param(
            "self.emb = nn.Embedding(100, 8, sparse=True)",
            "self.emb(torch.tensor([1, 2])) * x[:2]",
            [("emb", "weight", 100 * 8 * FLOAT, 2 * 8 * FLOAT + 2 * 8)],
            id="sparse gradient: its values and indices",
        ),
    ],
)
def test_sizes_of_special_weights(
    init: str, forward: str, expected: list[tuple[str, str, int, int]], workload: Workload
) -> None:
    assert weights(workload.model(net(init, f"return {forward}"))) == expected


def test_replaced_parameter_is_listed_with_its_line(workload: Workload) -> None:
    init = "self.lin = nn.Linear(8, 8, bias=False)\n"
    init += "        self.lin.weight = nn.Parameter(torch.ones(2, 8))"
    tracked = workload.model(net(init, "return self.lin(x)"))
    assert weights(tracked) == [("lin", "weight", 64, 64)]
    assert tracked.weights[0].frames[0].line_number == 9


def test_copied_layers_have_separate_weights(workload: Workload) -> None:
    init = "layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\n"
    init += "        self.encoder = nn.TransformerEncoder(layer, 2)"
    tracked = workload.model(net(init, "return self.encoder(x[None])"))
    by_layer = [w.module_path.split(".")[2] for w in tracked.weights]
    assert by_layer == ["0"] * 12 + ["1"] * 12
    assert {w.frames[0].line_number for w in tracked.weights} == {9}


def test_activations_are_charged_to_the_operation_that_saves_them(workload: Workload) -> None:
    tracked = workload.model(net("self.lin = nn.Linear(8, 8)", "return self.lin(x).relu().tanh()"))
    row = 4 * 8 * FLOAT
    assert [(record.operation_name, record.size_bytes) for record in tracked.activations] == [
        ("linear", row),  # Its input; the weight is no activation.
        ("relu", row),  # Its output.
        ("tanh", row),
    ]


@pytest.mark.parametrize(
    ("init", "forward", "expected"),
    [
        pytest.param(
            "self.lin = nn.Linear(8, 8)",
            "y = self.lin(x).relu(); return y[:, :2].sin() + y[:, 2:4].cos() + y.t()[:2].t().exp()",
            {"linear": ROW, "relu": ROW, "exp": 4 * 2 * FLOAT},
            id="a storage once and completely",
        ),
        pytest.param(
            "self.w = nn.Parameter(torch.ones(8, 8)); self.register_buffer('b', torch.ones(8))",
            "return (x @ self.w.t()[:8]) * self.b",
            {"matmul": ROW},
            id="no parameters, buffers or views of them",
        ),
        pytest.param(
            "self.w = nn.Parameter(torch.ones(8))", "return self.w * 0.5", {"mul": 8}, id="a number"
        ),
    ],
)
def test_sizes_of_activations(
    init: str, forward: str, expected: dict[str, int], workload: Workload
) -> None:
    assert saved(workload.model(net(init, forward))) == expected


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ("torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())",
         4 * 8 * 2),
        ("torch.autograd.graph.saved_tensors_hooks("
         "lambda t: (t.half(), [t.double()]), lambda pair: pair[0].float())", 4 * 8 * (2 + 8)),
        ("torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy)", 0),
    ],
)  # fmt: skip
def test_hooks_of_the_program_set_the_size(workload: Workload, hooks: str, expected: int) -> None:
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))",
            f"with {hooks}:\n            return (self.w + x.detach()).tanh()")
    )  # fmt: skip
    assert sum(saved(tracked).values()) == expected


def test_checkpointed_operations_save_no_activation(workload: Workload) -> None:
    block = "return checkpoint(lambda y: self.lin(y).relu().tanh(), x, use_reentrant=False)"
    source = "from torch.utils.checkpoint import checkpoint\n"
    tracked = workload.model(source + net("self.lin = nn.Linear(8, 8)", block))
    assert names(tracked) == ["linear", "relu", "tanh"]
    assert saved(tracked) == {}


def test_wrapper_subclass_has_the_size_of_the_wrapped_tensors(workload: Workload) -> None:
    forward = "y = self.lin(x); return TwoTensor(y.sin(), y.cos()).a.exp()"
    source = "from torch.testing._internal.two_tensor import TwoTensor\n"
    tracked = workload.model(source + net("self.lin = nn.Linear(8, 8)", forward))
    assert saved(tracked)["exp"] == 4 * 8 * FLOAT


def test_operations_without_activations_are_listed_with_zero(workload: Workload) -> None:
    tracked = workload.model(net("self.w = nn.Parameter(torch.ones(8))", "return x + self.w"))
    assert [(record.operation_name, record.size_bytes) for record in tracked.activations] == [
        ("add", 0)
    ]


def test_tensors_outside_the_backward_graph_are_no_activations(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.lin, self.aux = nn.Linear(8, 8), nn.Linear(8, 8)",
            "aux = self.aux(x).tanh(); return self.lin(x)",
        )
    )
    row = 4 * 8 * FLOAT
    assert names(tracked) == ["linear", "tanh", "linear"]
    (only,) = tracked.activations  # Both layers saved the input; it is kept for this one.
    assert (only.module_path, only.size_bytes) == ("lin", row)
    assert tracked.facts["saved_bytes_of_no_operation"] == str(row), "of tanh"


def test_saved_tensors_count_as_activations_without_a_backward_pass(workload: Workload) -> None:
    tracked = workload.model(
        net("self.lin = nn.Linear(8, 8)", "return self.lin(x).tanh()"),
        providers=PROVIDERS.replace(".sum().backward()", "").replace("optimizer.step()", ""),
    )
    row = 4 * 8 * FLOAT
    assert saved(tracked) == {"linear": row, "tanh": row}


def test_tensors_saved_outside_the_model_are_counted_separately(workload: Workload) -> None:
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))", "return x + self.w"),
        providers=PROVIDERS.replace("model(*inputs).sum()", "model(*inputs).tanh().sum()"),
    )
    assert saved(tracked) == {}
    assert tracked.facts["saved_bytes_of_no_operation"] == str(4 * 8 * FLOAT)


def test_peak_on_the_cpu_is_the_allocated_memory(workload: Workload) -> None:
    megabyte = 2**20
    tracked = workload.model(
        net(
            "self.w = nn.Parameter(torch.ones(8))",
            f"big = torch.empty({megabyte}, dtype=torch.uint8); del big; return x + self.w",
        )
    )
    assert tracked.peak_usage_bytes is not None
    # The parameter, its gradient and the inputs are live; an old gradient must not count.
    small = tracked.peak_usage_bytes - megabyte
    assert 3 * 32 <= small < 100_000
    assert "torch's allocator" in tracked.facts["peak_is_of"]


def test_peak_on_the_cpu_is_the_sum_of_tensors(workload: Workload) -> None:
    """DeepView counts the scratch memory of oneDNN too, twice as much for a convolution."""
    size = 4 * 8 * 32 * 32 * FLOAT
    tracked = workload.model(
        net("self.conv = nn.Conv2d(8, 8, 3, padding=1)", "return self.conv(x).sigmoid().tanh()"),
        providers=PROVIDERS.replace("(batch_size, 8)", "(4, 8, 32, 32)"),
    )
    weights = sum(weight.size_bytes + weight.grad_size_bytes for weight in tracked.weights)
    assert sum(record.size_bytes for record in tracked.activations) == 3 * size
    assert tracked.peak_usage_bytes is not None
    # In the backward pass, at most two gradients exist besides the input and two results.
    assert 3 * size < tracked.peak_usage_bytes - weights <= 5 * size + 1000


def test_activations_at_once_are_those_of_one_backward_pass(workload: Workload) -> None:
    providers = PROVIDERS.replace(
        "model(*inputs).sum().backward()", "[model(*inputs).sum().backward() for _ in range(4)]"
    )
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))", "return (x * self.w).exp()"),
        providers=providers,
    )
    sizes = [record.size_bytes for record in tracked.activations]
    inputs, outputs = 4 * 8 * FLOAT, 4 * 8 * FLOAT
    assert sum(sizes) == inputs + 4 * outputs
    assert int(tracked.facts["most_saved_bytes_at_once"]) == inputs + outputs


def test_old_gradients_are_not_counted_twice(workload: Workload) -> None:
    count = 2**18
    tracked = workload.model(
        net(f"self.w = nn.Parameter(torch.ones({count}))", "return x.sum() * self.w.sum()")
    )
    assert tracked.peak_usage_bytes is not None
    assert 2 * count * FLOAT <= tracked.peak_usage_bytes < 2.5 * count * FLOAT


def test_profiler_of_the_program_takes_precedence(workload: Workload) -> None:
    providers = PROVIDERS.replace(
        "model(*inputs).sum().backward()",
        "with torch.profiler.profile() as p: model(*inputs).sum().backward()\n"
        "        assert len(p.events())",
    )
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))", "return x + self.w"), providers=providers
    )
    assert names(tracked) == ["add"]
    assert tracked.peak_usage_bytes is None
    assert "profiler" in tracked.anomalies["peak_usage_not_measured"][1]


def test_only_the_requested_report_is_measured(workload: Workload) -> None:
    source = net("self.lin = nn.Linear(8, 8)", "return self.lin(x)")
    run_time = workload.model(source, reports=("run-time",))
    assert (run_time.weights, run_time.activations, run_time.peak_usage_bytes) == ((), (), None)
    assert run_time.anomalies == {}
    memory = workload.model(source, reports=("memory",))
    assert memory.operations == ()
    assert len(memory.weights) == 2
    assert memory.peak_usage_bytes is not None
