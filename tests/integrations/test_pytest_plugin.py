"""The pytest plugin: measurements, failures, and no effect on other sessions."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.conftest import ROOT
from tests.processes import python
from unified_prof.baselines import api
from unified_prof.baselines.store import MAX_NAME
from unified_prof.compare.comparable import TOTAL, Operations, Run
from unified_prof.errors import CaptureError
from unified_prof.integrations.pytest_uprof import fixture as measuring
from unified_prof.integrations.pytest_uprof import verdicts
from unified_prof.integrations.pytest_uprof.verdicts import Settings, stored_name

pytest_plugins = ["pytester"]

MODULE = "unified_prof.integrations.pytest_uprof"
IS_INSTALLED = any(one.value == MODULE for one in entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", MODULE)
AGAIN = """
import os
def again():
    assert "UPROF_PYTEST_RUN" not in os.environ
    with open("seen", "a+") as file:
        file.write("x")
    return os.path.getsize("seen") > 1
"""
MEASURE_AGAIN = verdicts.measure_again
HEAVY = ("torch", "numpy", "sqlalchemy", "alembic", "rich", "msgspec", "click")

ONE_STEP = """
def test_step(uprof):
    uprof.run(lambda: None)
"""


def run_of(milliseconds: float, generator: np.random.Generator, noise: float) -> Run:
    """Return a run of a process that has its own speed."""
    speed = math.exp(generator.normal(0, noise))
    times = milliseconds * 1e6 * speed * np.linspace(1, 1.01, 10)
    facts = {"device": "cpu: a model", "host": "here", "git_commit": "abc"}
    return Run(
        "", frozenset({"skyline-run-time"}), "operation", facts, Operations.none(), (),
        {TOTAL: times},
    )  # fmt: skip


class Sessions:
    """Sessions of the plugin in this process, whose steps have given times."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.path = pytester.path
        self.milliseconds = 10.0
        self.noise = 0.002
        self.device = "cpu: a model"
        self.runs_begun: list[str] = []
        self.settings: list[Settings] = []
        self.write = pytester.makepyfile
        self._pytester = pytester
        self._generator = np.random.default_rng(3)

    def run(self, *arguments: str) -> pytest.RunResult:
        options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
        return self._pytester.runpytest_inprocess(*PLUGIN, *options, *arguments)

    def baselines(self) -> list[str]:
        return baselines(self.path)

    def measured(self) -> Run:
        found = run_of(self.milliseconds, self._generator, self.noise)
        return replace(found, facts={**found.facts, "device": self.device})


