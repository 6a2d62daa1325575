"""Weights, gradients, activations and the peak, each storage counted once."""

from __future__ import annotations

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, names, saved

FLOAT = 4


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


def test_weights_are_sized_and_placed(workload: Workload) -> None:
    tracked = workload.model(net("self.lin = nn.Linear(8, 3)", "return self.lin(x)"))
    assert weights(tracked) == [("lin", "weight", 96, 96), ("lin", "bias", 12, 12)]
    (frame,) = tracked.weights[0].frames
    assert (frame.file_path, frame.line_number) == ("main.py", 8)
    assert tracked.weights[0].module_class == "Linear"


def test_a_tied_weight_is_listed_once_under_its_first_name(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.emb = nn.Embedding(8, 8); self.out = nn.Linear(8, 8, bias=False)\n"
            "        self.out.weight = self.emb.weight",
            "return self.out(x)",
        )
    )
    assert weights(tracked) == [("emb", "weight", 256, 256)]


def test_a_frozen_weight_has_no_gradient(workload: Workload) -> None:
    tracked = workload.model(
        net("self.lin = nn.Linear(8, 8); self.lin.bias.requires_grad_(False)", "return self.lin(x)")
    )
    assert weights(tracked) == [("lin", "weight", 256, 256), ("lin", "bias", 32, 0)]


def test_a_replaced_parameter_gives_way_to_the_new_one(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.lin = nn.Linear(8, 8, bias=False)\n"
            "        self.lin.weight = nn.Parameter(torch.ones(2, 8))",
            "return self.lin(x)",
        )
    )
    assert weights(tracked) == [("lin", "weight", 64, 64)]
    assert tracked.weights[0].frames[0].line_number == 9


def test_a_parametrized_weight_keeps_the_name_it_was_registered_under(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8, bias=False))",
            "return self.lin(x)",
        )
    )
    assert weights(tracked) == [("lin.parametrizations.weight", "weight", 256, 256)]


def test_copied_layers_have_weights_of_their_own(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\n"
            "        self.encoder = nn.TransformerEncoder(layer, 2)",
            "return self.encoder(x[None])",
        )
    )
    by_layer = [w.module_path.split(".")[2] for w in tracked.weights]
    assert by_layer == ["0"] * 12 + ["1"] * 12
    assert {w.frames[0].line_number for w in tracked.weights} == {9}


def test_a_lazy_weight_is_sized_once_it_has_a_size(workload: Workload) -> None:
    tracked = workload.model(
        net("self.lin = nn.LazyLinear(3)", "return self.lin(x)"),
        providers=PROVIDERS.replace(
            "return Net()", "net = Net(); net(torch.ones(1, 8)); return net"
        ),
    )
    assert weights(tracked) == [("lin", "weight", 96, 96), ("lin", "bias", 12, 12)]


def test_a_sparse_gradient_takes_what_it_holds(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.emb = nn.Embedding(100, 8, sparse=True)",
            "return self.emb(torch.tensor([1, 2])) * x[:2]",
        )
    )
    assert weights(tracked) == [("emb", "weight", 100 * 8 * FLOAT, 2 * 8 * FLOAT + 2 * 8)]


def test_what_is_saved_is_charged_to_the_operation_that_saves_it(workload: Workload) -> None:
    tracked = workload.model(net("self.lin = nn.Linear(8, 8)", "return self.lin(x).relu().tanh()"))
    row = 4 * 8 * FLOAT
    assert [(one.operation_name, one.size_bytes) for one in tracked.activations] == [
        ("linear", row),  # its input; the weight is no activation
        ("relu", row),  # its output
        ("tanh", row),
    ]


def test_a_storage_is_charged_once_and_whole(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.lin = nn.Linear(8, 8)",
            "y = self.lin(x).relu(); return y[:, :2].sin() + y[:, 2:4].cos() + y.t()[:2].t().exp()",
        )
    )
    row = 4 * 8 * FLOAT
    assert saved(tracked) == {"linear": row, "relu": row, "exp": 4 * 2 * FLOAT}


def test_parameters_buffers_and_views_of_them_are_no_activations(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.w = nn.Parameter(torch.ones(8, 8)); self.register_buffer('b', torch.ones(8))",
            "return (x @ self.w.t()[:8]) * self.b",
        )
    )
    assert saved(tracked) == {"matmul": 4 * 8 * FLOAT}


