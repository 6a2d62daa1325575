"""Names that are markup, scripts or styles stay text on every kind of page, in all its views."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.summaries import Contents, write_summary
from tests.pipeline.test_sources import memory_snapshot
from tests.report import browser, test_page_access
from tests.report.browser import Browser
from unified_prof.cluster.overview import Overview
from unified_prof.cluster.stored_run import open_run
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.pipeline.convert import convert
from unified_prof.report import cluster_document
from unified_prof.report.device_documents import device_page
from unified_prof.report.formats import ClusterRequest, DeviceRequest

pytestmark = [pytest.mark.slow, browser.needed]

# {0} is the address of a server that must not receive a request.
PAYLOADS = (
    "<script>alert(1)</script>",
    "</script><script src={0}/a.js></script>",
    "<!--<script>",
    "]]><img src={0}/b.png onerror=alert(2)>",
    '"><img src=x onerror="fetch(\'{0}/c\')">',
    "'><svg/onload=alert(3)><image href={0}/d.svg>",
    "<math><mtext></form><form action={0}/e><button autofocus onfocus=alert(4)>",
    "<iframe srcdoc='<script>alert(5)</script>' src={0}/f></iframe>",
    "<object data={0}/g></object><embed src={0}/h>",
    "<link rel=stylesheet href={0}/i.css><base href={0}/>",
    "<meta http-equiv=refresh content=0;url={0}/j>",
    "<style>@import url({0}/k.css); * {{ display: none }}</style>",
    "red; background: url({0}/l.png)",
    "}} body {{ display: none }} /*",
    "javascript:alert(6)",
    "data:text/html,<script>alert(7)</script>",
    "${{alert(8)}} `${{fetch('{0}/m')}}` {{{{7*7}}}}",
    "'-alert(9)-'\\",
    "\u2028alert(10)\u2029//\ufeff\0\x1b]0;t\x07",
    "\u202e\u2066txt.exe\u2069\u202c\u200f\u061c",
    "__proto__",
    "constructor",
    "&lt;img src=x onerror=alert(11)&gt;&#x3c;b&#x3e;",
    "long " + "\u0301W<b>" * 3_000,
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") * 300,
)
# Values on which the structure of a recording depends.
_STRUCTURE = re.compile(
    r"[A-Z_0-9]+|ProfilerStep#\d+|aten::.*|nn\.Module.*|[\d;,. -]*|(float;?)+|host|device|true|"
    r"false|PTA|weight|operation|activation|forward|backward|total|\[.*|\{.*"
)
_POLICY = re.compile(r"default-src 'none'; script-src 'sha256-\S{44}'; style-src 'sha256-\S{44}'")
_PRESERVED = re.compile(r"META_DATA|ENUM_.*|sqlite_.*|UPROF_GPU_DEVICES|FINDING_RANK")


class Listener:
    """A server that counts requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.requests.append(self.path)
                self.send_error(404)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    running = Listener()
    yield running
    running.server.shutdown()
    running.server.server_close()


class Poison:
    """Adds payloads to texts, each time another one."""

    def __init__(self, address: str, first: int) -> None:
        self.payloads = [payload.format(address) for payload in PAYLOADS]
        self.next, self.used = first, set[int]()

    def __call__(self, text: Any) -> Any:
        if not isinstance(text, str) or not text or _STRUCTURE.fullmatch(text):
            return text
        number, self.next = self.next % len(PAYLOADS), self.next + 1
        self.used.add(number)
        payload = self.payloads[number]
        return f"{payload}{text}" if self.next % 2 else f"{text} {payload}"


def poison(path: Path, change: Poison) -> None:
    """Add payloads to all texts of a database that may be names."""
    with closing(sqlite3.connect(path)) as db, db:
        db.create_function("poisoned", 1, change)
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for table in tables:
            if _PRESERVED.fullmatch(table):
                continue
            for _, column, *_ in db.execute(f'PRAGMA table_info("{table}")').fetchall():
                db.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = poisoned("{column}")')


def _poison_all(folder: Path, change: Poison) -> None:
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".db", ".sqlite"):
            poison(path, change)


def tracked(folder: Path, change: Poison) -> Path:
    test_page_access.skyline(folder)
    _poison_all(folder, change)
    return test_page_access.page_of(folder, folder / "page.html")


def recording(folder: Path, change: Poison) -> Path:
    test_page_access.device(folder)
    _poison_all(folder, change)
    return test_page_access.page_of(folder / "msprof_1.db", folder / "page.html")


def snapshot(folder: Path, change: Poison) -> Path:
    convert(memory_snapshot(folder), folder / "snapshot.db")
    _poison_all(folder, change)
    return test_page_access.page_of(folder / "snapshot.db", folder / "page.html")


