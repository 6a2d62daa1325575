"""`uprof run` in this process, with a backend that returns prepared records."""

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.backends import toy
from tests.records import tracked_run
from unified_prof.backends import registry
from unified_prof.backends.msprof_plan import OPTIONS
from unified_prof.base.run_spec import Capture, RunSpec
from unified_prof.cli.app import main

SCRIPT = """\
import os
import sys
from pathlib import Path

print("said by the workload")
Path("arguments").write_text("|".join(sys.argv[1:]))
"""


class Recording(toy.ToyBackend):
    """Stores the specification of the run."""

    name = "recording"
    specs: list[RunSpec] = []  # noqa: RUF012 (shared with the test)
    result = Capture(0, tracked_run())

    def run(self, spec: RunSpec) -> Capture:
        self.specs.append(spec)
        return self.result


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(SCRIPT)
    here = __name__
    toy.install(
        monkeypatch,
        toy="tests.backends.toy:ToyBackend",
        recording=f"{here}:Recording",
        off="tests.backends.toy:UnavailableBackend",
    )
    monkeypatch.setattr(Recording, "specs", [])
    return tmp_path


def uprof(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    return int(ended.value.code or 0)


def spec_of(*arguments: str) -> RunSpec:
    assert uprof("--backend", "recording", "-o", "out", *arguments) == 0
    (spec,) = Recording.specs
    return spec


def test_arguments_after_the_script_belong_to_the_script(place: Path) -> None:
    code = uprof("--backend", "toy", "-o", "out", "work.py", "-o", "x", "--json", "--", "-h")
    assert code == 0
    assert (place / "arguments").read_text() == "-o|x|--json|--|-h"


def test_double_dash_ends_the_options_of_uprof() -> None:
    spec = spec_of("--", "-odd.py", "--force")
    assert (spec.target, spec.is_module, spec.arguments) == ("-odd.py", False, ("--force",))


def test_arguments_after_a_module_belong_to_the_module() -> None:
    spec = spec_of("-m", "pkg.train", "--warmup", "9", "-q")
    assert (spec.target, spec.is_module) == ("pkg.train", True)
    assert spec.arguments == ("--warmup", "9", "-q")
    assert spec.warmup == 2


def test_options_reach_the_backend(place: Path) -> None:
    (place / "proj").mkdir()
    spec = spec_of(
        *("--report", "memory", "--warmup", "0", "--iterations", "4"),
        *("--project-root", "proj", "--scope", "project", "--stop-after"),
        *("--include", "mine.nets", "--include", "theirs", "work.py"),
    )
    assert spec.include == ("mine.nets", "theirs")
    assert spec.reports == ("memory",)
    assert (spec.warmup, spec.iterations) == (0, 4)
    assert spec.project_root == place / "proj"
    assert (spec.scope, spec.stop_after) == ("project", True)


def test_project_is_the_working_directory_or_that_of_the_script(place: Path) -> None:
    (place / "sub").mkdir()
    assert spec_of("sub/train.py").project_root == place
    Recording.specs.clear()
    elsewhere = place.parent / "elsewhere.py"
    assert uprof("--backend", "recording", "-o", "out2", str(elsewhere)) == 0
    assert Recording.specs[0].project_root == place.parent


def test_messages_go_to_stderr_stdout_is_the_workloads(capfd: pytest.CaptureFixture[str]) -> None:
    assert uprof("--backend", "toy", "-o", "out", "work.py") == 0
    out, err = capfd.readouterr()
    assert out == "said by the workload\n"
    for text in (
        "cpu: a processor",
        "median 22.0 ms, max 24.0 ms (n = 2)\n",
        "\nforward     9.00 ms  40.9 %",
        "peak 2.93 KiB",
        "net.py:11",
        "iterations unmatched",
        "out/run_time.sqlite",
        "out/memory.sqlite",
    ):
        assert text in err


def test_json_is_the_only_output_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert uprof("--backend", "toy", "-o", "out", "--json", "-q", "work.py") == 0
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["files"] == {"run-time": ["out/run_time.sqlite"], "memory": ["out/memory.sqlite"]}
    assert answer["summary"]["forward_ms"] == 9.0
    assert answer["summary"]["most_expensive"][0]["location"] == "net.py:11"
    assert err == "said by the workload\n"


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert uprof("--backend", "recording", "-o", "out", "-q", "work.py") == 0
    assert capfd.readouterr() == ("", "")


def test_exit_code_is_that_of_the_workload(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "work.py").write_text("import sys\nsys.exit(42)\n")
    assert uprof("--backend", "toy", "-o", "out", "--json", "work.py") == 42
    assert json.loads(capfd.readouterr().out)["exit_code"] == 42


def test_partial_measurement_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    capture = Capture(130, tracked_run(complete=False), failure="interrupted after 3 iterations")
    monkeypatch.setattr(Recording, "result", capture)
    assert uprof("--backend", "recording", "-o", "out", "-q", "work.py") == 130
    assert capfd.readouterr().err == "uprof: interrupted after 3 iterations\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-q"], 2, "no workload given"),
        (["--backend", "tpu", "work.py"], 2, "unknown backend 'tpu'"),
        (["--backend", "off", "work.py"], 4, "is not available: switched off"),
        (["--backend", "toy", "--report", "disk", "work.py"], 2, "unknown report 'disk'"),
        (["--backend", "toy", "--report", ",", "work.py"], 2, "--report is empty"),
        (["--backend", "toy", "--report", "timeline", "work.py"], 2, "cannot produce"),
        (["--backend", "toy", "--project-root", "none", "work.py"], 2, "none is not a directory"),
        (["--backend", "toy", "-o", "work.py", "work.py"], 9, "is not a directory"),
        (["--backend", "toy", "none.py"], 2, "none.py does not exist"),
        (["--backend", "cpu", "--task-time", "l1", "work.py"], 2, "no option --task-time"),
        (["--backend=cpu", "--report=timeline", "--schema=0", "work.py"], 2, "no revision '0'"),
        (["--backend", "toy", "--dry-run", "work.py"], 2, "there is no command"),
        (["--backend", "npu", "--dry-run", "--ge-api=l7", "work.py"], 2, "found 'l7'"),
        (["--backend", "npu", "--pid", "1", "work.py"], 2, "takes no workload"),
        (["--iterations", "0", "work.py"], 2, "--iterations"),
        (["--no-such-option", "work.py"], 2, "--no-such-option"),
    ],
)
def test_usage_error_prints_one_message(
    arguments: list[str], code: int, words: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.iterdir())
    assert uprof(*arguments) == code
    err = capfd.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert sorted(place.iterdir()) == before


