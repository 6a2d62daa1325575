"""Settings files, with a test command."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from tests.analysis.builders import run_time_report
from tests.cli.test_report import uprof as uprof_command
from unified_prof.cli import app as app_module
from unified_prof.cli.app import app as uprof
from unified_prof.cli.app import main
from unified_prof.cli.command import Group, Option, option
from unified_prof.errors import UsageError


@click.pass_context
def root(context: click.Context) -> None:
    if (path := app_module.find_settings(Path.cwd())) is not None:
        context.default_map = app_module.read_settings(path, context.command)


app = Group(callback=root, context_settings={"auto_envvar_prefix": "UPROF"})


@app.command()
def gate(
    max_regress: Annotated[str, option()] = "5%",
    metric: Annotated[list[str] | None, option()] = None,
    strict: Annotated[bool, option("", "--strict/--no-strict")] = False,
) -> None:
    click.echo(f"{max_regress} {','.join(metric or [])} {strict}")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path / "pyproject.toml"


def test_precedence_is_option_then_variable_then_file_then_default(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("gate") == "5%  False"
    project.write_text(
        "[tool.uprof.gate]\nmax-regress = '7%'\nmetric = ['total', 'forward']\nstrict = true\n"
    )
    assert run("gate") == "7% total,forward True"
    monkeypatch.setenv("UPROF_GATE_MAX_REGRESS", "9%")
    assert run("gate") == "9% total,forward True"
    assert run("gate", "--max-regress", "1%", "--metric", "peak", "--no-strict") == "1% peak False"


def test_wrong_value_that_is_not_on_the_command_line_names_its_place(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_text("[tool.uprof.report]\ntop = 'many'\n")
    assert f"it is set in {project}" in uprof_command("report", project).stderr
    monkeypatch.setenv("UPROF_REPORT_TOP", "few")
    assert (
        "it is set in the environment variable UPROF_REPORT_TOP"
        in uprof_command("report", project).stderr
    )
    assert "`uprof report --help`" in uprof_command("report", project, "--top", "0").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.uprof.gate]\nspeed = 1\n", "unknown setting 'speed'"),
        ("[tool.uprof.race]\n", "unknown setting 'race'"),
        ("[tool.uprof.gate]\nmetric = [{}]\n", "unexpected type list"),
        ("[tool.uprof.gate\n", "not a TOML file"),
        ("[tool]\nuprof = 3\n#tool.uprof", "not a table"),
    ],
)
def test_invalid_setting_is_refused_with_the_file(project: Path, text: str, message: str) -> None:
    project.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        run("gate")
    assert str(project) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "tool.uprof.gate.max-regress = '7%'\n",
        "tool . uprof . gate . max-regress = '7%'\n",
        "[tool]\nuprof.gate = {max-regress = '7%'}\n",
        "[tool]\nuprof = {gate = {'max-regress' = '7%'}}\n",
        "[ tool . uprof . gate ]\nmax-regress = '7%'\n",
        '["tool"."uprof"."gate"]\n"max-regress" = "7%"\n',
        "['tool'.'uprof']\ngate.max-regress = '7%'\n",
        '["tool"."\\u0075prof"."gate"]\nmax-regress = "7%"\n',
        "[tool.\tuprof.gate]\r\nmax-regress = '7%'\r\n",
    ],
)
def test_every_toml_syntax_is_accepted(project: Path, text: str) -> None:
    project.write_bytes(text.encode())
    assert run("gate") == "7%  False"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool = 1\n# uprof\n", "`tool` is not a table"),
        ("a = " + "[" * 50_000 + "]" * 50_000 + "\n# uprof\n", "nested too deeply|not a TOML file"),
        ("[tool.uprof]\ngate = 1\n", "gate: expected a table of settings"),
        ("[tool.uprof]\nhelp = true\n", "unknown setting 'help'"),
        (f"a = {'9' * 5000}\n# uprof\n", "not a TOML file: Exceeds the limit"),
        (f"[tool.uprof.gate]\nmetric = [0x{'f' * 9999}]\n", "an integer has more than 64 bits"),
        (f"[tool.uprof.devices.x]\nbf16 = 0x{'f' * 9999}\n", "an integer has more than 64 bits"),
        ("[tool.uprof.devices.x]\nuncertain = [[1]]\n", "is not a list of figures"),
    ],
)
def test_malformed_file_is_refused_with_a_message(project: Path, text: str, message: str) -> None:
    project.write_text(text)
    with pytest.raises(UsageError, match=message):
        run("gate")


def test_unreadable_file_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    project.write_text("")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"pyproject\.toml cannot be read: Permission denied"):
        run("gate")


@pytest.mark.parametrize("root", [".git", ".hg", "home"])
def test_settings_above_the_repository_or_home_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    inner = tmp_path / "repository" / "below" / "deeper"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.uprof.gate]\nmax-regress = '7%'\n")
    monkeypatch.chdir(inner)
    assert run("gate") == "7%  False"
    if root == "home":
        monkeypatch.setenv("HOME", str(tmp_path / "repository"))
    else:
        (tmp_path / "repository" / root).mkdir()
    assert run("gate") == "5%  False"
    (tmp_path / "repository" / "pyproject.toml").write_text(
        "[tool.uprof.gate]\nmax-regress = '8%'\n"
    )
    assert run("gate") == "8%  False"


def test_git_worktree_counts_as_a_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "worktree").mkdir()
    (tmp_path / "worktree" / ".git").write_text("gitdir: elsewhere\n")
    assert app_module.find_settings(tmp_path / "worktree") is None


def test_settings_cannot_disable_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("version", "show-completion", "help"):
        project.write_text(f"[tool.uprof]\n{setting} = true\n")
        result = CliRunner().invoke(uprof, ["db", "history"])
        assert isinstance(result.exception, UsageError)


# Why these options are refused in pyproject.toml; every other option is in PROJECT_SETTINGS.
UNTRUSTED = {
    "writes or replaces a file": "output force no-backup keep log-file",
    "runs a program, or passes it arguments": (
        "until-sure self-test base-python new-python module npu msprof-arg pid dask allow-run"
    ),
    "lets other programs read a directory": "root run",
    "replaces the command": "attach",
    "connects to an address": "store scheduler export",
    "copies local files into a report": "embed-source",
    "turns off a protection": "raw",
}


def settings_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield (command, subcommand, ..., option) for each option that can be set."""
    for parameter in command.params:
        if isinstance(parameter, Option) and parameter.is_setting:
            names = (*parameter.opts, *parameter.secondary_opts)
            yield from ((*path, name[2:]) for name in names if name.startswith("--"))
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from settings_of(subcommand, (*path, name))


