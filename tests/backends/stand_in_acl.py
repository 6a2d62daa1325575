"""Stand-in for CANN's profiling library in the application: creates PROF_* and records its name."""

import json
import os
from pathlib import Path

from tests.prof_generator import Recipe, generate


def init(device: bool = True, index: int = 1, devices: tuple[int, ...] = (0,)) -> Path:
    """Record as aclInit would under msprof and return the PROF_* directory."""
    sample = json.loads(os.environ["PROFILER_SAMPLECONFIG"])
    result = Path(sample["result_dir"])
    recipe = Recipe(seed=index, operators=5, host_only=not device, devices=devices)
    recording = generate(result, recipe)
    with (result / f"{sample['msprofBinPid']}_profiling_output_record").open("a") as record:
        record.write(f"{recording.path.name}\n")
    return recording.path
