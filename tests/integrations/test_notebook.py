"""`%%uprof` in an IPython shell and in a real kernel."""

import atexit
import gc
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unified_prof
from tests.processes import python
from unified_prof.errors import UsageError
from unified_prof.integrations import notebook
from unified_prof.recording.model import By
from unified_prof.tracking.code_entries import cell_name

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def step():
    loss = net(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)
"""
TRAIN = "for _ in range(6):\n    last = step()\nround(last, 3) >= 0"


def needs(*packages: str) -> pytest.MarkDecorator:
    absent = [one for one in packages if importlib.util.find_spec(one) is None]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


class Shell:
    """An IPython shell and the objects that its cells displayed."""

    def __init__(self, shell: Any, shown: list[Any]) -> None:
        self.shell, self.shown = shell, shown

    def run(self, cell: str) -> Any:
        """Run a cell like a user and return its result object."""
        self.shown.clear()
        return self.shell.run_cell(cell, store_history=True)

    def value(self, cell: str) -> Any:
        done = self.run(cell)
        done.raise_error()
        return done.result

    @property
    def variables(self) -> Any:
        return self.shell.user_ns


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Shell]:
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    ipython = InteractiveShell.instance(config=config)
    shown: list[Any] = []
    monkeypatch.setattr(notebook, "_show", shown.append)
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "-f", "/run/connection.json"])
    # A shell replaces the main module, which must be restored after the test.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    try:
        ipython.run_line_magic("load_ext", "unified_prof")
        yield Shell(ipython, shown)
    finally:
        ipython.run_line_magic("unload_ext", "unified_prof")
        atexit.unregister(ipython.atexit_operations)
        ipython.atexit_operations()
        InteractiveShell.clear_instance()


def rows(directory: Path, by: By) -> list[str]:
    (found,) = unified_prof.figures(directory, by=by)
    return [row.name for row in found.breakdown(by).rows]


@pytest.mark.slow
def test_cell_is_measured_displayed_and_assigned(shell: Shell) -> None:
    shell.value(MODEL)
    assert shell.value(f"%%uprof --warmup 1 --iterations 2\n{TRAIN}") is True
    profile = shell.variables["prof"]
    assert shell.shown == [profile]
    assert profile.summary.operations == 2
    assert "linear" in profile._repr_html_()
    # The line of the model in the cell that defines it: line numbers are the cell's own.
    assert rows(profile.directory, "line") == ["In [1]:10", "(no source line)"]
    facts = dict(unified_prof.figures(profile.directory)[0].summary.facts)
    assert facts["target"] == "notebook"
    assert "_uprof_block" not in shell.variables
    assert shell.variables["last"] >= 0, "variables of the cell are the notebook's"


def command_of(profile: Any) -> list[str]:
    facts = dict(unified_prof.figures(profile.directory)[0].summary.facts)
    found: list[str] = json.loads(facts["command"])
    return found


def test_reports_name_the_measured_cell_and_hide_secrets(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell.value("import torch\nx = torch.ones(3)\ndef run(x, api_key=''): return x.exp()")
    shell.value("%%uprof -q --scope project --include 'my lib'\nx.exp()")
    assert command_of(shell.variables["prof"]) == [
        *("In [2]", "%%uprof", "-q", "--scope", "project", "--include", "my lib")
    ]
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/user/work/train.ipynb")
    shell.value('%uprof -q --scope project run(x, api_key="s3cret s3cret")')
    assert command_of(shell.variables["prof"]) == [
        *("train.ipynb", "In [3]", "%uprof", "-q", "--scope", "project"),
        'run(x, api_key="***")',
    ]
    shell.value(
        "import unified_prof\n"
        f"with unified_prof.profile({str(tmp_path / 'out')!r}, scope='project') as own:\n"
        "    y = x.exp()"
    )
    assert command_of(shell.variables["own"]) == ["train.ipynb", "In [4]"]
    monkeypatch.delenv("JPY_SESSION_NAME")
    shell.variables["__vsc_ipynb_file__"] = "C:\\\\work\\\\edited.ipynb"
    shell.value("%%uprof -q --scope project\nx.exp()")
    assert command_of(shell.variables["prof"])[:2] == ["edited.ipynb", "In [5]"]


@pytest.mark.slow
def test_line_numbers_start_at_the_measured_cell(shell: Shell) -> None:
    shell.value("import torch\nx = torch.ones(3)")
    shell.value("%%uprof -q --scope project\n\ny = x.exp()\nz = y.sin()")
    assert set(rows(shell.variables["prof"].directory, "line")) == {"In [2]:3", "In [2]:4"}
    assert shell.shown == []


def test_repeated_cell_leaves_nothing_of_the_first_run(shell: Shell, tmp_path: Path) -> None:
    import torch

    shell.value(MODEL)
    plain = torch.nn.Linear.forward, torch.Tensor.relu, torch.optim.SGD.step
    cell = f"%%uprof -o '{tmp_path}/my out' --iterations 2\n{TRAIN}"
    for _ in range(2):
        shell.value(cell)
        assert set(rows(tmp_path / "my out", "operation")[:2]) == {"linear", "relu"}
        assert (torch.nn.Linear.forward, torch.Tensor.relu, torch.optim.SGD.step) == plain
    files = {"run_time.sqlite", "memory.sqlite"}
    assert {one.name for one in (tmp_path / "my out").glob("*.sqlite")} == files
    shell.value(cell.replace("--iterations 2", "--report run-time --iterations 2"))
    assert {one.name for one in (tmp_path / "my out").glob("*.sqlite")} == {"run_time.sqlite"}
    shell.value("%reload_ext unified_prof")
    shell.value(f"%%uprof --iterations 2 --into second\n{TRAIN}")
    assert len(shell.shown) == 1, "an extension loaded twice measures once"
    first = shell.variables["second"].directory
    assert first.is_dir()
    shell.shown.clear()
    shell.value("del second")
    gc.collect()
    assert not first.exists(), "the temporary directory is removed with its profile"


@pytest.mark.slow
def test_exception_has_no_uprof_frames(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    shell.value(MODEL)
    plain = torch.nn.Linear.forward
    done = shell.run("%%uprof\nstep()\nstep()\nraise ValueError('user error')")
    assert isinstance(done.error_in_exec, ValueError)
    shown = capsys.readouterr().out
    assert "----> 4 raise ValueError('user error')" in shown
    assert "unified_prof" not in shown
    assert "In[2], line 4" in shown
    assert torch.nn.Linear.forward is plain
    assert "ValueError: user error" in shell.variables["prof"].failure
    assert shell.shown == []
    assert shell.value(f"%%uprof --iterations 2\n{TRAIN}") is True
    assert isinstance(shell.run("%%uprof\nx = (").error_before_exec, SyntaxError)


def test_cell_may_await(shell: Shell) -> None:
    shell.value(f"{MODEL}\nimport asyncio")
    cell = "%%uprof --warmup 1 --iterations 2\nfor _ in range(8):\n    step()\n"
    cell += "    await asyncio.sleep(0)\n"
    assert shell.value(f"{cell}await asyncio.sleep(0, result=7)") == 7
    assert shell.variables["prof"].summary.matched_iterations == 2


@pytest.mark.slow
def test_future_imports_stay_first(shell: Shell) -> None:
    shell.value(MODEL)
    cell = "%%uprof -q\nfrom __future__ import annotations\ndef f(x: Missing): pass\nstep()\n3"
    assert shell.value(cell) == 3
    assert shell.variables["f"].__annotations__ == {"x": "Missing"}


def test_magics_work_in_a_measured_cell(shell: Shell) -> None:
    shell.value(MODEL)
    assert shell.value("%%uprof -q\nfound = %env HOME\nx = 3") is None
    assert shell.variables["found"]
    assert shell.value("# a comment\n'%%uprof is text here'") == "%%uprof is text here"


def test_statement_is_measured(shell: Shell) -> None:
    shell.value(MODEL)
    assert shell.value("%uprof -q --scope project --into p net(torch.ones(2, 4)).numel()") == 8
    assert shell.variables["p"].summary.operations == 3
    shell.value("%uprof -q y = net(torch.ones(2, 4))")
    assert tuple(shell.variables["y"].shape) == (2, 4)
    # The way that other magics call it.
    shell.value("get_ipython().run_cell_magic('uprof', '-q --into q', 'net(torch.ones(2, 4))')")
    assert shell.variables["q"].summary.operations == 2


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%uprof --bogus\n1", "unrecognized arguments: --bogus"),
        ("%%uprof --iterations x\n1", "invalid int value"),
        ("%%uprof --into 3x\n1", "not a variable name"),
        ("%%uprof -o 'a\n1", "No closing quotation"),
        ("%%uprof --device abacus\n1", "abacus"),
        ("%uprof", "nothing to measure"),
    ],
)
def test_invalid_magic_is_reported_without_a_traceback(
    shell: Shell, cell: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell.run(cell)
    assert words in str(done.error_in_exec)
    captured = capsys.readouterr()
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err + captured.out


def test_missing_torch_has_an_install_hint(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    done = shell.run("%%uprof\nran = True")
    assert "needs torch, which is not installed" in str(done.error_in_exec)
    assert "pip install 'unified-prof[torch]'" in str(done.error_in_exec)
    assert "ran" not in shell.variables


def test_cell_without_operations_is_not_an_error(shell: Shell) -> None:
    assert shell.value("%%uprof\n1 + 1") == 2
    assert shell.variables["prof"].failure is not None
    assert "incomplete" in shell.variables["prof"]._repr_html_()


def test_options_end_at_the_statement() -> None:
    assert notebook._split("-q --warmup 2 f(-x, '--y')") == ("-q --warmup 2", "f(-x, '--y')")
    assert notebook._split("--warmup=2 f()") == ("--warmup=2", "f()")
    assert notebook._split("f()") == ("", "f()")
    with pytest.raises(UsageError, match="unrecognized"):
        notebook._read("--what")


def test_cells_are_named_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cell_name("<ipython-input-12-0a1b2c>") == "In [12]"
    assert cell_name("/w/train.py") is None
    known = {"/tmp/ipykernel_7/99.py": ("Cell", "In[3]")}
    compiler = SimpleNamespace(format_code_name=known.get)
    for shell, name in (
        (SimpleNamespace(compile=compiler), "In [3]"),
        (None, "99.py"),
        (SimpleNamespace(compile=None), "99.py"),
    ):
        module = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", module)
        assert cell_name("/tmp/ipykernel_7/99.py") == name
    assert cell_name("/tmp/ipykernel_7/98.py") == "98.py"


CELLS = (
    "%load_ext unified_prof",
    MODEL,
    f"%%uprof --warmup 1 --iterations 2\n{TRAIN}",
    f"%%uprof --warmup 1 --iterations 2\n{TRAIN}",
    "import asyncio\nfor row in prof.summary.most_expensive:\n    print(row.location)",
    "%%uprof -q --iterations 2\nfor _ in range(6):\n    step()\n    await asyncio.sleep(0)",
    "%%uprof -q\nraise ValueError('user error')",
    "import unified_prof\nunified_prof.figures(prof.directory) if prof.files else 'none'",
)


@pytest.mark.slow
@needs("ipykernel", "nbclient", "nbformat")
def test_notebook_runs_in_a_real_kernel(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in CELLS])
    document.cells[6].metadata["tags"] = ["raises-exception"]
    client = NotebookClient(
        document,
        timeout=400,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [cell.outputs for cell in document.cells]
    for number in (2, 3):
        html = [
            one.data["text/html"] for one in outputs[number] if "text/html" in one.get("data", {})
        ]
        assert len(html) == 1
        assert "In [2]:10" in html[0]
        assert outputs[number][-1].data["text/plain"] == "True"
    assert "In [2]:10" in outputs[4][0].text
    assert outputs[5] == []
    (failed,) = outputs[6]
    assert failed.ename == "ValueError"
    assert "unified_prof" not in "".join(failed.traceback)
    assert list(tmp_path.iterdir()) == [], "no files beside the notebook"
    if importlib.util.find_spec("nbconvert") is not None:
        from nbconvert import HTMLExporter

        text, _ = HTMLExporter().from_notebook_node(document)
        assert "In [2]:10" in text


@pytest.mark.slow
def test_reports_are_read_without_torch_and_ipython(tmp_path: Path) -> None:
    from tests.analysis.builders import run_time_report

    run_time_report(tmp_path / "run_time.sqlite")
    program = (
        "import sys\n"
        "for name in ('torch', 'IPython'): sys.modules[name] = None\n"
        "import unified_prof\n"
        f"print(unified_prof.figures({str(tmp_path)!r})._repr_html_()[:4])\n"
    )
    done = python("-c", program, check=True)
    assert done.stdout == "<div\n"
