"""With changed torch internals, the program continues and the report names what is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.tracking.workloads import Workload, names
from unified_prof.tracking.torch_internals import TorchInternals
from unified_prof.tracking.torch_names import OPERATIONS, PLACES, Anomalies, Patches, version_of

TRAINING = """
from pathlib import Path
import torch._dynamo

torch.set_default_device("cpu")

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x):
        return Double.apply(self.lin(x).pow(2)).sum()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(12):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        loss = net(torch.ones(4, 8))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
Path("done").write_text("yes")
"""

ON_OBJECTS = {key for key, place in PLACES.items() if ":" not in place.path}
REPLACED = {
    "backward_engine", "autograd_engine", "function_apply", "compile", "has_torch_function",
    "compiled_module_call", "compiler_stance", "saved_hooks_enter", "saved_hooks_disable",
    "profiler_prepare", "scaler_step", "register_parameter", "module_state",
    "module_call", "tensor_backward", "optimizer_zero_grad", "module_zero_grad",
    "region_enter", "region_exit", "dataloader_next", "autograd_backward", "autograd_grad",
    "grad_transform",    "vmap_transform", "checkpoint", "recomputation",
    "clip_grad_norm", "clip_grad_norm_module", "clip_grad_value", "clip_grad_value_module",
    "tensor_item", "tensor_tolist", "tensor_cpu", "tensor_numpy", "script_module_call",
    "tensor_bool", "tensor_int", "tensor_index", "compilation", "save",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_default_device() -> Iterator[None]:
    import torch

    yield
    torch.set_default_device(None)


def changed_signature(*_: Any, **__: Any) -> Any:
    raise TypeError("takes other arguments")


@pytest.fixture(params=sorted(PLACES))
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def remove(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a place one that no version of torch has."""
    path = PLACES[key].path
    monkeypatch.setitem(PLACES, key, replace(PLACES[key], path=f"{path}_until_yesterday"))


def is_too_new(key: str) -> bool:
    """Return True if this torch is older than the place."""
    import torch

    return version_of(torch) < PLACES[key].since


def test_every_patched_place_exists_in_this_torch(key: str) -> None:
    import torch._dynamo

    if is_too_new(key):
        pytest.skip(f"torch has it since {PLACES[key].since}")
    anomalies = Anomalies()
    internals = TorchInternals(anomalies)
    if key == "log_level":
        internals.set_log_level(internals.set_log_level(2))
    elif key in ON_OBJECTS:
        node = torch.ones(1, requires_grad=True).pow(2).grad_fn
        tensor = torch.ones(1)
        assert node is not None
        assert internals.node_number(node) >= 0
        assert internals.saved_fields(type(node)) == ("_raw_saved_self",)
        assert internals.storage_key(tensor.untyped_storage()) != tensor.data_ptr()
        compiled = torch.compile(torch.nn.Linear(1, 1))
        assert internals.original_class(compiled) == "Linear"
    else:
        assert internals.find(key) is not None
    assert not anomalies


def test_replaced_places_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    patches = Patches()
    internals = TorchInternals(Anomalies())
    for key in sorted(key for key in REPLACED if not is_too_new(key)):
        before = internals.find(key)
        assert internals.replace(patches, key, lambda found: changed_signature), key
        assert internals.find(key) != before
        patches.restore()
        assert internals.find(key) == before
    assert "__call__" not in vars(torch.nn.Linear)


def test_inherited_place_is_restored_as_inherited() -> None:
    class Base:
        def place(self) -> int:
            return 1

    class Heir(Base):
        pass

    patches = Patches()
    patches.replace(Heir, "place", lambda self: 2)
    assert Heir().place() == 2
    patches.restore()
    assert Heir().place() == 1
    assert "place" not in vars(Heir)


@pytest.mark.quick(cases=3)
def test_program_runs_if_a_place_is_missing(
    key: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(key, monkeypatch)
    # Without iterations, only a program that ends well is reported, as a whole.
    code = 0 if key == "optimizer_post_hook" else 3
    workload.write("main.py", f"{TRAINING}raise SystemExit({code})\n")
    outcome = workload.run(iterations=2)
    assert (outcome.exit_code, Path("done").read_text()) == (code, "yes")
    assert outcome.tracked is not None
    if is_too_new(key):
        assert f"torch_place_missing_{key}" not in outcome.tracked.anomalies
    elif key != "compiled_original":  # No compiled module runs here.
        count, detail = outcome.tracked.anomalies[f"torch_place_missing_{key}"]
        assert count == 1
        assert detail.startswith(f"{PLACES[key].loss}: ")
        assert "_until_yesterday" in detail
    assert outcome.tracked.iterations
    assert sum(weight.size_bytes for weight in outcome.tracked.weights) == 4 * (64 + 8)
    if key in OPERATIONS:
        assert names(outcome.tracked) == ["Double"]
    elif not key.startswith("optimizer"):
        inside = ["mul"] if key == "function_apply" else ["Double"]
        assert names(outcome.tracked) == ["linear", "pow", *inside, "sum"]


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    "key", sorted(set(PLACES) - ON_OBJECTS - REPLACED - {"log_level", "compiler_skips"})
)
def test_program_runs_if_a_place_has_changed(
    key: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(PLACES[key], path=f"{__name__}:changed_signature")
    monkeypatch.setitem(PLACES, key, changed)
    workload.write("main.py", TRAINING)
    outcome = workload.run(iterations=2)
    assert (outcome.exit_code, Path("done").read_text()) == (0, "yes")
    assert outcome.tracked is not None
    assert any(name.startswith("torch_place_missing_") for name in outcome.tracked.anomalies)


def test_place_missing_in_an_older_torch_is_no_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    remove("compiler_stance", monkeypatch)
    monkeypatch.setattr("torch.__version__", "2.5.1+cu124")
    anomalies = Anomalies()
    assert TorchInternals(anomalies).find("compiler_stance") is None
    assert not anomalies


@pytest.mark.parametrize("how", ["classmethod in C", "inherited"])
def test_autograd_function_apply_can_be_implemented_in_c(
    how: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if how == "inherited":
        monkeypatch.delattr(torch.autograd.Function, "apply")
    else:
        in_c = vars(torch._C._FunctionBase)["apply"]
        assert not hasattr(in_c, "__func__")
        monkeypatch.setattr(torch.autograd.Function, "apply", in_c)
    tracked = workload.track(TRAINING)
    assert names(tracked) == ["linear", "pow", "Double", "sum"]
    assert tracked.anomalies == {}
