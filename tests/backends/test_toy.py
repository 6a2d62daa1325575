"""The contract of backends, on a minimal backend of another package."""

from pathlib import Path

import pytest

from tests.backends import toy
from tests.backends.contract import BackendContract

SCRIPT = """\
import sys
from pathlib import Path

Path(sys.argv[1]).write_text("\\n".join(sys.argv[1:]), encoding="utf-8")
sys.exit(int(sys.argv[2]))
"""


class TestToyBackend(BackendContract):
    @pytest.fixture
    def backend(self, monkeypatch: pytest.MonkeyPatch) -> toy.ToyBackend:
        toy.install(monkeypatch, toy="tests.backends.toy:ToyBackend")
        return toy.ToyBackend()

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "work.py"
        path.write_text(SCRIPT)
        return path
