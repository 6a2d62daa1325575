"""Records the terminal sessions of the documentation: real commands, real outputs, real times.

python scripts/record_sessions.py --python PYTHON    a python with torch, lightning, transformers
python scripts/record_sessions.py --pages            docs/sessions.md anew from the recordings alone

Each session runs in a new virtual environment beside PYTHON's packages, in a folder of its own and
in a terminal of our own making. It is kept as docs/sessions/NAME.cast (asciicast, version 2, which
`asciinema play` shows) and as text in docs/sessions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = ROOT / "docs" / "sessions"
PAGE = ROOT / "docs" / "sessions.md"
COLUMNS, ROWS = 110, 40
LIMIT_S = 300
PROMPT = "$ "


@dataclass(frozen=True)
class Session:
    """One session: what is shown, and what it shows."""

    name: str
    title: str
    script: str
    commands: tuple[str, ...]
    finding: str


_INSTALL = "pip install -q ./unified_prof-*.whl"
ALL = (
    Session(
        "plain",
        "A plain script",
        "plain.py",
        (
            _INSTALL,
            "uprof run -o out plain.py",
            "uprof report out --by line --top 4",
            "sed -n 18p plain.py",
        ),
        "Line 18, the softmax in the loop over heads, leads the table: it runs once for each head."
        " `scaled_dot_product_attention` does all heads at once, without the weights in memory.",
    ),
    Session(
        "lightning",
        "Lightning",
        "with_lightning.py",
        (
            _INSTALL,
            "uprof run -o out with_lightning.py",
            "uprof report out --by module --top 4",
            "uprof report out --by operation --top 3",
        ),
        "The convolutions lead the table of operations, and the table of modules says how much"
        " each of them takes.",
    ),
    Session(
        "transformers",
        "transformers",
        "with_transformers.py",
        (
            _INSTALL,
            "uprof run -o out with_transformers.py",
            "uprof report out --by line --top 4",
            "uprof report out --by module --top 4",
        ),
        "Lines are those of the model's own source in transformers; modules name the block, and the"
        " part of it to look at first.",
    ),
)
_INTRODUCTION = """\
# Recorded sessions

From `pip install` to a finding, in a terminal, on two processor cores without a GPU, which other
programs used most of the time: uprof says so itself. Nothing is shortened: these are the outputs of
one recording each, with the seconds since its begin beside every command. `python
scripts/record_sessions.py --python PYTHON` makes them anew; the scripts are in
[examples/sessions](https://github.com/unified-prof/uprof/tree/main/examples/sessions). The wheel
comes from this repository; torch and the trainer were installed before.
"""


def main() -> None:
    """Record, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="a python with torch, lightning, transformers")
    parser.add_argument("--only", help="the name of one session")
    parser.add_argument("--pages", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.pages:
        if options.python is None:
            parser.error("--python or --pages")
        SESSIONS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="uprof-") as folder:
            wheel = _wheel(Path(folder))
            for one in ALL:
                if options.only in (None, one.name):
                    record(one, options.python, wheel, Path(folder) / one.name)
    PAGE.write_text(page(), encoding="utf-8")


def record(session: Session, python: Path, wheel: Path, folder: Path) -> None:
    """Run a session's commands and keep what the terminal showed."""
    project, environment = folder / "project", folder / "environment"
    project.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "sessions" / session.script, project)
    shutil.copy(wheel, project)
    subprocess.run([python, "-m", "venv", environment], check=True)
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(where)
    variables = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PIP_QUIET": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "http", "HTTP"))}
    events: list[tuple[float, str]] = []
    begin = time.monotonic()
    for command in session.commands:
        events.append((time.monotonic() - begin, f"{PROMPT}{command}\r\n"))
        code = _shown(command, project, {**kept, **variables}, begin, events)
        if code:
            raise SystemExit(f"{session.name}: {command}: exit code {code}\n{_text(events)}")
    places = {f"{folder}/": "~/", str(folder): "~", f"{where.strip()}/": "site-packages/"}
    events = [(at, _without(places, text)) for at, text in events]
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "title": f"uprof: {session.title}",
        "env": {"TERM": "xterm-256color"},
    }
    lines = [json.dumps(head)]
    lines += [json.dumps([round(at, 3), "o", text], ensure_ascii=False) for at, text in events]
    lines.append(json.dumps([round(time.monotonic() - begin, 3), "o", PROMPT]))
    (SESSIONS / f"{session.name}.cast").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{session.name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)


def _shown(
    command: str,
    folder: Path,
    variables: dict[str, str],
    begin: float,
    events: list[tuple[float, str]],
) -> int:
    """Run a command in a terminal, add what it shows to `events`, return its exit code."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        size = f"stty cols {COLUMNS} rows {ROWS}; "
        os.execve("/bin/bash", ["bash", "-c", size + command], variables)
    rest = b""
    while time.monotonic() - begin < LIMIT_S:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other end was closed
            break
        if not data:
            break
        rest += data
        text = rest.decode("utf-8", "ignore")
        rest = rest[len(text.encode()) :]
        events.append((time.monotonic() - begin, text))
    else:
        os.kill(child, 9)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _without(places: dict[str, str], text: str) -> str:
    """Return a text without the places of this machine."""
    for place, shown in places.items():
        text = text.replace(place, shown)
    return text


def _wheel(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True
    )
    (found,) = folder.glob("unified_prof-*.whl")
    return found


def page() -> str:
    """Return the page of all sessions, as their recordings tell them."""
    parts = [_INTRODUCTION]
    for one in ALL:
        file = SESSIONS / f"{one.name}.cast"
        events, seconds = recorded(file)
        parts.append(
            f"\n## {one.title}\n\n"
            f"{one.finding} The session took {seconds:.0f} seconds "
            f"([as asciicast](sessions/{one.name}.cast)).\n\n"
            "<!-- not run: is a recording; scripts/record_sessions.py makes it -->\n"
            f"```console\n{_text(events)}```\n"
        )
    return "".join(parts)


def recorded(file: Path) -> tuple[list[tuple[float, str]], float]:
    """Return what a recording shows and when, and how long it is in seconds."""
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    assert json.loads(head)["version"] == 2, file
    events = [(float(at), str(text)) for at, kind, text in map(json.loads, lines) if kind == "o"]
    return events[:-1], events[-1][0]


def _text(events: list[tuple[float, str]]) -> str:
    """Return what stood on the terminal at the end, with the time beside every command."""
    shown = ""
    for at, text in events:
        if text.startswith(PROMPT) and text.endswith("\r\n") and text.count("\n") == 1:
            text = f"{text.rstrip():<{COLUMNS - 50}}  # {at:.1f} s\n"
        shown += text
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.replace("\r\n", "\n"))
    # What a line was before it was written anew from its begin is not there any more.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in shown.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    main()