@pytest.fixture
def sessions(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Sessions:
    """Return sessions of a file with ONE_STEP."""
    found = Sessions(pytester)
    found.write(ONE_STEP)

    def measure(
        self: measuring.Uprof, step: Callable[[], object], wanted: Settings, device: str | None
    ) -> Run:
        found.settings.append(wanted)
        step()
        return found.measured()

    def measure_again(
        item: pytest.Item, controller: object, number: int, of: int
    ) -> dict[str, Run]:
        found.runs_begun.append(f"{item.nodeid} {number}/{of}")
        used = [value for value in item.stash._storage.values() if hasattr(value, "_measured")]
        return {name: found.measured() for name in used[0]._measured}

    monkeypatch.setattr(measuring.Uprof, "_measure", measure)
    monkeypatch.setattr(verdicts, "measure_again", measure_again)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return found


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    return {name: count for name, count in result.parseoutcomes().items() if name != "warnings"}


def baselines(folder: Path) -> list[str]:
    store = str(folder / api.DEFAULT_STORE)
    return [f"{entry.name}@{entry.version}" for entry in api.entries(store)]


# Sessions that do not use the plugin


@pytest.mark.slow
@pytest.mark.fresh_interpreter
def test_plugin_import_is_light() -> None:
    code = f"import sys, {MODULE}; print([one for one in {HEAVY} if one in sys.modules])"
    done = python("-c", code, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_step_without_operations_fails_with_a_short_message(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_step(uprof):\n    uprof.run(lambda: sum(range(1000)))\n")
    result = pytester.runpytest_subprocess(*PLUGIN, "-q", "-p", "no:cacheprovider")
    assert_short_message(result, "run a model in this process")


def test_failure_has_a_short_message(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Run:
        raise CaptureError("no iteration was seen")

    monkeypatch.setattr(measuring.Uprof, "_measure", fail)
    assert_short_message(sessions.run("-q"), "no iteration was seen")


def assert_short_message(result: pytest.RunResult, words: str) -> None:
    output = result.stdout.str()
    assert words in output
    assert "unified_prof/pipeline" not in output
    assert len(output.splitlines()) < 25


def test_iteration_time_excludes_waiting() -> None:
    run = run_of(10.0, np.random.default_rng(1), 0.0)
    waited = {TOTAL: np.full(10, 4e6)}
    found = measuring._summary(replace(run, waited=waited))
    assert found.wall_ms == pytest.approx(10.05)
    assert found.iteration_ms == pytest.approx(6.05)


@pytest.mark.slow
@pytest.mark.fresh_interpreter
def test_sessions_without_the_fixture_are_unaffected(pytester: pytest.Pytester) -> None:
    # Heavy packages cannot be imported there.
    pytester.makeconftest(
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY}))\n"
        "def pytest_unconfigure(config):\n"
        "    ours = {one for one in sys.modules if one.startswith('unified_prof')}\n"
        "    assert ours <= {'unified_prof', 'unified_prof.version',"
        f" 'unified_prof.integrations', '{MODULE}', '{MODULE}.hooks'}}, ours\n"
    )
    pytester.makepyfile("def test_one():\n    pass\n")
    result = pytester.runpytest_subprocess(*PLUGIN, "-W", "error")
    assert result.ret == 0, result.stdout.str()
    assert outcomes(result) == {"passed": 1}
    result.stdout.no_fnmatch_line("*= uprof =*")
    assert not (pytester.path / ".uprof").exists()


@pytest.mark.slow
@pytest.mark.fresh_interpreter
def test_older_pytest_ignores_the_plugin() -> None:
    code = f"import pytest; del pytest.StashKey; import {MODULE} as it; print(hasattr(it, 'uprof'))"
    done = python("-c", code, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(not IS_INSTALLED, reason="the entry point of this checkout is not installed")
def test_plugin_can_be_disabled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one():\n    pass\ndef test_two(uprof):\n    pass\n")
    result = pytester.runpytest_inprocess("-p", "no:uprof")
    assert outcomes(result) == {"passed": 1, "errors": 1}
    result.stdout.fnmatch_lines(["*fixture 'uprof' not found*"])


@pytest.mark.fresh_interpreter
@pytest.mark.slow
def test_early_import_causes_no_pytest_warning(pytester: pytest.Pytester, tmp_path: Path) -> None:
    # Like an installed wheel, whose RECORD lists the package.
    installed = tmp_path / "site" / "unified_prof_of_test-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: unified_prof_of_test\nVersion: 1\n"
    )
    (installed / "RECORD").write_text("unified_prof/__init__.py,,\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\nof_test = {MODULE}\n")
    pytester.makepyfile("def test_one():\n    pass\n")
    code = (
        "import unified_prof, pytest, sys; sys.exit(pytest.main(['-W', 'error', '-p', 'no:uprof']))"
    )
    path = os.pathsep.join((str(installed.parent), os.environ["PYTHONPATH"]))
    done = python("-c", code, cwd=pytester.path, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unified_prof_of_test" in done.stdout


# Measurements and their settings


def test_measured_step_is_shown(sessions: Sessions) -> None:
    result = sessions.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*= uprof =*", "test*iteration", "*::test_step*ms"])
    assert sessions.runs_begun == [], "one run suffices without a comparison"
    assert not (sessions.path / ".uprof").exists()


def test_measured_times_are_returned(sessions: Sessions) -> None:
    sessions.write(
        "def test_step(uprof):\n"
        "    found = uprof.run(lambda: None)\n"
        "    assert 9 < found.iteration_ms < 11\n"
        "    assert found.forward_ms is None and found.peak_bytes is None\n"
        "    assert found.iterations == 10\n"
    )
    assert sessions.run().ret == 0


def test_call_overrides_marker_and_marker_overrides_options(sessions: Sessions) -> None:
    sessions.write(
        "import pytest\n"
        "@pytest.mark.uprof(warmup=4, iterations=6, max_regress='20%')\n"
        "class TestA:\n"
        "    def test_of_class(self, uprof):\n"
        "        uprof.run(lambda: None)\n"
        "    @pytest.mark.uprof(warmup=5)\n"
        "    def test_own(self, uprof):\n"
        "        uprof.run(lambda: None, iterations=7)\n"
        "def test_plain(uprof):\n"
        "    uprof.run(lambda: None)\n"
    )
    assert sessions.run("--uprof-warmup", "1", "--uprof-max-regress", "0.1").ret == 0
    assert [(one.warmup, one.iterations, one.max_regress) for one in sessions.settings] == [
        (4, 6, 0.2),
        (5, 7, 0.2),
        (1, 10, 0.1),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--uprof-max-regress", "5"], "*--uprof-max-regress 5 without a percent sign*"),
        (["--uprof-runs", "0"], "*--uprof-runs is 0, expected a number of at least 1*"),
        (["--uprof-metric", "speed"], "*speed*"),
        (["--uprof-save", "a:b"], "*'a:b': the name of a test baseline must not contain ':'*"),
        (["--uprof-save="], "*--uprof-save takes the name of a baseline*"),
        (["--uprof-compare", "."], "*--uprof-compare '.' looks like a path*"),
        (["--uprof-compare", "feature/x"], "*'feature/x' looks like a path*--uprof-compare=NAME*"),
        (["--uprof-save", "./"], "*--uprof-save './' looks like a path*"),
    ],
)
def test_options_are_checked_first(sessions: Sessions, arguments: list[str], message: str) -> None:
    result = sessions.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("uprof.run(3)", "*uprof.run expects a function that runs one step, not int*"),
        ("uprof.run(f); uprof.run(f)", "*this test has already measured a step*"),
        ("uprof.run(f, name='a'); uprof.run(f, name='a')", "*already measured a step 'a'*"),
        ("uprof.run(f, iterations=0)", "*iterations is 0*"),
        ("uprof.run(f, iterations=True)", "*iterations is True*"),
    ],
)
def test_invalid_calls_fail_their_test(sessions: Sessions, call: str, message: str) -> None:
    sessions.write(f"def f():\n    pass\ndef test_step(uprof):\n    {call}\n")
    result = sessions.run()
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines([message])


