"""Several workloads at a time: `gate --workload`, `diff --workload`, `gate --until-sure`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_import import uprof
from tests.pipeline.test_rounds import machine as machine
from unified_prof.errors import UsageError
from unified_prof.pipeline import rounds
from unified_prof.pipeline.report_input import parse_workloads


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
