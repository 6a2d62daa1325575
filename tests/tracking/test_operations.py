"""Which calls are operations, their names, and their part in the backward pass."""

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, in_backward, names, places


def net(*lines: str) -> str:
    """Return a module `Net` with a parameter, whose forward is `lines`."""
    body = "\n        ".join(lines)
    return f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        {body}
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return x + self.w", ["add"]),
        ("return 1 + x * self.w", ["mul", "add"]),
        ("y = x * self.w; y += 1; return y", ["mul", "iadd"]),
        ("y = x * self.w; y -= 1; y *= 2; return y", ["mul", "isub", "imul"]),
        ("y = x * self.w; y /= 2; return y", ["mul", "idiv"]),
        ("y = x * self.w; y.add_(1); return y", ["mul", "add_"]),
        ("return (x / self.w - 2) % 3", ["truediv", "sub", "mod"]),
        ("return 1 / self.w", ["rdiv"]),
        ("return 1 - self.w", ["rsub"]),
        ("return x.div(self.w)", ["div"]),
        ("return self.w ** 2", ["pow"]),
        ("return -self.w", ["neg"]),
        ("return abs(self.w)", ["abs"]),
        ("return x @ self.lin.weight", ["matmul"]),
        ("return (x // 2) * self.w", ["floordiv", "mul"]),
        ("return self.w * (x > 0)", ["gt", "mul"]),
        ("return self.w * ((x > 0) & ~(x == 1))", ["gt", "eq", "invert", "and", "mul"]),
        ("return self.lin(x).relu()", ["linear", "relu"]),
        ("return F.max_pool1d(x * self.w, 2, return_indices=True)[0]",
         ["mul", "max_pool1d"]),
        ("return F.threshold(x * self.w, 0., 1.)", ["mul", "_threshold"]),
        ("a, b = (x * self.w).chunk(2, -1); return a", ["mul", "chunk"]),
        ("for row in x * self.w: pass\n        return row", ["mul", "unbind"]),
    ],
)  # fmt: skip
def test_names_equal_those_of_skyline(workload: Workload, line: str, expected: list[str]) -> None:
    assert names(workload.model(net(*line.split("\n        ")))) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return torch.linalg.norm(x * self.w)", ["mul", "linalg_norm"]),
        ("return torch.fft.fft(x * self.w).abs()", ["mul", "fft_fft", "abs"]),
        ("return torch.special.erf(x * self.w)", ["mul", "special_erf"]),
        ("return torch.einsum('ij,j->i', x, self.w)", ["einsum"]),
        ("return (x * self.w)[:, 0]", ["mul", "getitem"]),
        ("return torch.ops.aten.relu(x * self.w)", ["mul", "relu"]),
        ("return torch.ops.aten.relu.default(x * self.w)", ["mul", "relu"]),
    ],
)
def test_operations_beyond_skyline(workload: Workload, line: str, expected: list[str]) -> None:
    tracked = workload.model(net(line))
    assert names(tracked) == expected
    assert in_backward(tracked) == expected


def test_function_imported_by_name_is_recorded(workload: Workload) -> None:
    tracked = workload.model("from torch import relu\n" + net("return relu(self.lin(x))"))
    assert names(tracked) == ["linear", "relu"]


def test_setting_items_is_an_operation_with_a_backward(workload: Workload) -> None:
    tracked = workload.model(net("y = x * 1", "y[:, 0] = self.w[0]", "return y"))
    assert names(tracked) == ["mul", "getitem", "setitem"]
    assert in_backward(tracked) == ["getitem", "setitem"]


def test_calls_without_a_tensor_result_are_no_operations(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "n = x.size(0) + x.dim() + x.shape[0] + x.numel() + int(torch.is_tensor(x))",
            "with torch.no_grad(), torch.autocast('cpu'):",
            "    b = x.is_floating_point() and x.sum().item() < n and bool((x > 0).any())",
            "return x.T.T * self.w",
        )
    )
    assert names(tracked) == ["sum", "gt", "any", "mul"]


