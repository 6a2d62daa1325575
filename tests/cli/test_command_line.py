"""Rules for all commands: variables named after options, help screens, examples."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.analysis.builders import run_time_report
from tests.processes import python
from unified_prof.backends import registry
from unified_prof.cli import app as app_module
from unified_prof.cli import run_options
from unified_prof.cli.app import app
from unified_prof.cli.command import option_help
from unified_prof.cli.examples import EXAMPLES

ROOT: Any = app


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every visible command and group with its path below `uprof`."""
    yield " ".join(path), group
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from commands(command, (*path, name))


COMMANDS = dict(commands())


def long_name(option: Any) -> str:
    """Return the long name of an option."""
    return str(next(name for name in option.opts if name.startswith("--")))


def settable(command: Any) -> list[Any]:
    """Return the options that affect what a command does, without help and completion."""
    options = [one for one in command.params if one.param_type_name == "option"]
    return [one for one in options if one.expose_value and not one.is_eager]


def parsed(path: str, arguments: tuple[str, ...] = ()) -> Any:
    """Return the context of a command after parsing its options and environment variables."""
    context = ROOT.make_context("uprof", [], resilient_parsing=True, auto_envvar_prefix="UPROF")
    command = ROOT
    for name in path.split():
        command = command.commands[name]
        context = command.make_context(
            name, list(arguments), parent=context, resilient_parsing=True
        )
    return context


OPTIONS = [
    pytest.param(path, option, id=f"{path} {long_name(option)}")
    for path, command in COMMANDS.items()
    if path
    for option in settable(command)
]


