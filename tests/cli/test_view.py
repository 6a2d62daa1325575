"""`uprof view` serves the page or the timeline of a run to a browser on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname as url_to_path

import pytest

from tests.analysis.builders import Device, run_time_report, training_step
from tests.cluster.summaries import Contents, write_summary
from tests.report import browser
from tests.report.browser import Browser
from unified_prof.base import loopback
from unified_prof.cli import report
from unified_prof.cli.app import main
from unified_prof.explain.api import open_reports
from unified_prof.report import html_page as html
from unified_prof.report.formats import ReportRequest


class Visit:
    """What a browser receives while the command serves."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.waited: list[float | None] = []
        self.port = 0


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """Fetch everything that is served instead of waiting; isolate temporary files."""
    found = Visit()

    def wait(served: loopback.Served, idle_s: float, *, after_last_s: float | None = None) -> None:
        found.waited, found.port = [idle_s, after_last_s], served.port
        for name in served._items:
            with urllib.request.urlopen(served.url_of(name), timeout=400) as answer:
                found.pages[name] = answer.read()

    monkeypatch.setattr(loopback.Served, "wait", wait)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return found


def run(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["view", *words])
    assert ended.value.code == code


def leftover_files() -> list[str]:
    return [one.name for one in Path(tempfile.gettempdir()).iterdir()]


def test_page_is_the_one_written_by_report(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training_step(tmp_path / "msprof_1.db")
    run(str(path))
    with open_reports(path) as opened:
        assert visit.pages == {"": html.produce_page(opened, ReportRequest()).encode()}
    printed = capsys.readouterr()
    assert re.fullmatch(rf"http://127\.0\.0\.1:{visit.port}/[\w-]{{32}}/\n", printed.out)
    assert "press Ctrl-C to stop" in printed.err
    assert f"ssh -N -L {visit.port}:127.0.0.1:{visit.port} " in printed.err
    assert visit.waited == [600, 30]
    assert leftover_files() == []


def test_timeline_is_served_with_a_page_that_opens_it_in_perfetto(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training_step(tmp_path / "a run, of <today>.db")
    run(str(path), "--perfetto")
    (page, trace) = visit.pages
    assert (page, trace) == ("", "a_run__of__today_.perfetto-trace")
    assert b"mm_kernel" in visit.pages[trace]
    assert b"connect-src 'self'" in visit.pages[page]
    assert b"<today>" not in visit.pages[page]
    assert "slices on" in capsys.readouterr().err
    assert leftover_files() == []


def test_multi_rank_run_is_served_as_its_page(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of_ranks = write_summary(tmp_path / "run", Contents(slow={3: 1.3}))
    run(str(run_of_ranks))
    assert b"rank 3" in visit.pages[""]
    assert "use --rank N to show the report of one rank" in capsys.readouterr().err
    visit.pages.clear()
    run(str(run_of_ranks), "--perfetto", "--rank", "3", code=7)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run_of_ranks), "--ranks", "3", "-o", str(tmp_path / "a.json")])
    assert ended.value.code == 7
    lines = capsys.readouterr().err.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] != []
    assert visit.pages == {}


def test_json_prints_the_address(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(training_step(tmp_path / "msprof_1.db")), "--json", "-q")
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["port"] == visit.port
    assert document["url"].startswith(f"http://127.0.0.1:{visit.port}/")
    assert printed.err == ""