def test_outermost_public_call_is_the_operation(workload: Workload) -> None:
    tracked = workload.model(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
                self.norm = nn.LayerNorm(8)
                self.bn = nn.BatchNorm1d(8)
                self.lstm = nn.LSTM(8, 8, batch_first=True)
                self.embed = nn.Embedding(10, 8)
                self.loss = nn.CrossEntropyLoss()

            def forward(self, x):
                x = x[None]
                x = self.norm(self.attention(x, x, x)[0])
                x = self.bn(self.lstm(x)[0][0])
                x = x + self.embed(torch.arange(4))
                return self.loss(x, torch.arange(4))
        """
    )
    assert names(tracked) == (
        "getitem transpose multi_head_attention_forward transpose layer_norm zeros zeros lstm"
        " getitem add_ batch_norm arange embedding add arange cross_entropy".split()
    )


def test_private_calls_are_no_operations(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "packed = nn.utils.rnn.pack_padded_sequence(x[None] * self.w, [4], batch_first=True)",
            "return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]",
        )
    )
    assert "_pack_padded_sequence" not in names(tracked)
    assert "mul" in names(tracked)


def test_custom_function_is_one_operation(workload: Workload) -> None:
    source = """
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2 + 0

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    double = Double.apply  # Bound before tracking begins.

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            return double(Double.apply(self.lin(x)))
    """
    tracked = workload.model(source)
    assert names(tracked) == ["linear", "Double", "Double"]
    assert in_backward(tracked) == names(tracked)
    assert places(tracked.operations[1]) == ["main.py:23"]


@pytest.mark.parametrize(
    ("reentrant", "expected"),
    [(True, ["linear", "CheckpointFunction"]), (False, ["linear", "linear", "relu"])],
)
def test_both_kinds_of_checkpoint_are_recorded(
    workload: Workload, reentrant: bool, expected: list[str]
) -> None:
    tracked = workload.model(
        f"""
        from torch.utils.checkpoint import checkpoint

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

            def block(self, x):
                return self.second(x).relu()

            def forward(self, x):
                return checkpoint(self.block, self.first(x), use_reentrant={reentrant})
        """
    )
    assert names(tracked) == expected
    assert in_backward(tracked) == expected
    assert "backward_nodes_not_of_this_iteration" not in tracked.anomalies


def test_tensor_subclasses_keep_their_behavior(workload: Workload) -> None:
    tracked = workload.model(
        """
        class Tagged(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(8))

            def forward(self, x):
                y = x.as_subclass(Tagged) * self.w
                assert type(y) is Tagged
                return y.relu()
        """
    )
    assert names(tracked) == ["mul", "relu"]
    assert in_backward(tracked) == ["mul", "relu"]


def test_operations_under_autocast_are_recorded(workload: Workload) -> None:
    tracked = workload.model(
        net(
            "with torch.autocast('cpu', dtype=torch.bfloat16):",
            "    y = self.lin(x)",
            "    assert y.dtype is torch.bfloat16",
            "return y.float()",
        )
    )
    assert names(tracked) == ["linear", "float"]


@pytest.mark.parametrize("transform", ["torch.vmap", "torch.func.vmap"])
def test_operations_under_vmap_are_recorded(workload: Workload, transform: str) -> None:
    tracked = workload.model(net(f"return {transform}(lambda row: self.lin(row).relu())(x)"))
    assert names(tracked) == ["linear", "relu"]
    assert in_backward(tracked) == ["linear", "relu"]


def test_functional_gradients_inside_a_model_are_recorded(workload: Workload) -> None:
    tracked = workload.model(
        net("g = torch.func.grad(lambda v: (v * v).sum())(x)", "return g * self.w")
    )
    assert names(tracked)[-1] == "mul"
    assert "mul" in in_backward(tracked)


BACKWARDS = {
    "a keyword": "out.sum().backward(retain_graph=True)",
    "a gradient": "out.backward(gradient=torch.ones_like(out))",
    "inputs": "out.sum().backward(inputs=list(model.parameters()))",
    "autograd.backward": "torch.autograd.backward(out.sum())",
    "autograd.backward of several": "torch.autograd.backward([out.sum(), out.mean()])",
    "autograd.grad": "torch.autograd.grad(out.sum(), list(model.parameters()))",
    "two over one graph": "out.sum().backward(retain_graph=True); out.mean().backward()",
    "two graphs": "out.sum().backward(); model(*inputs).sum().backward()",
}


@pytest.mark.parametrize("kind", BACKWARDS)
def test_every_way_to_run_a_backward_is_recorded(kind: str, workload: Workload) -> None:
    providers = PROVIDERS.replace(
        "model(*inputs).sum().backward()", f"out = model(*inputs); {BACKWARDS[kind]}"
    )
    tracked = workload.model(net("return self.lin(x).relu() * self.w"), providers=providers)
    assert names(tracked) == ["linear", "relu", "mul"] * (2 if kind == "two graphs" else 1)
    assert in_backward(tracked) == names(tracked)


def test_double_backward_belongs_to_the_operations_of_its_graph(workload: Workload) -> None:
    providers = PROVIDERS.replace(
        "model(*inputs).sum().backward()",
        "x = inputs[0].clone().requires_grad_(); out = model(x).sum(); "
        "g, = torch.autograd.grad(out, x, create_graph=True); (out + g.norm()).backward()",
    )
    tracked = workload.model(net("return self.lin(x).tanh()"), providers=providers)
    assert names(tracked) == ["linear", "tanh"]
    assert in_backward(tracked) == ["linear", "tanh"]
    assert tracked.anomalies == {}


def test_operation_outside_the_loss_has_no_backward(workload: Workload) -> None:
    tracked = workload.model(net("unused = self.lin(x)", "return x * self.w"))
    assert names(tracked) == ["linear", "mul"]
    assert in_backward(tracked) == ["mul"]


def test_operations_of_hooks_are_part_of_the_backward(workload: Workload) -> None:
    tracked = workload.model(
        net("y = x * self.w", "y.register_hook(lambda grad: grad * 2)", "return y.relu()")
    )
    assert names(tracked) == ["mul", "relu"]


def test_function_modes_of_the_program_are_kept(workload: Workload) -> None:
    tracked = workload.model(
        net("with torch.device('cpu'):", "    mask = torch.ones(8)", "return x * self.w * mask")
    )
    assert names(tracked) == ["ones", "mul", "mul"]
    assert places(tracked.operations[0]) == ["main.py:13"]
