"""Live views of watched runs: on a pseudo-terminal, in a pipe, and beside a script's output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.watch.runs import CAPTURED, MS, eventful, step, write_run
from unified_prof.cli import watch_live
from unified_prof.cli.app import app
from unified_prof.errors import StoreError, UprofError, UsageError
from unified_prof.report import watch_document
from unified_prof.report.terminal import render_text
from unified_prof.sqlite.watch_file import read_folder

CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78DM])")
SCRIPT = """
import sys, time, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(150):
    time.sleep(0.02)
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("line", step, flush=True)
"""


def on_terminal(command: list[str], folder: Path, columns: int = 80) -> tuple[int, str]:
    """Run uprof on a pseudo-terminal of 24 lines; return its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "unified_prof", *command],
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux: the last writer has closed its end
            break
        if not part:
            break
        written += part
    os.close(ours)
    return child.wait(60), written.decode()


@pytest.mark.parametrize("width", [80, 40])
def test_the_view_fits_the_terminal(tmp_path: Path, width: int) -> None:
    for rank in range(4):
        write_run(tmp_path, change=eventful, rank=rank, events=CAPTURED if rank == 1 else ())
    text = render_text(
        watch_document.live_document(read_folder(tmp_path), Path("out")), width=width
    )
    assert max(map(len, text.splitlines())) <= width
    assert {line.split("  ")[0] for line in text.splitlines()} >= {
        *("steps", "step time", "parts", "memory", "ranks", "event")
    }


def test_a_chart_shows_the_longest_step_of_each_block() -> None:
    values = np.ones(600) * 2 * MS
    values[305] = 16 * MS
    chart = watch_document._sparkline(values)
    assert (len(chart), chart.index("█"), chart.count("█")) == (60, 30, 1)
    assert set(chart) == {"█", "▂"}
    assert watch_document._sparkline(np.array([1.0, np.e])) == "▃█"


def test_a_pipe_gets_lines_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_live, "_INTERVAL_S", 0.3)
    file = write_run(tmp_path, 100, is_over=False)

    def go_on() -> None:
        time.sleep(0.5)
        file.append([step(100)])
        time.sleep(1.0)
        file.append([step(101)])
        file.close({"exit_code": "0", "ended_ns": "2"})

    thread = threading.Thread(target=go_on)
    thread.start()
    done = CliRunner().invoke(app, ["watch", "--attach", str(tmp_path)])
    thread.join()
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 100", "step 101", "step 102"]
    assert all("a step takes 10.0 ms; largest part: backward 40 %" in line for line in lines)


def test_a_view_survives_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_live, "_INTERVAL_S", 0.0)
    file = write_run(tmp_path, 100, is_over=False)
    updates = watch_live._updates(tmp_path)
    next(updates)
    file.path.rename(tmp_path / "away")
    assert [len(next(updates)[0]) for _ in range(3)] == [100] * 3
    (tmp_path / "away").rename(file.path)
    file.append([step(100)])
    assert len(next(updates)[0]) == 101


def test_ctrl_c_ends_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    write_run(tmp_path, 100, is_over=False)
    done = CliRunner().invoke(app, ["watch", "--attach", str(tmp_path)])
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)


@pytest.mark.parametrize("is_earlier_run", [False, True])
def test_the_view_keeps_at_most_half_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_earlier_run: bool
) -> None:
    pid = 4000
    write_run(tmp_path, is_over=False, pid=str(pid + is_earlier_run))
    lines, parents = [40, 40, 10], iter([pid] * 4 + [1])
    written: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "getppid", lambda: next(parents))
        size = os.terminal_size
        patch.setattr(os, "get_terminal_size", lambda _: size((80, lines[min(len(written), 2)])))
        patch.setattr(os, "write", lambda number, data: written.append(f"{number}{data.decode()}"))
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr(time, "sleep", lambda _: None)
        watch_live._draw_below(tmp_path)
    if is_earlier_run:
        assert written == []
        return
    first, same, small, last = written
    begin = "2" + "\x1bD" * 12 + "\x1b[12A\x1b7\x1b[1;28r\x1b8"
    assert first.startswith(f"{begin}\x1b7\x1b[29;1H\x1b[2K")
    assert re.findall(r"\x1b\[(\d+);1H\x1b\[2K", first) == [str(row) for row in range(29, 41)]
    assert same == f"2{first.removeprefix(begin)}"
    assert re.findall(r"\x1b\[(\d+);1H\x1b\[2K", small) == [str(row) for row in range(6, 11)]
    assert small.startswith("2" + "\x1bD" * 5 + "\x1b[5A\x1b7\x1b[1;5r\x1b8\x1b7")
    assert last == "2\x1b7\x1b[r\x1b[6;1H\x1b[J\x1b8"


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no workload"):
        raise invoked("--attach", str(tmp_path), "train.py")
    with pytest.raises(StoreError, match="has no watch files"):
        raise invoked("--attach", str(tmp_path / "nowhere"))
    file = write_run(tmp_path)
    os.truncate(file.path, 5_000)
    with pytest.raises(UprofError, match=r"watch_rank0\.db"):
        raise invoked("--attach", str(tmp_path))


def invoked(*words: str) -> BaseException:
    """Return the error of `uprof watch`."""
    error = CliRunner().invoke(app, ["watch", *words]).exception
    assert error is not None
    return error


@pytest.mark.slow
def test_a_terminal_shows_the_run_until_it_ends(tmp_path: Path) -> None:
    file = write_run(tmp_path, is_over=False)
    timer = threading.Timer(8, lambda: file.close({"exit_code": "0", "ended_ns": "2"}))
    timer.start()
    code, text = on_terminal(["watch", "--attach", "."], tmp_path)
    assert code == 0
    lines = CONTROL.sub("", text).splitlines()
    assert any(line.startswith("step time     ▇") or "█" * 60 in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.slow
def test_live_steps_are_below_the_output_of_the_script(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--live", "--backend", "cpu", "--share", "0", "-o", "out"]
    code, text = on_terminal(["watch", *options, "train.py"], tmp_path)
    assert code == 0, text
    assert "\x1b[1;12r" in text  # the script scrolls in the upper half ...
    assert text.rindex("\x1b[r") < text.index("steps of a watched run")  # ... until it has ended
    assert "step time" in CONTROL.sub("", text[: text.rindex("\x1b[r")])
    drawn = re.compile(r"\x1b7(?:\x1b\[\d+;1H\x1b\[2K[^\x1b]*(?:\x1b\[[0-9;]*m[^\x1b]*)*)+\x1b8")
    rest = CONTROL.sub("", drawn.sub("", text)).replace("\r\n", "\n")
    assert re.findall(r"^line \d+$", rest, re.M) == [f"line {number}" for number in range(150)]


@pytest.mark.slow
def test_live_does_not_touch_output_that_is_no_terminal(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "watch", "--live", "--backend", "cpu",
         "--share", "0", "-o", "out", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "".join(f"line {number}\n" for number in range(150))
    assert "--live needs a terminal" in done.stderr
    assert "\x1b" not in done.stderr