def test_unknown_marker_argument_is_an_error(sessions: Sessions) -> None:
    sessions.write("import pytest\n@pytest.mark.uprof(warmups=1)" + ONE_STEP)
    result = sessions.run("--strict-markers")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["*@pytest.mark.uprof: unknown argument 'warmups'*"])


# Verdicts


def test_unchanged_step_passes_and_a_slower_step_fails(sessions: Sessions) -> None:
    assert sessions.run("--uprof-save", "main").ret == 0
    assert [one.rpartition(" ")[2] for one in sessions.runs_begun] == ["2/3", "3/3"]
    assert outcomes(sessions.run("--uprof-compare", "main")) == {"passed": 1}
    sessions.milliseconds *= 1.5
    result = sessions.run("--uprof-compare", "main", "--junitxml=found.xml")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(
        [
            "uprof: regression of *::test_step against main@1",
            "  total: 10.* ms -> 15.* ms: *, above the limit",
            "*::test_step*regression*main@1*above the limit",
        ]
    )
    root = ElementTree.parse(sessions.path / "found.xml").getroot()
    found = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert found["uprof.outcome"] == "regression"
    assert found["uprof.baseline"] == "main@1"
    assert float(found["uprof.iteration_ns"] or 0) == pytest.approx(15e6, rel=0.02)
    assert "above the limit" in (found["uprof.reason"] or "")


@pytest.mark.slow
def test_baseline_may_be_named_like_a_branch(sessions: Sessions, pytester: pytest.Pytester) -> None:
    pytester.mkdir("main")
    for name in ("feature/x", "main"):
        assert sessions.run("--uprof-save", name).ret == 0
        assert sessions.run(f"--uprof-compare={name}").ret == 0
    assert [one.partition(":")[0] for one in sessions.baselines()] == ["feature/x", "main"]
    pytester.makeini("[pytest]\naddopts = --uprof-compare=feature/x")
    result = sessions.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_step*pass*feature/x@1*"])


def test_inconclusive_verdict_fails_only_on_request(sessions: Sessions) -> None:
    sessions.noise = 0.2
    sessions.run("--uprof-save", "main")
    sessions.milliseconds *= 1.2
    result = sessions.run("--uprof-compare", "main")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_step*inconclusive*main@1*the interval is*"])
    assert sessions.run("--uprof-compare", "main", "--uprof-fail-inconclusive").ret == 1


