"""Settings: a command of its own, so that the tests depend on no real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from unified_prof.cli import config
from unified_prof.errors import UsageError

app = typer.Typer(context_settings={"auto_envvar_prefix": "UPROF"})


@app.callback()
def root(context: typer.Context) -> None:
    if (path := config.find(Path.cwd())) is not None:
        context.default_map = config.defaults(path, context.command)


@app.command()
def gate(
    max_regress: str = typer.Option("5%"),
    metric: list[str] = typer.Option([]),  # noqa: B008 (Typer's own protocol)
    color: bool = typer.Option(False, "--color/--no-color"),
) -> None:
    typer.echo(f"{max_regress} {','.join(metric)} {color}")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path / "pyproject.toml"


def test_options_beat_variables_beat_the_file_beats_the_default(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("gate") == "5%  False"
    project.write_text(
        "[tool.uprof.gate]\nmax-regress = '7%'\nmetric = ['total', 'forward']\ncolor = true\n"
    )
    assert run("gate") == "7% total,forward True"
    monkeypatch.setenv("UPROF_GATE_MAX_REGRESS", "9%")
    assert run("gate") == "9% total,forward True"
    assert run("gate", "--max-regress", "1%", "--metric", "peak", "--no-color") == "1% peak False"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tool.uprof.gate]\nspeed = 1\n", "has no setting 'speed'"),
        ("[tool.uprof.race]\n", "has no setting 'race'"),
        ("[tool.uprof.gate]\nmetric = [{}]\n", "a list cannot be the value"),
        ("[tool.uprof.gate\n", "not a TOML file"),
        ("[tool]\nuprof = 3\n#tool.uprof", "not a table"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_names_the_file(
    project: Path, text: str, complaint: str
) -> None:
    project.write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        run("gate")
    assert str(project) in str(caught.value)
