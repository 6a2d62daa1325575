"""Writes what msprof has no place for: the device's annotations and waits, and the rest."""

from __future__ import annotations

import numpy as np

from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.numbers import known, null_where
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.gpu.pools import plain_id
from unified_prof.decoders.windows import windows


def write(parts: Parts, base_ns: int) -> None:
    """Write the tables whose rows need no joining."""
    _write_gpu_annotations(parts, base_ns)
    _write_syncs(parts, base_ns)
    _write_garbage_collections(parts, base_ns)
    _write_other_events(parts, base_ns)
    _write_threads(parts)


def _write_gpu_annotations(parts: Parts, base_ns: int) -> None:
    for (rows,) in windows(parts.gpu_annotations):
        parts.sink.write(
            "UPROF_GPU_ANNOTATIONS",
            {
                "startNs": rows["start"] + base_ns,
                "endNs": rows["end"] + base_ns,
                "deviceId": rows["device"],
                "streamId": rows["stream"],
                "name": rows["name"],
                "externalId": known(rows["external"]),
            },
        )


def _write_syncs(parts: Parts, base_ns: int) -> None:
    for (rows,) in windows(parts.syncs):
        parts.sink.write(
            "UPROF_GPU_SYNCS",
            {
                "startNs": rows["start"] + base_ns,
                "endNs": rows["end"] + base_ns,
                "deviceId": rows["device"],
                "streamId": known(rows["stream"]),
                "contextId": known(rows["context"]),
                "kind": rows["kind"],
                "correlationId": known(rows["correlation"]),
                "waitStream": known(rows["wait_stream"]),
                "waitEvent": known(rows["wait_event"]),
                "waitRecord": known(rows["wait_record"]),
            },
        )


def _write_garbage_collections(parts: Parts, base_ns: int) -> None:
    for (rows,) in windows(parts.collections):
        parts.sink.write(
            "GC_RECORD",
            {
                "startNs": rows["start"] + base_ns,
                "endNs": rows["end"] + base_ns,
                "globalTid": np.array(parts.threads.global_tids)[rows["thread"]],
            },
        )


def _write_other_events(parts: Parts, base_ns: int) -> None:
    places = [(str(process), str(thread)) for process, thread in parts.places]
    for (rows,) in windows(parts.other):
        instant = rows["end"] == r.NO_END
        ends = np.where(instant, 0, rows["end"]) + base_ns
        parts.sink.write(
            "UPROF_TRACE_EVENTS",
            {
                "startNs": rows["start"] + base_ns,
                "endNs": null_where(instant, ends),
                "category": rows["category"],
                "name": rows["name"],
                "process": [places[place][0] for place in rows["place"].tolist()],
                "thread": [places[place][1] for place in rows["place"].tolist()],
                "args": [
                    parts.texts.text(at, size)
                    for at, size in zip(
                        rows["args_at"].tolist(), rows["args_size"].tolist(), strict=True
                    )
                ],
            },
        )


def _write_threads(parts: Parts) -> None:
    threads = parts.threads
    if threads:
        # Labels may write a thread in another way than its events do.
        processes = {plain_id(pid): name for pid, name in threads.process_names.items()}
        names = {
            (plain_id(pid), plain_id(tid)): name
            for (pid, tid), name in threads.thread_names.items()
        }
        plain = [(plain_id(keys[0][0]), plain_id(keys[0][1])) for keys in threads.spellings]
        parts.sink.write(
            "UPROF_THREADS",
            {
                "globalTid": threads.global_tids,
                "process": [str(keys[0][0]) for keys in threads.spellings],
                "thread": [str(keys[0][1]) for keys in threads.spellings],
                "processName": [processes.get(process) for process, _ in plain],
                "threadName": [names.get(key) for key in plain],
            },
        )
