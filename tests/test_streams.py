"""Standard streams that are closed, full or missing."""

import io
import os
import subprocess
import sys

import pytest

from unified_prof.base import streams
from unified_prof.errors import OutputError


class Full(io.StringIO):
    """A stream on a full disk."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()], ids=["none", "full", "closed"])
def test_message_to_a_broken_stderr_is_dropped(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    streams.tell("hello")
    assert not streams.is_terminal()


@pytest.mark.parametrize("stream", [None, Full(), closed()], ids=["none", "full", "closed"])
def test_data_for_a_broken_stdout_is_an_error(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OutputError, match="cannot write to stdout"):
        streams.hand_over("{}")


def test_unencodable_characters_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    streams.tell("50 µs caf\udce9")
    assert stream.buffer.getvalue() == b"50 \\xb5s caf\\udce9\n"


OPENS_A_FILE = """
import os, sys
from unified_prof.base import streams
streams.fill_closed_descriptors()
number = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
print(number, [os.path.exists(f"/dev/fd/{n}") for n in (0, 1, 2)])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs descriptors")
def test_closed_descriptors_are_not_reused_by_files(tmp_path: object) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "$0" "$1" 2>&- <&-', OPENS_A_FILE, f"{tmp_path}/x"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    number, _, exist = done.stdout.partition(" ")
    assert int(number) > 2
    assert exist.strip() == "[True, True, True]"


def test_a_stream_that_fails_is_replaced_if_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = io.StringIO()
    monkeypatch.setattr(sys, "stderr", usual)
    for other in (None, io.StringIO()):
        streams._forget_unwritten(other)
        assert sys.stderr is usual
    streams._forget_unwritten(usual)
    assert sys.stderr is not usual