@pytest.mark.quick(cases=40)
@pytest.mark.parametrize(("path", "option"), OPTIONS)
def test_each_option_can_be_set_by_its_environment_variable(
    path: str, option: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{path} {long_name(option)[2:]}".replace(" ", "_").replace("-", "_").upper()
    choices = getattr(option.type, "choices", None)
    text = choices[-1] if choices else "1"
    monkeypatch.setenv(f"UPROF_{name}", text)
    context = parsed(path)
    assert context.get_parameter_source(option.name).name == "ENVIRONMENT"
    value = context.params[option.name]
    if option.is_flag:
        assert value is True
    else:
        value = value[0] if isinstance(value, list | tuple) else value
        assert str(getattr(value, "value", value)) in {text, f"{text}.0"}


@pytest.mark.parametrize(
    ("path", "variable", "value"),
    [
        ("gate", "UPROF_GATE_FORMAT", "junit"),
        ("diff", "UPROF_DIFF_FORMAT", "markdown"),
        ("diff", "UPROF_DIFF_ALL", "1"),
        ("gate", "UPROF_GATE_JSON", "true"),
        ("db upgrade", "UPROF_DB_UPGRADE_SCHEMA", "documented"),
        ("baseline save", "UPROF_BASELINE_SAVE_STORE", "x.sqlite"),
        ("run", "UPROF_RUN_TASK_TIME", "l1"),
    ],
)
def test_documented_environment_variables_are_read(
    path: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parsed(path).params
    monkeypatch.setenv(variable, value)
    assert parsed(path).params != before


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize(
    "variable",
    ["UPROF_VERSION", "UPROF_HELP", "UPROF_DB_HELP", "UPROF_DB_INFO_HELP",
     "UPROF_SHOW_COMPLETION"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["1", "0.1.0", "bash"])
def test_no_environment_variable_disables_a_command(variable: str, value: str) -> None:
    plain = CliRunner().invoke(app, ["db", "info", "--json"])
    with_it = CliRunner().invoke(app, ["db", "info", "--json"], env={variable: value})
    assert with_it.exit_code == plain.exit_code == 0
    assert with_it.stdout == plain.stdout
    assert "revisions" in with_it.stdout


def help_of(path: str, option: str = "--help") -> str:
    result = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(
        app, [*path.split(), option]
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("path", COMMANDS)
def test_help_fits_80_columns_and_lists_every_option(path: str) -> None:
    pages = {"--help", *(getattr(one, "shown_by", "--help") for one in COMMANDS[path].params)}
    text = "".join(help_of(path, page) for page in pages)
    assert max(map(len, text.splitlines())) <= 80
    assert "<" not in text
    assert "env var" not in text
    for option in settable(COMMANDS[path]):
        assert (long_name(option) in text) is not option.hidden, long_name(option)


@pytest.mark.parametrize("path", COMMANDS)
def test_help_contains_an_example_that_parses(path: str) -> None:
    text = help_of(path)
    assert "Examples:" in text
    for example, _ in EXAMPLES[path]:
        assert example in text
        program, *words = shlex.split(example.rpartition(" | ")[2])
        name = max((p for p in COMMANDS if " ".join(words).startswith(p)), key=len)
        arguments = words[len(name.split()) :]
        assert program == "uprof"
        command = COMMANDS[name]
        assert not hasattr(command, "commands")
        assert command.make_context(name, arguments) is not None
        assert name.startswith(path)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (click.Option(["-n", "--number"], type=int, default=5, help="N."), "N. [default: 5]"),
        (click.Option(["--where"], default="here"), " [default: here]"),
        (click.Option(["--where"], help="Where."), "Where."),
        (click.Option(["--name"], required=True, help="Name."), "Name. [required]"),
        (click.Option(["--quiet"], is_flag=True, help="Say less."), "Say less."),
    ],
)
def test_help_of_an_option_ends_with_its_default(option: click.Option, expected: str) -> None:
    assert option_help(option)[1] == expected


def test_examples_belong_to_commands() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("path", ["run", "report", "advise", "diff", "gate"])
def test_help_of_large_commands_fits_on_one_screen(path: str) -> None:
    assert len(help_of(path).splitlines()) <= 40


def test_rare_options_are_on_their_own_page() -> None:
    assert "--aic-metrics" not in help_of("run") + help_of("run", "--help-all")
    assert "--base-python" not in help_of("gate")
    assert "--base-python" in help_of("gate", "--help-all")
    assert "GITHUB_STEP_SUMMARY" in help_of("gate", "--help-all")
    assert "--help-all" not in help_of("db info")


def test_command_list_shows_the_summary_of_each_command() -> None:
    for name, summary in app_module.COMMANDS.items():
        assert ROOT.commands[name].get_short_help_str(limit=200) == summary


FORMER = {
    "build": "convert",
    "import": "convert",
    "trace": "export",
    "what-if": "advise --what-if",
    "time": "run --report time",
    "memory": "run --report memory",
    "recover": "db recover",
    "db current": "db info",
    "db history": "db info",
    "baseline list": "baseline show",
    "baseline history": "baseline show --history",
}


@pytest.mark.parametrize("path", FORMER)
def test_former_command_names_are_hidden_and_print_the_new_name(path: str) -> None:
    *groups, name = path.split()
    group = ROOT.commands[groups[0]] if groups else ROOT
    assert group.commands[name].hidden
    assert f"\n  {name} " not in help_of(" ".join(groups))
    assert any(command and FORMER[path].startswith(command) for command in COMMANDS)


def test_former_command_name_still_works(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["db", "history"])
    assert result.exit_code == 0
    assert result.stderr == "uprof: note: `uprof db history` is now `uprof db info`\n"
    assert result.stdout == CliRunner().invoke(app, ["db", "info"]).stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, with a run of the CPU and a script."""
    (tmp_path / "RUN").mkdir()
    for name in ("run_time", "memory"):
        run_time_report(tmp_path / "RUN" / f"{name}.sqlite")
    (tmp_path / "train.py").write_text("raise AssertionError\n")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("place")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_directory_that_takes_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app_module.main(["report", "RUN", "-o", "/proc/out.html"])
    assert end.value.code == 9
    assert "cannot write /proc/out.html: /proc is not writable" in capsys.readouterr().err


def test_report_may_have_the_name_of_its_command() -> None:
    backend = registry.make("cpu")
    assert run_options._reports("time,memory", backend) == ("run-time", "memory")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("script", "message"), [("nosuch.py", "no such script"), ("bad.py", "bad.py: SyntaxError: ")]
)
def test_wrong_script_is_reported_before_torch_is_imported(script: str, message: str) -> None:
    Path("bad.py").write_text("def broken(:\n")
    program = "import sys; from unified_prof.cli.app import main\n" + (
        f"try: main(['run', {script!r}])\nfinally: print('torch' in sys.modules)"
    )
    done = python("-c", program)
    assert done.stdout == "False\n"
    assert message in done.stderr
    assert "backend" not in done.stderr


def test_commands_are_listed_in_order_of_use() -> None:
    names = [name for name in ROOT.list_commands(None) if name in COMMANDS]
    assert names.index("gate") + 1 == names.index("baseline")
    assert names[-1] == "doctor"


def test_common_options_have_one_short_name_and_one_meaning() -> None:
    helps: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in settable(command):
            name = long_name(option)
            if name in ("--force", "--quiet", "--schema"):
                helps.setdefault(name, set()).add(option.help.partition(" [default")[0])
            short = {"--output": "-o", "--quiet": "-q"}.get(name)
            assert short is None or short in option.opts, (command.name, name)
            if option.opts[0] in ("-o", "-q"):
                assert name in ("--output", "--quiet")
    assert {name: len(texts) for name, texts in helps.items()} == dict.fromkeys(helps, 1)


# Commands whose only output is for programs, and `watch`, whose output is that of the script.
FOR_PROGRAMS = ("mcp", "lsp", "schema", "watch")


@pytest.mark.parametrize(
    "path",
    [p for p, c in COMMANDS.items() if p and not hasattr(c, "commands") and p not in FOR_PROGRAMS],
)
def test_commands_have_the_common_options_that_apply(path: str) -> None:
    names = {long_name(option) for option in settable(COMMANDS[path])}
    assert "--json" in names
    if path not in ("doctor", "db info"):
        assert "--quiet" in names
    if "--output" in names or path == "db create":
        assert "--force" in names


def test_former_name_of_schema_still_works() -> None:
    assert parsed("db upgrade", ("--to", "documented", "x.db")).params["to"] == "documented"
    assert "--to" not in help_of("db upgrade")


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_completes_commands_in_each_shell(shell: str) -> None:
    script = CliRunner().invoke(app, ["--show-completion", shell])
    assert script.exit_code == 0
    assert "_UPROF_COMPLETE" in script.stdout
    environment = {"_UPROF_COMPLETE": f"{shell}_complete", "COMP_WORDS": "uprof ga"}
    if shell == "fish":
        environment |= {"COMP_WORDS": "uprof", "COMP_CWORD": "ga"}
    program = "from unified_prof.cli.app import main; main()"
    found = python("-c", program, env={"COMP_CWORD": "1", **environment})
    assert "gate" in found.stdout


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, command in COMMANDS.items()
        if any("--output" in param.opts for param in command.params)
    ],
)
@pytest.mark.parametrize("words", [("-o", ""), ("--output=",)])
def test_empty_output_is_refused(
    path: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It would mean the current directory."""
    with pytest.raises(SystemExit) as end:
        app_module.main([*path.split(), *words, "path"])
    assert end.value.code == 2
    assert "-o is empty, expected a path [uprof:empty-output]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["report", ""], ["gate", "", ""], ["diff", "x", ""], ["view", ""], ["db", "check", ""],
     ["report", "x", "--with", ""], ["gate", "a", "b", "--base", ""], ["convert", ""]],
)  # fmt: skip
def test_empty_path_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unset shell variable would mean the current directory."""
    with pytest.raises(SystemExit) as end:
        app_module.main(words)
    assert end.value.code == 2
    assert "is empty, expected a path [uprof:empty-path]" in capsys.readouterr().err


def test_empty_argument_of_the_script_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app_module.main(["run", "--backend", "cpu", "no-such-script.py", "-o", ""])
    assert "empty-output" not in capsys.readouterr().err