REFUSED = {name for names in UNTRUSTED.values() for name in names.split()}


def test_project_file_sets_only_options_that_are_listed_as_harmless(project: Path) -> None:
    """A new option is in neither list, so that someone has to decide."""
    known = [*settings_of(uprof)]
    assert not REFUSED & app_module.PROJECT_SETTINGS
    assert {name for *_, name in known} == REFUSED | app_module.PROJECT_SETTINGS
    for *path, name in known:
        project.write_text(f"[{'.'.join(['tool', 'uprof', *path])}]\n{name} = 'x'\n")
        if name not in REFUSED:
            assert app_module.read_settings(project, uprof)
            continue
        with pytest.raises(UsageError, match="not accepted from pyproject") as error:
            app_module.read_settings(project, uprof)
        assert error.value.slug == "untrusted-setting"


PROGRAMS = UNTRUSTED["runs a program, or passes it arguments"].split()
# Arguments with which a command would use the setting; the path of a report for all others.
ARGUMENTS = {
    "gate": (".", "."),
    "diff": ("victim.sqlite", "victim.sqlite"),
    **dict.fromkeys(("run", "time", "memory"), ("harmless.py",)),
}


@pytest.mark.quick(cases=12)
@pytest.mark.parametrize("setting", [one for one in settings_of(uprof) if one[-1] in REFUSED])
def test_command_in_a_hostile_project_ends_before_it_writes_runs_or_connects(
    setting: tuple[str, ...], project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    *path, name = setting
    folder = Path.cwd()
    run_time_report(folder / "victim.sqlite")
    (folder / "harmless.py").touch()
    (folder / "evil.py").write_text("open('ran', 'w').close()")
    before = {one: one.read_bytes() for one in folder.iterdir()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        values = {
            **dict.fromkeys(PROGRAMS, '"evil.py"'),
            **dict.fromkeys(("output", "log-file"), '"victim.sqlite"'),
            "store": f'"postgresql://{address}/x"',
            "scheduler": f'"tcp://{address}"',
        }
        lines = [f"[{'.'.join(['tool', 'uprof', *path])}]", f"{name} = {values.get(name, 'true')}"]
        if name != "force" and (*path, "force") in settings_of(uprof):
            lines.append("force = true")
        project.write_text("\n".join(lines))
        with pytest.raises(SystemExit) as ended:
            main([*path, *ARGUMENTS.get(path[0], ("victim.sqlite",))])
        assert ended.value.code == 2
        assert f"{name}: not accepted from pyproject.toml" in capfd.readouterr().err
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert {one: one.read_bytes() for one in folder.iterdir()} == before
