"""Assembles a recording: a PROF_* directory with all its parts."""

from dataclasses import dataclass
from pathlib import Path

from tests.prof_generator.control import write_control_files
from tests.prof_generator.counters import CounterSide
from tests.prof_generator.device_side import DeviceSide
from tests.prof_generator.host_side import HostSide
from tests.prof_generator.recipe import PROCESS_ID, Recipe
from tests.prof_generator.tables import Column, Tables
from tests.prof_generator.timing import Timing
from tests.prof_generator.usage import UsageSide


@dataclass(frozen=True, slots=True)
class Recording:
    """A generated PROF_* directory and its content."""

    path: Path
    recipe: Recipe
    tables: dict[str, dict[str, Column]]
    """Columns of the expected tables as far as the recipe determines them, with texts instead of
    text ids, and `streamId`, `taskId`, `deviceId`, `contextId` or `startNs` instead of task ids.
    Rows are unordered."""


def generate(folder: Path, recipe: Recipe) -> Recording:
    """Write a recording into `folder` and return it with its expected tables.

    Raises:
        FileExistsError: the directory exists.
    """
    path = folder / prof_name(recipe)
    path.mkdir(parents=True)
    timing, tables = Timing(recipe), Tables()
    host = HostSide(recipe, timing, tables)
    placed = host.run()
    write_control_files(path / "host", recipe, timing)
    host.recorder.files.write(path / "host" / "data", recipe.host_slice_records)
    host.recorder.names.write(path / "host" / "data")
    UsageSide(recipe, timing, tables, path / "host" / "data").write()
    for device in () if recipe.host_only else recipe.devices:
        part = path / f"device_{device}"
        (part / "data").mkdir(parents=True)
        write_control_files(part, recipe, timing, device)
        device_side = DeviceSide(recipe, timing, tables, part / "data", device, placed)
        CounterSide(recipe, timing, tables, part / "data", device).write(device_side)
        device_side.write()
    tables.add("SESSION_TIME_INFO", 1, startTimeNs=timing.begin_ns, endTimeNs=timing.end_ns)
    return Recording(path, recipe, tables.with_rows())


def prof_name(recipe: Recipe) -> str:
    """Return the name of a recording's directory."""
    letters = "".join("ABCDEFGHIJKLMNOPQR"[recipe.seed // 18**place % 18] for place in range(8))
    return f"PROF_{recipe.seed % 1_000_000:06d}_20250101000000000_{PROCESS_ID:08d}{letters}"