@pytest.mark.slow
def test_single_runs_detect_only_large_changes(sessions: Sessions) -> None:
    sessions.run("--uprof-save", "main", "--uprof-runs", "1")
    sessions.milliseconds *= 1.5
    result = sessions.run("--uprof-compare", "main", "--uprof-runs", "1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*inconclusive*one run per side does not show run-to-run variation*"]
    )
    sessions.milliseconds *= 3
    assert sessions.run("--uprof-compare", "main", "--uprof-runs", "1").ret == 1


@pytest.mark.slow
def test_limit_of_the_test_decides(sessions: Sessions) -> None:
    sessions.write("import pytest\n@pytest.mark.uprof(max_regress='60%')" + ONE_STEP)
    sessions.run("--uprof-save", "main")
    sessions.milliseconds *= 1.5
    assert sessions.run("--uprof-compare", "main").ret == 0


def test_without_a_baseline_passes_with_a_message(sessions: Sessions) -> None:
    result = sessions.run("--uprof-compare", "main")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*test_step*no baseline*", "not compared: no baseline main of these tests in *"]
    )
    assert not (sessions.path / ".uprof").exists(), "reading does not create a store"


@pytest.mark.slow
def test_newest_baseline_is_used_by_default(sessions: Sessions) -> None:
    sessions.run("--uprof-save", "old")
    sessions.milliseconds = 20.0
    sessions.run("--uprof-save", "new")
    result = sessions.run("--uprof-compare")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_step*pass*new@1*"])
    assert sessions.run("--uprof-compare", "old").ret == 1


@pytest.mark.slow
def test_baseline_of_another_device_is_not_compared(sessions: Sessions) -> None:
    sessions.run("--uprof-save", "main")
    sessions.device = "cuda: a card"
    sessions.milliseconds = 100.0
    result = sessions.run("--uprof-compare", "main")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*inconclusive*main@1 was measured on cpu: a model, this on cuda*"]
    )


def test_steps_of_a_test_are_distinguished_by_name(sessions: Sessions) -> None:
    sessions.write(
        "def test_both(uprof):\n"
        "    uprof.run(lambda: None, name='forward')\n"
        "    uprof.run(lambda: None, name='backward', runs=5)\n"
    )
    assert sessions.run("--uprof-save", "main", "--junitxml=found.xml").ret == 0
    assert sorted(one.rpartition("::")[2] for one in sessions.baselines()) == [
        "test_both (backward)@1",
        "test_both (forward)@1",
    ]
    assert len(sessions.runs_begun) == 4
    root = ElementTree.parse(sessions.path / "found.xml").getroot()
    assert {"uprof.forward.outcome", "uprof.backward.outcome"} <= {
        one.get("name") for one in root.iter("property")
    }


# Saved baselines


def test_failing_and_slower_tests_are_not_saved(sessions: Sessions) -> None:
    sessions.write(ONE_STEP + "def test_wrong(uprof):\n    uprof.run(lambda: None)\n    assert 0\n")
    result = sessions.run("--uprof-save", "main")
    assert outcomes(result) == {"passed": 1, "failed": 1}
    result.stdout.fnmatch_lines(["saved 1 of 1 as main in *"])
    sessions.milliseconds *= 1.5
    result = sessions.run("--uprof-save", "main", "--uprof-compare", "main", "-k", "step")
    result.stdout.fnmatch_lines(["not saved: no passed test has results"])
    assert [one.rpartition("@")[2] for one in sessions.baselines()] == ["1"]


def test_error_of_a_step_fails_its_test(sessions: Sessions) -> None:
    sessions.write("def test_step(uprof):\n    uprof.run(lambda: 1 / 0)\n")
    result = sessions.run("--uprof-save", "main")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["*ZeroDivisionError*"])


