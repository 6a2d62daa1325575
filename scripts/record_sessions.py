"""Record the terminal sessions of the documentation.

python scripts/record_sessions.py --python PYTHON    Python with torch, lightning, transformers
python scripts/record_sessions.py --pages            write docs/sessions.md from the recordings

Each session runs in a pseudo-terminal, in a new directory and a new virtual environment that also
sees PYTHON's packages. It is stored as docs/sessions/NAME.cast (asciicast version 2, for
`asciinema play`) and abbreviated in docs/sessions.md.
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
ROWS_SHOWN = 2  # rows of each table on the page
PROMPT = "$ "


@dataclass(frozen=True)
class Session:
    """One session: its commands and its finding."""

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
        "Line 18, the softmax in the loop over heads, takes the most time: it runs once per head."
        " `scaled_dot_product_attention` computes all heads at once, without storing the weights.",
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
        "Convolutions take most of the time; the table of modules shows the time of each.",
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
        "Lines are those of the model's source in transformers; modules show the most expensive"
        " block and its most expensive part.",
    ),
)
_INTRODUCTION = """\
# Recorded sessions

Terminal sessions from `pip install` to a finding, recorded on two CPU cores without a GPU.
Comments show the seconds since the start. Only the first rows of each table are shown; the
asciicasts (`asciinema play`) have all output. The scripts are in `examples/sessions`.
"""


def main() -> None:
    """Record, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="Python with torch, lightning, transformers")
    parser.add_argument("--only", help="record only this session")
    parser.add_argument("--pages", action="store_true", help="only write docs/sessions.md")
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
    """Run the commands of a session and store the output of the terminal."""
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
    """Run a command in a terminal, append its output to `events`, return its exit code."""
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
        except OSError:  # Linux: the other end was closed
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
    """Replace paths of this machine."""
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
    """Return docs/sessions.md, made from the recordings."""
    parts = [_INTRODUCTION]
    for one in ALL:
        file = SESSIONS / f"{one.name}.cast"
        events, seconds = recorded(file)
        parts.append(
            f"\n## {one.title}\n\n"
            f"{one.finding} The session took {seconds:.0f} seconds "
            f"([asciicast](sessions/{one.name}.cast)).\n\n"
            "<!-- not run: recorded by scripts/record_sessions.py -->\n"
            f"```console\n{_abbreviated(_text(events))}```\n"
        )
    return "".join(parts)


def recorded(file: Path) -> tuple[list[tuple[float, str]], float]:
    """Return the output events of a recording, and its length in seconds."""
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    assert json.loads(head)["version"] == 2, file
    events = [(float(at), str(text)) for at, kind, text in map(json.loads, lines) if kind == "o"]
    return events[:-1], events[-1][0]


def _abbreviated(shown: str) -> str:
    """Return the commands and the first rows of the tables that they print."""
    kept: list[str] = []
    for command, *output in (one.split("\n") for one in re.split(r"(?m)^(?=\$ )", shown) if one):
        kept.append(command)
        table = next((i for i, line in enumerate(output) if re.match(r"\w+ +calls ", line)), None)
        if table is not None:
            kept += [*output[table : table + ROWS_SHOWN + 1], "..."]
        elif not command.startswith(f"{PROMPT}uprof"):
            kept += filter(None, output)
    return "\n".join(kept) + "\n"


def _text(events: list[tuple[float, str]]) -> str:
    """Return the final contents of the terminal, with the time of each command."""
    shown = ""
    for at, text in events:
        if text.startswith(PROMPT) and text.endswith("\r\n") and text.count("\n") == 1:
            text = f"{text.rstrip():<{COLUMNS - 50}}  # {at:.1f} s\n"
        shown += text
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.replace("\r\n", "\n"))
    # A carriage return overwrites the line.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in shown.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    main()
