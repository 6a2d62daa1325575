"""Invalid workloads: their traceback or one clear message; earlier measurements are kept."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.workloads import PROVIDERS, Workload, names
from unified_prof.errors import CaptureError, DeviceUnavailableError, UsageError

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
    def forward(self, x):
        return x * self.w
"""


@pytest.mark.parametrize(
    ("target", "is_module", "message"),
    [
        ("nowhere.py", False, r"no such script: nowhere\.py"),
        (".", False, r"\. is a directory, expected the path of a \.py file"),
        ("no.where", True, r"no module no\.where that can be run"),
    ],
)
def test_missing_script_or_module_is_a_usage_error(
    workload: Workload, target: str, is_module: bool, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        workload.run(target, is_module=is_module)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_script_is_a_usage_error(workload: Workload) -> None:
    workload.write("main.py", "").chmod(0)
    with pytest.raises(UsageError, match=r"cannot read main\.py: Permission denied"):
        workload.run()


def test_syntax_error_is_shown_without_a_traceback(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    workload.write("main.py", "def f(:\n    pass\n")
    outcome = workload.run()
    assert (outcome.exit_code, outcome.tracked) == (1, None)
    assert outcome.failure is not None
    assert outcome.failure.startswith("main.py: SyntaxError")
    error = capsys.readouterr().err
    assert "main.py" in error
    assert "line 4" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("provider", "where"),
    [
        ("def uprof_model_provider():", "uprof_model_provider"),
        ("def uprof_input_provider(batch_size=4):", "uprof_input_provider"),
        ("    def iteration(*inputs):", "iteration"),
        ("    def forward(self, x):", "forward"),
    ],
)
def test_exception_shows_only_the_traceback_of_the_program(
    workload: Workload, capsys: pytest.CaptureFixture[str], provider: str, where: str
) -> None:
    indent = " " * (len(provider) - len(provider.lstrip()) + 4)
    source = (NET + PROVIDERS).replace(
        provider, f"{provider}\n{indent}raise ValueError('injected')"
    )
    workload.write("main.py", source)
    outcome = workload.run()
    assert (outcome.exit_code, outcome.tracked) == (1, None)
    assert outcome.failure is not None
    assert "ValueError: injected" in outcome.failure
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):\n")
    assert f"in {where}" in error
    assert error.endswith("ValueError: injected\n")
    assert "unified_prof" not in error


