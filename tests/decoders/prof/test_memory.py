"""Memory use of decoding depends on the windows, not on the length of the recording."""

import sys
from pathlib import Path

import pytest

from tests.processes import python
from tests.prof_generator import Recipe, generate

pytestmark = pytest.mark.fresh_interpreter

DECODE = """
import sys
from pathlib import Path
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.sqlite.writer import ReportWriter
with ReportWriter(Path(sys.argv[2]), revision="latest") as report:
    decode_recording(
        ProfDirectory(Path(sys.argv[1])), report, workspace=Workspace(1 << 13, 1 << 18)
    )
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]))
"""


def peak_bytes(folder: Path, operators: int) -> int:
    """Decode a recording in a new process and return the peak of its memory."""
    recipe = Recipe(operators=operators, threads=4, described=False)
    recording = generate(folder, recipe).path
    # The process measures itself: wait4() would include the memory of the parent process.
    return 1024 * int(python("-c", DECODE, recording, folder / "report.db", check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_ten_times_the_operators_take_little_more_memory(tmp_path: Path) -> None:
    few, many = (
        peak_bytes(tmp_path / str(operators), operators) for operators in (25_000, 250_000)
    )
    # Keeping everything in memory took 0.35 KB per operator.
    assert many - few < 225_000 * 100
