"""Commands that are forks behave as new interpreters do."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver import Popen, imported, interpreter, remove_variables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

STATE = """
import atexit, os, pickle, sys, __main__
import unified_prof.base.text
atexit.register(print, "ended")
class Known: pass
print(sys.argv, __name__, sys.path[0], getattr(__main__, "__file__", None), os.environ["X"])
print(os.getcwd(), os.getppid(), os.getpgid(0) == os.getpid(), pickle.loads(pickle.dumps(Known)))
print(sys.stdin.read(), sys.stdin.name, sys.stdout.encoding, sys.stderr.line_buffering)
print("error", file=sys.stderr)
"""
ENDS = {
    "returns": "",
    "exit code": "sys.exit(7)",
    "text": "sys.exit('a text')",
    "exception": "def fails(): 1 / 0\nfails()",
    "killed": "os.kill(os.getpid(), 9)",
    "threads": "import threading; threading.Timer(0.1, print, ['late']).start()",
}


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("how", ["-c", "-m", "script"])
@pytest.mark.parametrize("end", ENDS)
def test_fork_has_the_state_and_output_of_a_new_interpreter(
    how: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text(STATE + ENDS[end])
    words = {"-c": ["-c", STATE + ENDS[end]], "-m": ["-m", "work"], "script": ["work.py"]}[how]
    made = []
    for enabled in (True, False):
        monkeypatch.setattr(Popen, "enabled", enabled)
        child = subprocess.run(
            [sys.executable, *words, "unified_prof", "b c"], cwd=tmp_path, capture_output=True,
            env=os.environ | {"X": "y"}, input="typed", text=True, start_new_session=end == "text",
        )  # fmt: skip
        made.append((child.returncode, child.stdout, child.stderr))
    assert made[0] == made[1]


def test_fork_is_interrupted_as_a_child_of_this_process() -> None:
    code = "import time, unified_prof\nprint('x', flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert b"forkserver" in Path(f"/proc/{child.pid}/cmdline").read_bytes()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == -signal.SIGINT


@pytest.mark.parametrize(
    "words",
    [["-c", "unified_prof"], ["-u", "-c", "import unified_prof"], ["absent.py", "unified_prof"]],
)
@pytest.mark.parametrize("change", [{}, {"PYTHONHASHSEED": "7"}])
def test_what_a_fork_cannot_do_is_a_new_interpreter(
    words: list[str], change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []

    def fork(*_: object) -> int:
        forked.append(1)
        return os.spawnlp(os.P_NOWAIT, "true", "true")

    monkeypatch.setattr(Popen, "fork", fork)
    subprocess.run([sys.executable, *words], env=os.environ | change, stderr=-3, check=False)
    assert bool(forked) == (words[0] == "-c" and not change)


@pytest.mark.parametrize("kind", [pytest.param("torch", marks=pytest.mark.slow), "unified_prof"])
def test_command_is_a_fork_of_what_it_imports(kind: str) -> None:
    """A module that IMPORTED names and that does not exist would end the server."""
    code = f"import {kind}; print('tests/forkserver.py' in open('/proc/self/cmdline').read())"
    for program in (sys.executable, os.fsencode(sys.executable)):
        assert subprocess.check_output([program, "-c", code], text=True) == "True\n"
    assert Popen.servers[kind][1].poll() is None


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_commands_of_a_command_are_forks_with_its_state_and_descriptors(tmp_path: Path) -> None:
    inner = (
        "import os, sys; os.write(int(sys.argv[1]), open('/proc/self/cmdline', 'rb').read());"
        "print(os.getcwd(), os.getppid())"
    )
    code = (
        "import os, subprocess, sys; os.mkdir('inner'); read, write = os.pipe();"
        f"command = [sys.executable, '-c', {inner!r}, str(write)];"
        "done = subprocess.run(command, cwd='inner', pass_fds=[write], capture_output=True);"
        "print(os.getpid(), done.stdout.decode(), os.read(read, 4096))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    process, folder, parent, words = out.split(maxsplit=3)
    assert (folder, parent) == (str(tmp_path / "inner"), process)
    assert "tests/forkserver.py" in words


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_commands_of_a_shell_are_forks(tmp_path: Path) -> None:
    """With their arguments, streams, directory and exit codes."""
    code = "import sys, os; print(sys.argv[1], sys.stdin.read(), os.getcwd()); sys.exit(7)"
    with interpreter(tmp_path) as python:
        script = f"mkdir a; cd a; echo x | {python} -c '{code}' 'b c'; echo $?; {python} --version"
        done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[0::2] == ["b c x", "7"]
    assert done.stdout.splitlines()[1::2] == [
        f" {tmp_path / 'a'}",
        f"Python {sys.version.split()[0]}",
    ]


def test_variables_a_library_leaves_do_not_prevent_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("OTHER", "kept")
    remove_variables()
    assert "PYTHONHASHSEED" not in os.environ
    assert os.environ["OTHER"] == "kept"


def test_command_runs_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, other = socket.socketpair()
    other.close()
    with ended:
        monkeypatch.setattr(Popen, "servers", {"unified_prof": (ended, None)})
        code = "import unified_prof; print(7)"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "7\n"


def test_preloaded_package_follows_from_code_and_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, torch")
    assert imported(["-m", "unified_prof", "run", "train.py"], str(tmp_path)) == "torch"
    assert imported(["-m", "unified_prof", "run", "absent.py"], str(tmp_path)) == "unified_prof"
    assert imported(["-c", "pass"], str(tmp_path)) is None