def cluster(folder: Path, change: Poison) -> Path:
    contents = Contents(tp=4, dp=4, pp=4, slow={37: 1.1}, slow_links=[(12, 28)], failed=[5])
    run = write_summary(folder / "run", contents)
    _poison_all(folder, change)
    page = folder / "page.html"
    with open_run(run) as opened:
        text = cluster_document.produce_cluster_page(Overview(opened), ClusterRequest())
    page.write_text(text, encoding="utf-8")
    return page


def difference(folder: Path, change: Poison) -> Path:
    test_page_access.difference(folder)
    _poison_all(folder, change)
    found = diff_recordings([folder / "gpu.db"], [folder / "npu.db"])
    assert found is not None
    page = folder / "page.html"
    page.write_text(device_page(found, DeviceRequest()), encoding="utf-8")
    return page


# Clicks every control and searches for parts of payloads. Saving a file and opening Perfetto are
# left out: they leave the page.
_USE_ALL = """
const wait = () => new Promise((resolve) => setTimeout(resolve, 30));
(async () => {
    let count = 0;
    const end = performance.now() + 8000;
    const seen = new Set();
    for (let round = 0; round < 2; round += 1) {
        document.querySelectorAll('details').forEach((one) => { one.open = true; });
        for (const one of document.querySelectorAll(
            'button, summary, a[href^="#"], tbody tr, [type=checkbox], svg [tabindex], svg rect'
        )) {
            const key = one.outerHTML.slice(0, 300);
            if (seen.has(key) || /save|copy|perfetto/i.test(one.textContent + one.title)) continue;
            if (performance.now() > end) break;
            seen.add(key);
            one.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true }));
            for (const kind of ['mouseover', 'mousemove', 'pointermove', 'focus'])
                one.dispatchEvent(new MouseEvent(kind, { bubbles: true }));
            count += 1;
            if (count % 40 === 0) await wait();
        }
        for (const one of document.querySelectorAll('select')) {
            for (const option of [...one.options]) {
                one.value = option.value;
                one.dispatchEvent(new Event('change', { bubbles: true }));
                count += 1;
                await wait();
            }
        }
        for (const one of document.querySelectorAll('input[type=search], input:not([type])')) {
            for (const text of ['<', '"', 'alert', '']) {
                one.value = text;
                one.dispatchEvent(new Event('input', { bubbles: true }));
                await wait();
            }
        }
        for (const canvas of document.querySelectorAll('canvas')) {
            const box = canvas.getBoundingClientRect();
            for (let x = 0; x < 1; x += 0.04)
                for (const kind of ['pointermove', 'mousemove', 'click'])
                    canvas.dispatchEvent(new PointerEvent(kind, { bubbles: true,
                        clientX: box.left + x * box.width, clientY: box.top + box.height / 2 }));
            for (const key of ['n', 'p', 'l', '+', '-', 'Enter', '0'])
                canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
            await wait();
        }
    }
    done(count);
})().catch((error) => done(String(error.stack)));
"""
# Elements and attributes that no page creates.
_FOREIGN = """
const bad = [...document.querySelectorAll(
    'script:not(#data), img, image, iframe, object, embed, link, base, form, math, style, meta')]
    .filter((one) => !(one.parentNode === document.head || one.parentNode === document.body));
for (const one of document.querySelectorAll('*'))
    for (const { name, value } of one.attributes)
        if (name.startsWith('on')
            || (/^(javascript|data):/i.test(value) && /^(href|src|action|xlink:href)$/.test(name))
            || (name === 'style' && /url\\(/i.test(value)))
            bad.push(one);
return bad.map((one) => one.outerHTML.slice(0, 200));
"""


@pytest.mark.parametrize(
    "make_page", [tracked, recording, snapshot, cluster, difference], ids=lambda make: make.__name__
)
def test_names_of_markup_neither_run_nor_load_anything(
    window: Browser, listener: Listener, tmp_path: Path, make_page: Callable[[Path, Poison], Path]
) -> None:
    used, shown = set(), ""
    for first in range(0, len(PAYLOADS), 6):
        folder = tmp_path / str(first)
        folder.mkdir()
        change = Poison(listener.address, first)
        page = make_page(folder, change)
        used |= change.used
        head = page.read_text(encoding="utf-8").partition("</head>")[0]
        assert head.count("Content-Security-Policy") == 1
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', head)
        assert policy is not None
        assert _POLICY.fullmatch(policy[1])
        window.open(page)
        clicks = window.run_async(_USE_ALL)
        assert isinstance(clicks, int), clicks
        assert clicks >= 20
        shown += window.run("return document.body.textContent.toWellFormed()")
        assert window.run(_FOREIGN) == []
        # A blocked script or request is a message.
        assert window.console() == []
        assert listener.requests == []
        assert window.run("return [location.protocol, document.styleSheets.length]") == ["file:", 1]
    assert used == {*range(len(PAYLOADS))}
    for payload in ("<script>alert(", "<svg/onload=alert(", "onerror=", "javascript:"):
        assert payload in shown, "shown as text"