def test_a_number_kept_for_the_backward_counts_on_the_cpu(workload: Workload) -> None:
    tracked = workload.model(net("self.w = nn.Parameter(torch.ones(8))", "return self.w * 0.5"))
    assert saved(tracked) == {"mul": 8}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ("torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())",
         4 * 8 * 2),
        ("torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy)", 0),
    ],
)  # fmt: skip
def test_hooks_of_the_program_decide_what_is_kept(
    workload: Workload, hooks: str, expected: int
) -> None:
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))",
            f"with {hooks}:\n            return (self.w + x.detach()).tanh()")
    )  # fmt: skip
    assert sum(saved(tracked).values()) == expected


def test_checkpointed_operations_save_nothing_but_the_input(workload: Workload) -> None:
    tracked = workload.model(
        "from torch.utils.checkpoint import checkpoint\n"
        + net(
            "self.lin = nn.Linear(8, 8)",
            "return checkpoint(lambda y: self.lin(y).relu().tanh(), x, use_reentrant=False)",
        )
    )
    assert names(tracked) == ["linear", "relu", "tanh"]
    assert saved(tracked) == {}


def test_a_wrapper_subclass_is_sized_by_what_it_wraps(workload: Workload) -> None:
    tracked = workload.model(
        """
from torch.testing._internal.two_tensor import TwoTensor
"""
        + net(
            "self.lin = nn.Linear(8, 8)",
            "y = self.lin(x); return TwoTensor(y.sin(), y.cos()).a.exp()",
        )
    )
    assert saved(tracked)["exp"] == 4 * 8 * FLOAT


def test_operations_that_save_nothing_are_listed_with_nothing(workload: Workload) -> None:
    tracked = workload.model(net("self.w = nn.Parameter(torch.ones(8))", "return x + self.w"))
    assert [(one.operation_name, one.size_bytes) for one in tracked.activations] == [("add", 0)]


def test_what_no_backward_goes_through_is_no_activation(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "self.lin, self.aux = nn.Linear(8, 8), nn.Linear(8, 8)",
            "aux = self.aux(x).tanh(); return self.lin(x)",
        )
    )
    row = 4 * 8 * FLOAT
    assert names(tracked) == ["linear", "tanh", "linear"]
    (only,) = tracked.activations  # the input, which both layers saved, is kept for this one
    assert (only.module_path, only.size_bytes) == ("lin", row)
    assert tracked.facts["saved_bytes_of_no_operation"] == str(row)  # of tanh


def test_without_a_backward_all_that_could_be_for_one_is_kept(workload: Workload) -> None:
    tracked = workload.model(
        net("self.lin = nn.Linear(8, 8)", "return self.lin(x).tanh()"),
        providers=PROVIDERS.replace(".sum().backward()", "").replace("optimizer.step()", ""),
    )
    row = 4 * 8 * FLOAT
    assert saved(tracked) == {"linear": row, "tanh": row}


def test_what_is_saved_outside_the_model_is_counted_apart(workload: Workload) -> None:
    tracked = workload.model(
        net("self.w = nn.Parameter(torch.ones(8))", "return x + self.w"),
        providers=PROVIDERS.replace("model(*inputs).sum()", "model(*inputs).tanh().sum()"),
    )
    assert saved(tracked) == {}
    assert tracked.facts["saved_bytes_of_no_operation"] == str(4 * 8 * FLOAT)


def test_the_peak_on_the_cpu_is_what_was_allocated(workload: Workload) -> None:
    megabyte = 2**20
    tracked = workload.model(
        net(
            "self.w = nn.Parameter(torch.ones(8))",
            f"big = torch.empty({megabyte}, dtype=torch.uint8); del big; return x + self.w",
        )
    )
    assert tracked.peak_usage_bytes is not None
    # The parameter, its gradient and the inputs live besides; an old gradient must not count.
    small = tracked.peak_usage_bytes - megabyte
    assert 3 * 32 <= small < 100_000


def test_old_gradients_are_not_counted_twice(workload: Workload) -> None:
    count = 2**18
    tracked = workload.model(
        net(f"self.w = nn.Parameter(torch.ones({count}))", "return x.sum() * self.w.sum()")
    )
    assert tracked.peak_usage_bytes is not None
    assert 2 * count * FLOAT <= tracked.peak_usage_bytes < 2.5 * count * FLOAT


def test_a_program_that_profiles_itself_goes_first(workload: Workload) -> None:
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


def test_only_the_asked_report_is_measured(workload: Workload) -> None:
    source = net("self.lin = nn.Linear(8, 8)", "return self.lin(x)")
    run_time = workload.model(source, reports=("run-time",))
    assert (run_time.weights, run_time.activations, run_time.peak_usage_bytes) == ((), (), None)
    assert run_time.anomalies == {}
    memory = workload.model(source, reports=("memory",))
    assert memory.operations == ()
    assert len(memory.weights) == 2
    assert memory.peak_usage_bytes is not None