def test_timeline_is_a_chrome_trace_without_the_perfetto_package(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    run(str(training_step(tmp_path / "msprof_1.db")), "--perfetto", "-q", "--idle", "3")
    assert json.loads(visit.pages["msprof_1.json"])["traceEvents"]
    assert visit.waited == [3, 3]


def test_cors_allows_perfetto_for_the_chosen_port(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports_used: list[Any] = []
    before = loopback.Served.__init__

    def note(self: loopback.Served, items: Any, ports: Any) -> None:
        ports_used.append(ports)
        before(self, items, (0,))

    monkeypatch.setattr(loopback.Served, "__init__", note)
    path = str(training_step(tmp_path / "msprof_1.db"))
    run(path, "--perfetto", "-q")
    run(path, "-q")
    run(path, "--perfetto", "-q", "--port", "8123")
    assert ports_used == [(9001, 0), (0,), (8123,)]


def test_port_in_use_is_a_one_line_error(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loopback.Served([]) as taken:
        run(str(run_time_report(tmp_path / "run_time.sqlite")), "--port", str(taken.port), code=2)
        assert f"port {taken.port} of 127.0.0.1 is not available" in capsys.readouterr().err
    assert leftover_files() == []


@pytest.mark.parametrize("perfetto", [[], ["--perfetto"]], ids=["page", "perfetto"])
def test_invalid_input_gives_the_errors_of_report_and_trace(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str], perfetto: list[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no report")
    (tmp_path / "empty").mkdir()
    for wrong in ("absent.db", "notes.txt", "empty"):
        path = str(tmp_path / wrong)
        run(path, *perfetto, code=7)
        printed = capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["report", path])
        assert capsys.readouterr().err == printed.err
        assert printed.out == ""
    assert visit.pages == {}
    assert leftover_files() == []


def test_report_without_timestamps_has_no_timeline(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(str(run_time_report(tmp_path / "run_time.sqlite")), "--perfetto", code=2)
    assert "has no timeline" in capsys.readouterr().err
    assert leftover_files() == []


def test_damaged_reports_are_listed_at_the_end(
    visit: Visit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training_step(tmp_path / "msprof_1.db")
    (tmp_path / "msprof_2.db").write_bytes(b"SQLite format 3\0 and then nothing")
    run(str(tmp_path), code=7)
    assert b"Only " in visit.pages[""]
    assert "msprof_2.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "opens"),
    [({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True), ({}, False)],
    ids=["x", "wayland", "terminal"],
)
@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="has a screen by itself")
def test_browser_is_opened_if_there_is_a_display(
    visit: Visit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: dict[str, str],
    opens: bool,
) -> None:
    opened: list[str] = []

    class Screen(webbrowser.BaseBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            redirect = Path(url_to_path(urlsplit(url).path))
            assert "127.0.0.1" not in url, "arguments of processes are readable by other users"
            assert redirect.stat().st_mode & 0o777 == 0o600
            opened.append(redirect.read_text().partition("url=")[2].partition('"')[0])
            return True

    for name, value in where.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(webbrowser, "get", lambda: Screen())
    path = str(run_time_report(tmp_path / "run_time.sqlite"))
    run(path)
    printed = capsys.readouterr()
    assert opened == ([printed.out.strip()] if opens else [])
    assert ("opened in the browser" in printed.err) == opens
    assert ("ssh -N" in printed.err) == (not opens)
    run(path, "--no-open")
    assert len(opened) == opens, "not opened again"
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("w3m"))
    run(path, "-q")
    assert capsys.readouterr().err.count("opened in") == 0


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Any]:
    """Start the command as a process, with its own temporary directory."""
    processes: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(*words: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "unified_prof", "view", "--no-open", *words]
        environment = os.environ | {"TMPDIR": str(temporary)}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=["ctrl-c", "term"]
)
@pytest.mark.parametrize("perfetto", [(), ("--perfetto",)], ids=["page", "perfetto"])
def test_server_runs_until_interrupted_and_leaves_no_files(
    serving: Any, tmp_path: Path, number: signal.Signals, code: int, perfetto: tuple[str, ...]
) -> None:
    process, address = serving(str(training_step(tmp_path / "msprof_1.db")), *perfetto)
    for _ in range(2):
        with urllib.request.urlopen(address, timeout=400) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address[:-2] + "/", timeout=400)
    assert process.poll() is None
    process.send_signal(number)
    _, printed = process.communicate(timeout=400)
    assert process.returncode == code
    assert "Traceback" not in printed
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=2)


@pytest.mark.slow
def test_server_exits_after_the_idle_time(serving: Any, tmp_path: Path) -> None:
    path = str(training_step(tmp_path / "msprof_1.db"))
    process, address = serving(path, "--idle", "1")
    assert address
    assert process.wait(400) == 0


@pytest.mark.slow
@browser.needed
def test_browser_sends_a_trace_on_request(serving: Any, tmp_path: Path, window: Browser) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 150, kernel=("gemm</script>", "mm"))
    _, address = serving(str(tmp_path / "msprof_1.db"), "--perfetto")
    window.go(address)
    status = "return document.querySelector('#said').textContent"
    end = time.monotonic() + 400
    while not window.run(status).startswith("Trace loaded (") and time.monotonic() < end:
        time.sleep(0.05)
    assert window.run(status).startswith("Trace loaded (")
    window.run(
        "window.opened = []; window.posted = [];"
        "window.open = (address) => { opened.push(address);"
        " return {postMessage: (message, origin) => posted.push([message, origin])}; };"
        "document.querySelector('#open').click()"
    )
    time.sleep(0.3)
    assert window.run("return opened") == ["https://ui.perfetto.dev"]
    window.run(
        "window.dispatchEvent(new MessageEvent('message',"
        " {data: 'PONG', origin: 'https://ui.perfetto.dev'}))"
    )
    size, title, origin = window.run(
        "const [{perfetto}, origin] = posted[posted.length - 1];"
        "return [perfetto.buffer.byteLength, perfetto.title, origin]"
    )
    assert size > 100
    assert (title, origin) == ("msprof_1.db", "https://ui.perfetto.dev")
    direct = window.run("const one = document.querySelector('#direct'); return one && one.href")
    if ":9001/" in address:
        assert direct.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A9001")
    else:
        assert direct is None
    assert window.console() == []
    window.screenshot(tmp_path / "opener.png")


@pytest.mark.slow
@browser.needed
def test_browser_shows_the_page_as_it_is(serving: Any, tmp_path: Path, window: Browser) -> None:
    _, address = serving(str(training_step(tmp_path / "msprof_1.db")))
    window.go(address)
    assert window.run("return document.querySelectorAll('section.card').length") >= 4
    errors = [one for one in window.console() if "favicon" not in one]
    assert errors == []