def test_existing_report_is_replaced_only_with_force(capfd: pytest.CaptureFixture[str]) -> None:
    once = ("--backend", "toy", "-o", "out", "-q")
    assert uprof(*once, "work.py") == 0
    assert uprof(*once, "work.py") == 9
    assert "overwrite it with --force" in capfd.readouterr().err
    assert uprof(*once, "--force", "work.py") == 0


def test_auto_prints_the_chosen_backend(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "choose", Recording)
    assert uprof("-o", "out", "work.py") == 0
    assert "uprof: backend recording\n" in capfd.readouterr().err


def test_progress_line_is_printed_only_on_terminals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(self: Recording, spec: RunSpec) -> Capture:
        spec.progress("iteration 1 of 3")
        return self.result

    monkeypatch.setattr(Recording, "run", run)
    assert uprof("--backend", "recording", "-o", "out", "work.py") == 0
    assert "iteration 1 of 3" not in capfd.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert uprof("--backend", "recording", "-o", "out", "--force", "work.py") == 0
    assert "\r\x1b[Kuprof: iteration 1 of 3\r\r\x1b[K" in capfd.readouterr().err


def test_sigterm_ends_workload_like_an_exit(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    (place / "work.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    monkeypatch.setattr("unified_prof.base.signals.end_process", sys.exit)
    assert uprof("--backend", "toy", "-o", "out", "work.py") == -signal.SIGTERM
    assert (place / "out" / "run_time.sqlite").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_dry_run_only_prints_the_command(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.iterdir())
    options = ("--preset=minimal", "--aic-metrics", "Memory", "--msprof-arg=--dvpp=on")
    assert uprof("--backend", "npu", "--dry-run", "-o", "out", *options, "work.py", "-x") == 0
    command, comment = capfd.readouterr().out.splitlines()
    assert f" --output={place}/out --type=db --task-time=l0 " in command
    assert " --aic-metrics=Memory --dvpp=on bash /tmp/" in command
    assert comment.endswith("runs: work.py -x")
    assert sorted(place.iterdir()) == before


def test_help_lists_every_option_of_msprof(capfd: pytest.CaptureFixture[str]) -> None:
    assert uprof("--help-npu") == 0
    text = capfd.readouterr().out
    assert all(f"--{option.flag}" in text for option in OPTIONS)
