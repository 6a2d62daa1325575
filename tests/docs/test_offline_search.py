"""The search of the documentation site works from disk, where browsers refuse workers."""

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.report import browser

SHIM = ROOT / "docs" / "javascripts" / "iframe-worker.js"
PAGE = """\
<!DOCTYPE html><html><head><script src="iframe-worker.js"></script></head><body><script>
const worker = new Worker("worker.js");
worker.addEventListener("message", (event) => {
  document.body.dataset.answer = event.data;
  document.documentElement.dataset.ready = "yes";
});
worker.postMessage(20);
</script></body></html>
"""


@pytest.mark.slow
@browser.needed
def test_worker_on_disk_gets_messages_and_answers(tmp_path: Path, window: browser.Browser) -> None:
    (tmp_path / SHIM.name).write_bytes(SHIM.read_bytes())
    (tmp_path / "worker.js").write_text(
        'addEventListener("message", async (event) => postMessage(event.data + 1));'
    )
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    window.open(page)
    assert window.run("return document.body.dataset.answer") == "21"
    assert window.console() == []