def test_only_own_traceback_shown(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    workload.write("main.py", NET.replace("x * self.w", "Bad.apply(x * self.w)") + """
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        raise KeyError("injected")
""" + PROVIDERS)  # fmt: skip
    outcome = workload.run()
    assert outcome.exit_code == 1
    error = capsys.readouterr().err
    assert "in backward" in error
    assert "unified_prof" not in error


def test_measurements_before_a_crash_are_kept(workload: Workload) -> None:
    workload.write("main.py", NET + """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(100):
    if number == 14:
        raise SystemExit(7)
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
""")  # fmt: skip
    outcome = workload.run(iterations=50)
    assert outcome.exit_code == 7
    assert outcome.tracked is not None
    assert not outcome.tracked.complete
    assert names(outcome.tracked) == ["mul"]
    assert "run_not_complete" in outcome.tracked.anomalies
    assert outcome.failure == "the workload exited with 7 after 5 of 50 measured iterations"


def test_ctrl_c_keeps_iterations(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    workload.write("main.py", (NET + PROVIDERS).replace(
        "        optimizer.step()",
        "        optimizer.step()\n        optimizer.count = getattr(optimizer, 'count', 0) + 1\n"
        "        if optimizer.count == 11: raise KeyboardInterrupt",
    ))  # fmt: skip
    outcome = workload.run(iterations=50)
    assert outcome.exit_code == 130
    assert outcome.tracked is not None
    assert not outcome.tracked.complete
    assert outcome.failure == "interrupted by Ctrl-C after 3 of 50 measured iterations"
    assert outcome.failure in str(outcome.tracked.anomalies["run_not_complete"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("statement", "code", "printed"),
    [("sys.exit()", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('why')", 1, "why\n")],
)
def test_exit_code_is_that_of_the_script(
    workload: Workload, capsys: pytest.CaptureFixture[str], statement: str, code: int, printed: str
) -> None:
    workload.write("main.py", NET + f"import sys\nNet()(torch.ones(1, 8))\n{statement}\n")
    outcome = workload.run()
    assert outcome.exit_code == code
    assert capsys.readouterr().err == printed
    assert (outcome.tracked is not None) == (code == 0)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("model_provider():", "model_provider(device):",
         "found uprof_model_provider(device), expected no parameter"),
        ("(batch_size=4)", "()", "found uprof_input_provider(), expected exactly one parameter, "
         "named batch_size, with an int as its default"),
        ("(batch_size=4)", "(size=4)", "found uprof_input_provider(size=4), expected exactly"),
        ("(batch_size=4)", "(batch_size)", "found uprof_input_provider(batch_size), expected"),
        ("(batch_size=4)", "(batch_size=True)", "found uprof_input_provider(batch_size=True)"),
        ("(batch_size=4)", "(batch_size=4.0)", "found uprof_input_provider(batch_size=4.0)"),
        ("(batch_size=4)", "(batch_size=4, x=1)", "found uprof_input_provider(batch_size=4, x=1)"),
        ("iteration_provider(model)", "iteration_provider()",
         "found uprof_iteration_provider(), expected exactly one parameter, the model"),
        ("iteration_provider(model)", "iteration_provider(model, x)",
         "found uprof_iteration_provider(model, x), expected"),
        ("return Net()", "return 3", "uprof_model_provider() returned an int, expected a callable"),
        ("(torch.randn(batch_size, 8),)", "torch.randn(batch_size, 8)",
         "uprof_input_provider() returned a Tensor, expected a tuple"),
        ("(torch.randn(batch_size, 8),)", "7", "uprof_input_provider() returned an int, expected"),
        ("    return iteration\n", "    pass\n",
         "uprof_iteration_provider(model) returned None, expected a function"),
        ("def uprof_model_provider():", "uprof_model_provider = 3\ndef other():",
         "uprof_model_provider is an int, not a function"),
    ],
)  # fmt: skip
def test_invalid_provider_is_refused_with_its_signature(
    workload: Workload, right: str, wrong: str, message: str
) -> None:
    source = NET + PROVIDERS
    assert right in source
    workload.write("main.py", source.replace(right, wrong))
    with pytest.raises(CaptureError, match=re.escape(message)) as caught:
        workload.run()
    assert "main.py" in str(caught.value)


def test_incomplete_providers_are_refused(workload: Workload) -> None:
    workload.write("main.py", NET + PROVIDERS.replace("def uprof_iteration_provider", "def other"))
    found = (
        "defines uprof_model_provider and uprof_input_provider, but not uprof_iteration_provider"
    )
    with pytest.raises(CaptureError, match=found):
        workload.run()


@pytest.mark.parametrize("prefix", ["skyline", "deepview", "uprof"])
def test_providers_of_every_prefix_are_used(workload: Workload, prefix: str) -> None:
    tracked = workload.track(NET + PROVIDERS.replace("uprof", prefix))
    assert names(tracked) == ["mul"]
    assert tracked.facts["mode"] == f"{prefix} providers"


def test_imported_providers_are_used_without_running_main(workload: Workload) -> None:
    workload.write("elsewhere.py", NET + PROVIDERS)
    workload.write(
        "main.py",
        "from elsewhere import (uprof_model_provider, uprof_input_provider,\n"
        "    uprof_iteration_provider)\n"
        "if __name__ == '__main__':\n    raise SystemExit(9)\n",
    )
    assert names(workload.tracked()) == ["mul"]


def test_iteration_without_operations_is_an_error(workload: Workload) -> None:
    workload.write("main.py", NET + """
def uprof_model_provider():
    return Net()
def uprof_input_provider(batch_size=1):
    return ()
def uprof_iteration_provider(model):
    return lambda *inputs: None
""")  # fmt: skip
    with pytest.raises(CaptureError, match="ran no tensor operation"):
        workload.run()


def test_script_without_torch_is_an_error(workload: Workload, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('hello')\n", encoding="utf-8")
    with pytest.raises(CaptureError, match="ran no tensor operation"):
        workload.run()


def test_non_finite_loss_is_an_anomaly(workload: Workload) -> None:
    tracked = workload.model(NET.replace("x * self.w", "x * self.w * float('nan')"))
    count, detail = tracked.anomalies["loss_not_finite"]
    assert count == 2
    assert detail == "iteration 0: the loss is nan"


def test_model_on_another_device_is_an_error(workload: Workload) -> None:
    workload.write("main.py", (NET + PROVIDERS).replace("Net()", "Net().to('meta')"))
    with pytest.raises(CaptureError, match=r"returned a model on meta, expected cpu") as caught:
        workload.run()
    assert "--backend meta" in str(caught.value.hint)


def test_missing_device_is_an_error(workload: Workload) -> None:
    workload.write("main.py", NET)
    with pytest.raises(DeviceUnavailableError, match="torch finds no xpu device here"):
        workload.run(device="xpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "the number of iterations is 0"),
        ({"warmup": -1}, "warm-up iterations is -1"),
        ({"scope": "all"}, "unknown scope 'all', expected module or project"),
    ],
)
def test_invalid_options_are_usage_errors(
    workload: Workload, options: dict[str, Any], message: str
) -> None:
    workload.write("main.py", NET)
    with pytest.raises(UsageError, match=message):
        workload.run(**options)
