"""How commands end: exit codes, one-line errors, and closed or full streams."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import forkserver
from tests.cli.test_report import uprof
from tests.processes import python, run
from unified_prof import __main__
from unified_prof.cli import app
from unified_prof.errors import BUG_EXIT_CODE, StoreError, UprofError, UsageError
from unified_prof.migrate.upgrade import create

UPROF = [sys.executable, "-m", "unified_prof"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def shell(line: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `uprof` is this checkout."""
    with ExitStack() as resources:
        program = sys.executable
        # Forks need all streams, a directory and as much memory as their server.
        if not re.search("&-|gone|ulimit", line):
            program = resources.enter_context(forkserver.interpreter(folder))
        function = f'uprof() {{ "{program}" -m unified_prof "$@"; }}\n'
        return run("bash", "-c", function + line, cwd=folder, env=env, errors="surrogateescape")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with an empty report."""
    create(tmp_path / "empty.db", "msprof", "latest")
    return tmp_path


@pytest.mark.slow
@needs_full
@pytest.mark.parametrize(
    "command",
    ["db create new.db --force", "db check empty.db", "report empty.db",
     "report empty.db -o r.html --force", "doctor --json", "--help"],
)  # fmt: skip
def test_stderr_never_changes_the_exit_code(place: Path, command: str) -> None:
    expected = shell(f"uprof {command}", place)
    assert expected.returncode == 0, expected.stderr
    for stream in ("2>&- <&-", "2>/dev/full"):
        found = shell(f"uprof {command} {stream}", place)
        assert (found.returncode, found.stdout) == (0, expected.stdout)


@pytest.mark.quick(cases=1)
@needs_full
@pytest.mark.parametrize(
    "command",
    ["db check empty.db", "db history --json", "report empty.db", "report empty.db --json",
     "doctor", "db create new.db", "run --help", "--version", "--show-completion bash"],
)  # fmt: skip
def test_unwritable_result_exits_with_code_9(place: Path, command: str) -> None:
    found = shell(f"uprof {command} >/dev/full", place)
    assert found.returncode == 9
    assert found.stderr.splitlines()[-1] == (
        "uprof: error: stdout cannot be written: No space left on device [uprof:stdout]"
    )
    if command.startswith("report"):
        assert shell(f"uprof {command} >/dev/full 2>&-", place).returncode == 9


@pytest.mark.slow
@needs_full
def test_usage_errors_keep_their_exit_code_without_stderr(place: Path) -> None:
    for stream in ("2>&-", "2>/dev/full", ""):
        assert shell(f"uprof report absent.db {stream}", place).returncode == 7
        assert shell(f"uprof report --top x empty.db {stream}", place).returncode == 2
        assert shell(f"uprof nonsense {stream}", place).returncode == 2


@pytest.mark.slow
def test_closed_pipe_of_the_reader_ends_the_command_quietly(place: Path) -> None:
    found = shell("uprof db info | true; echo ${PIPESTATUS[0]}", place)
    assert found.stdout in ("141\n", "0\n")  # 0: all fitted into the pipe
    assert found.stderr == ""


@pytest.mark.slow
def test_closed_stdout_does_not_affect_output_files(place: Path) -> None:
    before = (place / "empty.db").read_bytes()
    assert shell("uprof report empty.db -o r.html <&- >&- 2>&-", place).returncode == 0
    assert (place / "r.html").read_text(encoding="utf-8").startswith("<!")
    assert (place / "empty.db").read_bytes() == before


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("uprof report --no-such empty.db", 2, "no such option: --no-such"),
        ("uprof report", 2, "missing argument"),
        ("uprof repot x", 2, "no such command 'repot'"),
        ("uprof report empty.db --by colour", 2, "invalid value for '--by'"),
        (r"uprof report $'no\nuprof: error: forged\e]0;title\a.db'", 7, r"no\x0auprof: error"),
        (r"uprof report $'\e[31mred\u202e.db'", 7, r"\x1b[31mred\u202e.db"),
        (r"uprof report $'--no-such\e[2J' x", 2, r"--no-such\x1b[2J"),
        (r"uprof report $'caf\xe9.db'", 7, r"caf\xe9.db"),
        (r"uprof report '[bold]absent[/bold].db'", 7, "[bold]absent[/bold].db"),
        ("mkdir gone; cd gone; rmdir ../gone; uprof baseline show", 2, "current directory"),
    ],
)
def test_usage_error_is_one_line_and_a_hint(place: Path, line: str, code: int, words: str) -> None:
    found = shell(line, place)
    assert found.returncode == code
    assert found.stdout == ""
    lines = found.stderr.splitlines()
    assert words.lower() in lines[0].lower()
    assert lines[0].startswith("uprof: error: ")
    assert all(line.startswith("uprof: hint: ") for line in lines[1:])
    assert len(lines) <= 2
    assert "\x1b" not in found.stderr


def test_version_works_without_a_working_directory(place: Path) -> None:
    found = shell("mkdir gone; cd gone; rmdir ../gone; uprof --version", place)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["report NAME", "report NAME --json", "db current NAME", "db current NAME --json",
     "db check NAME", "db upgrade NAME --force", "db upgrade NAME -o OUT --force",
     "db create OUT --force", "report NAME -o OUT --format text"],
)  # fmt: skip
def test_names_that_are_not_utf_8_work(place: Path, command: str) -> None:
    name, out = "$'caf\\xe9.db'", "$'out\\xe9.db'"
    os.link(place / "empty.db", os.fsencode(place) + b"/caf\xe9.db")
    line = command.replace("NAME", name).replace("OUT", out)
    found = shell(f"uprof {line}", place)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    found.stdout.encode("utf-8")
    if "OUT" in command:
        assert os.path.exists(os.fsencode(place) + b"/out\xe9.db")  # noqa: PTH110 (bytes)


# A command that fails unexpectedly.
BUG = (
    "import sys; from unified_prof.sqlite import opening\n"
    "def broken(path): raise KeyError('token=abc\\x1b[2J of ' + str(path))\n"
    "opening.detect = broken\n"
    "from unified_prof.cli.app import main\nmain(sys.argv[1:])\n"
)


def test_unexpected_exception_exits_with_code_70_and_saves_its_traceback(place: Path) -> None:
    found = python("-c", BUG, "db", "info", "empty.db", cwd=place, env={"TMPDIR": str(place)})
    assert found.returncode == BUG_EXIT_CODE == 70
    first, second = found.stderr.splitlines()
    assert first.startswith("uprof: error: internal error: KeyError")
    assert "\x1b" not in found.stderr
    assert "abc" not in found.stderr
    (details,) = place.glob("uprof-bug-*.txt")
    assert str(details) in second
    text = details.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "broken" in text
    assert "abc" not in text
    assert details.stat().st_mode & 0o077 == 0


@needs_full
def test_details_of_a_bug_that_cannot_be_written_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uprof-bug-1.txt"
    path.touch()
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open(FULL, os.O_WRONLY), str(path)))
    with pytest.raises(OSError, match="No space left"):
        app._write_details("x")
    assert not path.exists()


# A command that is terminated while its output is half written.
ENDED = (
    "import signal, sys; from unified_prof.sqlite import atomic\n"
    "import unified_prof.migrate.upgrade as create\n"
    "def ended(*_, **__): signal.raise_signal(int(sys.argv[1]))\n"
    "atomic.os.replace = atomic.os.link = atomic.os.rename = ended\n"
    "from unified_prof.cli.app import main\nmain(sys.argv[2:])\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_command_with_the_code_of_sys_exit(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    arguments = [str(int(number)), "db", "create", "new.db"]
    found = python("-c", ENDED, *arguments, cwd=tmp_path)
    assert (found.returncode, found.stderr) == (code, "")
    assert list(tmp_path.iterdir()) == []


def test_broken_installation_does_not_exit_as_a_regression() -> None:
    code = (
        "import sys; sys.modules['click'] = None\nfrom unified_prof.__main__ import main\nmain()\n"
    )
    found = python("-c", code, "gate")
    assert found.returncode == BUG_EXIT_CODE
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "code", "slug"),
    [
        (MemoryError(), 71, "system-limit"),
        (OSError(errno.EMFILE, "Too many open files"), 71, "system-limit"),
        (RuntimeError("can't start new thread"), 71, "system-limit"),
        (ImportError("x.so: failed to map segment from shared object"), 71, "system-limit"),
        (OSError(errno.ENOSPC, "No space left on device"), 9, "no-temporary-space"),
        (FileNotFoundError(2, "No usable temporary directory found"), 9, "no-temporary-space"),
        (PermissionError(13, "Permission denied", "locked/cluster.sqlite"), 7, "cannot-read"),
    ],
)
def test_exhausted_or_refused_resource_is_an_error_with_a_code_not_a_bug(
    error: Exception, code: int, slug: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.exit_code_of(lambda: _raise(error)) == code
    assert f"[uprof:{slug}]" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_small_address_space_does_not_exit_as_a_regression(place: Path) -> None:
    found = shell("ulimit -v 100000; uprof gate empty.db empty.db", place)
    assert found.returncode == 71
    assert "the address space is limited to 97 MB" in found.stderr


def test_traceback_goes_to_stderr_if_its_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_place(**_: str) -> None:
        raise OSError("full")

    monkeypatch.setattr(tempfile, "mkstemp", no_place)
    assert app.exit_code_of(lambda: _raise(KeyError("absent"))) == BUG_EXIT_CODE
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_during_startup_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "unified_prof.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "unified_prof.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130


def _raise(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UprofError("no"), 1, "uprof: error: no [uprof:error]\n"),
        (
            UsageError("a\nb", hint="c\x07", slug="odd"),
            2,
            "uprof: error: a\\x0ab [uprof:odd]\nuprof: hint: c\\x07\n",
        ),
        (StoreError("no file"), 7, "uprof: error: no file [uprof:store]\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(143), 143, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("words"), 1, "words\n"),
    ],
)
def test_exit_code_and_message_match_the_exception(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.exit_code_of(lambda: _raise(error)) == code
    assert capsys.readouterr().err == words


WORKLOADS = {
    "closes_both": "import sys\nsys.stdout.close()\nsys.stderr.close()\n",
    "closes_descriptors": "import os\nos.close(1)\nos.close(2)\n",
    "loses_them": "import sys\nsys.stdout = sys.stderr = None\n",
    # Python sets a stream that is closed at startup to None.
    "prints": "import sys\nprint('hello')\nopen('stderr', 'w').write(repr(sys.stderr))\n",
}
TRAIN = (
    "import torch\nmodel = torch.nn.Linear(2, 2)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for _ in range(12):\n"
    "    optimizer.zero_grad()\n    model(torch.ones(1, 2)).sum().backward()\n"
    "    optimizer.step()\n"
)


@needs_full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "streams"),
    [
        ("closes_descriptors", ""),
        ("closes_both", "2>/dev/full"),
        ("loses_them", "2>&- >&- <&-"),
        ("prints", "2>&-"),
        ("prints", "2>/dev/full"),
    ],
)
def test_workload_is_profiled_for_any_streams(place: Path, workload: str, streams: str) -> None:
    (place / "train.py").write_text(TRAIN + WORKLOADS[workload])
    line = f"uprof run --backend cpu --scope project -o out train.py {streams}"
    found = shell(line, place)
    assert found.returncode == 0, found.stderr
    assert sorted(path.name for path in (place / "out").iterdir()) == [
        "memory.sqlite",
        "run_time.sqlite",
    ]
    if workload == "prints":
        assert found.stdout == "hello\n"
        assert ((place / "stderr").read_text() == "None") == (streams == "2>&-")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report empty.db --top x", "invalid value for '--top': expected a whole number"),
        ("report empty.db --top 0", "invalid value for '--top': expected 1 or more"),
        ("report empty.db --by x", "invalid value for '--by': 'x' is not one of 'operation'"),
        ("report empty.db --nosuch", "no such option: --nosuch"),
    ],
)
def test_unparsable_option_value_has_an_error_message_of_uprof(
    place: Path, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = uprof(*command.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"uprof: error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_non_boolean_variable_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPROF_REPORT_FORCE", "maybe")
    done = uprof("report", place / "empty.db")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith(
        "'--force': expected true or false, found 'maybe' [uprof:wrong-command-line]"
    )


@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_signal_while_a_class_is_defined_is_no_bug(ended: BaseException, code: int) -> None:
    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise ended

    assert app.exit_code_of(lambda: type("Selection", (), {"ranges": Field()})) == code
