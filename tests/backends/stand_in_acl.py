"""What CANN's profiling library does in the application: make PROF_* and note its name."""

from __future__ import annotations

import json
import os
from pathlib import Path


def init(device: bool = True, index: int = 1) -> Path:
    """Record as aclInit would under msprof; returns the PROF_* directory."""
    sample = json.loads(os.environ["PROFILER_SAMPLECONFIG"])
    result = Path(sample["result_dir"])
    prof = result / f"PROF_{index:06d}_20261120101500123_{os.getpid():08d}ABCDEFGH"
    (prof / "host" / "data").mkdir(parents=True)
    (prof / "host" / "sample.json").write_text(json.dumps(sample))
    if device:
        data = prof / "device_0" / "data"
        data.mkdir(parents=True)
        (data / "stars_soc.data.0.slice_0").write_bytes(bytes(64))
    with (result / f"{sample['msprofBinPid']}_profiling_output_record").open("a") as record:
        record.write(f"{prof.name}\n")
    return prof
