"""Several workloads at a time: `gate --workload`, `diff --workload`, `gate --until-sure`."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.test_import import uprof
from tests.pipeline.test_rounds import machine as machine
from tests.pipeline.test_rounds import write
from unified_prof.errors import UsageError
from unified_prof.pipeline import rounds
from unified_prof.pipeline.report_input import parse_workloads


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write three runs per side of two workloads, one slower by a third; return the options."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = []
    for name, base, new in (("mlp", 10.0, 13.3), ("cnn", 40.0, 40.0)):
        for number in (1, 2, 3):
            write(tmp_path / f"base/{name}-{number}", base * (1 + number / 1000))
            write(tmp_path / f"new/{name}-{number}", new * (1 + number / 1000))
            options += ["--workload", f"{name}=base/{name}-{number}:new/{name}-{number}"]
    return options


def test_gate_judges_each_and_total(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("gate", *reports) == 1
    out = capsys.readouterr().out
    assert out.startswith("uprof gate: regression\n")
    rows = [line.split()[:4] for line in out.partition("\n\n")[2].splitlines()]
    assert rows[0] == ["workload", "metric", "outcome", "base"]
    assert rows[1][:3] == ["mlp", "total", "regression"]
    assert rows[2][:3] == ["cnn", "total", "pass"]
    assert rows[3] == ["geometric", "mean", "total", "regression"]
    assert "20.1 ms -> 23.2 ms" in out
    assert "+15.3 %" in out


def test_every_format_has_verdicts(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("gate", *reports, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "regression"
    outcomes = {name: one["outcome"] for name, one in found["workloads"].items()}
    assert outcomes == {"mlp": "regression", "cnn": "pass"}
    assert found["geometric_mean"][0]["shift"]["ratio"] == pytest.approx(1.33**0.5)
    assert uprof("gate", *reports, "--format", "junit") == 1
    root = ElementTree.fromstring(capsys.readouterr().out)
    suites = {one.get("name"): one.get("failures") for one in root.iter("testsuite")}
    failures = {"mlp": "1", "cnn": "0", "geometric mean": "1"}
    assert suites == {f"uprof gate {name}": count for name, count in failures.items()}
    assert uprof("gate", *reports, "-o", "verdict.md") == 1
    text = Path("verdict.md").read_text(encoding="utf-8")
    assert text.startswith("## ❌ uprof gate\\: regression\n")
    assert "| mlp | total | regression |" in text


def test_diff_shows_the_mean_of_all(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("diff", *reports) == 0
    out = capsys.readouterr().out
    assert out.startswith("geometric mean of mlp, cnn\ntotal ")
    assert "+15.3 %" in out.splitlines()[1]
    assert "\nmlp: base/mlp-1, base/mlp-2, base/mlp-3 -> " in out
    assert "\ncnn: base/cnn-1" in out
    assert uprof("diff", *reports, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["geometric_mean"]["total"]["verdict"] == "slower"
    assert list(found["workloads"]) == ["mlp", "cnn"]
    assert uprof("diff", *reports, "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("## geometric mean of mlp, cnn\n\n- **total**: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gate", "--workload", "mlp"], "NAME=BASE:NEW"),
        (["gate", "--workload", "mlp=base"], "NAME=BASE:NEW"),
        (["gate", "--workload", "=a:b"], "NAME=BASE:NEW"),
        (["gate", "--workload", "a=b:"], "no two existing paths"),
        (["gate", "--workload", "a=b:c", "base", "new"], "cannot be combined with BASE"),
        (["gate", "--workload", "a=b:c", "--baseline", "main"], "cannot be combined with BASE"),
        (
            ["gate", "--workload", "a=b:c", "--self-test", "x.py"],
            "cannot be combined with --until-sure",
        ),
        (["diff", "--workload", "a=b:c", "base"], "cannot be combined with BASE"),
        (["diff", "--workload", "a=b:c", "--format", "html"], "supports one comparison"),
        (["diff", "base"], "BASE and NEW"),
        (["diff"], "BASE and NEW"),
    ],
)
def test_invalid_workload_arguments_are_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uprof(*arguments) == 2
    assert message in capsys.readouterr().err


def test_workload_paths_may_contain_colons(place: Path) -> None:
    for name in ("a:b", "c", "a", "b:c", "only:one"):
        Path(name).mkdir()
    assert parse_workloads(["w=only:one:c"])["w"] == ([Path("only:one")], [Path("c")])
    with pytest.raises(UsageError, match="more than one pair"):
        parse_workloads(["w=a:b:c"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train.py --lr=0.1", {"train": "train.py --lr=0.1"}),
        ("mlp=train.py\n\n# none\n cnn=x.py 1", {"mlp": "train.py", "cnn": ""}),
        ("a/b.py --x\n--backend cpu -m pkg.train 3", {"b": "a/b.py --x", "pkg.train": ""}),
        ("./run", {"workload": "./run"}),
    ],
)
def test_commands_can_be_named(text: str, found: dict[str, str]) -> None:
    commands = rounds.commands(text)
    assert next(iter(commands.items())) == next(iter(found.items()))
    assert len(commands) == len(found)


def test_duplicate_command_names_are_refused() -> None:
    with pytest.raises(UsageError, match="have the name 'train'"):
        rounds.commands("train.py 1\ntrain.py 2")


def test_until_sure_runs_every_workload_in_every_round(
    machine: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = machine(0.005, old=10.0, new=12.0)
    commands = "mlp=train.py --model mlp\ncnn=train.py --model cnn"
    code = uprof("gate", "old", "new", "--until-sure", commands, "--keep", "kept")
    out = capsys.readouterr().out
    assert code == 1
    assert out.count("regression  ") == 3
    assert measured == ["old", "new"] * 2 * 3, "both workloads in each of three rounds"
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["cnn", "mlp"]
    assert len(list((tmp_path / "kept" / "mlp").iterdir())) == 6


def test_single_command_can_be_named(
    machine: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(0.005, old=10.0, new=12.0)
    assert uprof("gate", "old", "new", "--until-sure", "mlp=train.py", "--json") == 1
    assert json.loads(capsys.readouterr().out)["new"] == "new (3 runs)"
