"""The control files of a generated recording."""

import json
from pathlib import Path

from tests.prof_generator.device_side import AI_CORES, CORE_MHZ, EVENTS, EVENTS_V6, VECTOR_CORES
from tests.prof_generator.encode import write_file
from tests.prof_generator.recipe import PROCESS_ID, V6, Recipe
from tests.prof_generator.timing import DEVICE_COUNTER, Timing

HOST_NAME, HOST_UID = "nodename-λ", "4242424242424242"
MEMORY_KB, CLOCK_HZ, CPUS = 2_000_000_000, 100, 64
CARD, CARD_MBITS = "eth3", 25_000
DISK_HZ = 50


def write_control_files(
    folder: Path, recipe: Recipe, timing: Timing, device: int | None = None
) -> None:
    """Write the control files of the host's directory, or of a device's."""
    suffix = "" if device is None else f".{device}"
    files = {
        f"info.json{suffix}": json.dumps(_info(recipe, device), ensure_ascii=False),
        "sample.json": json.dumps(_sample(recipe, device)),
        f"start_info{suffix}": _moment(timing.begin_us, timing.host_monotonic_ns, "Begin"),
        f"host_start.log{suffix}": (
            f"[{'Host' if device is None else f'Device{device}'}]\n"
            f"clock_monotonic_raw:{timing.host_monotonic_ns}\ncntvct:{timing.host_counter}\n"
            f"cntvct_diff:{recipe.counter_offset}\n"
        ),
    }
    if recipe.ended:
        files[f"end_info{suffix}"] = _moment(timing.end_ns // 1000, timing.host_monotonic_ns, "End")
    if device is not None:
        files[f"dev_start.log{suffix}"] = (
            f"clock_monotonic_raw:{timing.device_monotonic_ns}\ncntvct:{DEVICE_COUNTER}\n"
        )
    for name, text in files.items():
        write_file(folder / name, text.encode())


def _moment(time_us: int, monotonic_ns: int, which: str) -> str:
    return json.dumps(
        {
            f"collectionDate{which}": "2024-01-01 00:00:00.000000",
            f"collectionTime{which}": str(time_us),
            "clockMonotonicRaw": str(monotonic_ns),
        }
    )


def _info(recipe: Recipe, device: int | None) -> dict[str, object]:
    frequency = f"{recipe.host_mhz}.000000" if recipe.host_mhz else ""
    info: dict[str, object] = {
        "version": recipe.layout_version,
        "platform_version": str(recipe.platform),
        "devices": "" if device is None else str(device),
        "pid": str(PROCESS_ID),
        "hostname": HOST_NAME,
        "hostUid": HOST_UID,
        "memoryTotal": MEMORY_KB,
        "cpuNums": CPUS,
        "sysClockFreq": CLOCK_HZ,
        "drvVersion": 467732,
        "rank_id": -1,
        "CPU": [{"Id": 0, "Frequency": frequency}],
        "netCard": [{"netCardName": CARD, "speed": CARD_MBITS}],
        "DeviceInfo": [],
    }
    if device is not None:
        info["DeviceInfo"] = [
            {
                "id": device,
                "ai_core_num": AI_CORES,
                "aiv_num": VECTOR_CORES,
                "hwts_frequency": f"{recipe.device_mhz}.000000",
                "aic_frequency": str(CORE_MHZ),
                "aiv_frequency": str(CORE_MHZ),
            }
        ]
    return info


def _sample(recipe: Recipe, device: int | None) -> dict[str, object]:
    metrics = recipe.pmu or recipe.sample_pmu
    events = (EVENTS_V6 if recipe.platform in V6 else EVENTS).get(metrics, "")
    name = f"Custom:{events}" if metrics == "Custom" else metrics
    mode = "sample-based" if recipe.sample_pmu else "task-based"
    level = "l1" if recipe.described else "l0"
    return {
        "devices": "" if device is None else str(device),
        "ai_core_profiling": "on" if metrics else "off",
        "ai_core_profiling_mode": mode,
        "ai_core_metrics": name,
        "ai_core_profiling_events": events,
        "aicore_sampling_interval": 10,
        "aiv_profiling": "on" if metrics else "off",
        "aiv_profiling_mode": mode,
        "aiv_metrics": name,
        "aiv_profiling_events": events,
        "aiv_sampling_interval": 10,
        "llc_profiling": "read",
        "qosEvents": ",".join(QOS_NAMES),
        "prof_level": level,
        "taskTrace": level,
        "host_disk_freq": DISK_HZ,
        "hostProfiling": device is None,
        "msprofBinPid": 1,
    }


QOS_NAMES = ("0_aic", "1_aiv", "2_dvpp")
"""Units that the QoS counters measure."""