@pytest.mark.slow
def test_interrupted_session_saves_no_baseline(
    sessions: Sessions, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions.write(ONE_STEP + "def test_two():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        sessions.run("--uprof-save", "main")
    found = capsys.readouterr().out
    assert "test_step" in found
    assert "not saved: the session was interrupted" in found
    assert not (sessions.path / ".uprof").exists()


def test_unwritable_store_is_an_error(sessions: Sessions) -> None:
    (sessions.path / "file").write_text("no folder")
    result = sessions.run("--uprof-save", "main", "--uprof-store", "file/baselines.sqlite")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["not saved: *file/baselines.sqlite*"])


def test_file_that_is_not_a_store_fails_the_comparison(sessions: Sessions) -> None:
    (sessions.path / "store").write_bytes(b"not a database, but long enough to be looked at" * 9)
    result = sessions.run("--uprof-compare", "main", "--uprof-store", "store")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["uprof: the store store cannot be used: *"])


def test_failing_repetition_fails(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(item: pytest.Item, controller: object, number: int, of: int) -> dict[str, Run]:
        raise CaptureError("run 2 of 3 failed", hint="runs=1")

    monkeypatch.setattr(verdicts, "measure_again", fail)
    result = sessions.run("--uprof-save", "main")
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["uprof: run 2 of 3 failed*", "hint: runs=1"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("uprof.run(lambda: None)", None),
        (
            "uprof.run(lambda: None)\n    assert not again()",
            "code 1 and no measurement:*",
        ),
        ("again() or uprof.run(int)", "code 0 and measured nothing:*"),
        ("uprof.run(int, name=str(again()))", "not measure step 'False'*"),
    ],
)
def test_repeated_measurement_is_of_one_test_with_the_options_of_the_session(
    body: str,
    message: str | None,
    sessions: Sessions,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], *, env: dict[str, str], **options: Any) -> object:
        commands.append(command)
        assert (command[0], options["cwd"]) == (sys.executable, pytester.path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(verdicts.ENVIRONMENT, env[verdicts.ENVIRONMENT])
            done = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist", *command[3:])
        return subprocess.CompletedProcess(command, done.ret, "\n".join(done.outlines))

    monkeypatch.setattr(verdicts, "measure_again", MEASURE_AGAIN)
    monkeypatch.setattr(
        verdicts, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": start})
    )
    sessions.write(f"{AGAIN}def test_other():\n    pass\ndef test_step(uprof):\n    {body}\n")
    result = sessions.run("--uprof-save", "main", "--uprof-runs", "3", "--junitxml", "one.xml")
    if message is not None:
        assert outcomes(result) == {"failed": 1, "passed": 1}
        result.stdout.fnmatch_lines([f"*{message}"])
        return
    assert outcomes(result) == {"passed": 2}
    assert len(commands) == 2
    assert len(sessions.settings) == 3
    assert [entry.samples for entry in api.entries(str(sessions.path / api.DEFAULT_STORE))] == [30]
    assert "uprof.iteration_ns" in (sessions.path / "one.xml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_unusual_test_names_are_stored(sessions: Sessions, pytester: pytest.Pytester) -> None:
    package = pytester.mkpydir("package")
    (package / "test_names.py").write_text(
        "import pytest\n"
        "LONG = 'x' * 3000\n"
        "@pytest.fixture(scope='class')\n"
        "def model():\n"
        "    return object()\n"
        "class TestNames:\n"
        "    @pytest.mark.parametrize('name', ['a', 'a@2', '[::]', 'ü\\n', '', LONG, LONG + 'y'])\n"
        "    def test_step(self, model, uprof, name):\n"
        "        uprof.run(lambda: None)\n",
        encoding="utf-8",
    )
    result = sessions.run("package", "--uprof-save", "main", "--uprof-runs", "2")
    assert outcomes(result) == {"passed": 7}
    assert len(sessions.baselines()) == 7
    result = sessions.run("package", "--uprof-compare", "main", "--uprof-runs", "2")
    assert outcomes(result) == {"passed": 7}
    result.stdout.no_fnmatch_line("*no baseline*")


@settings(max_examples=30)
@given(st.lists(st.text(max_size=300), unique=True, min_size=2, max_size=5))
def test_stored_names_are_short_printable_and_unique(tests: list[str]) -> None:
    found = [stored_name("main", test) for test in tests]
    assert len(set(found)) == len(tests)
    for name, test in zip(found, tests, strict=True):
        assert len(name) <= MAX_NAME
        assert name.isprintable()
        assert name.startswith("main:")
        if test.isprintable() and len(test) < MAX_NAME - 5:
            assert name == f"main:{test}"
