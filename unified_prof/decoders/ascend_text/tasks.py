"""Tasks of devices: the slices of their streams."""

from __future__ import annotations

import re

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.ascend_text.columns import Columns, Enums, Ints, Names, number
from unified_prof.decoders.ascend_text.events import Event
from unified_prof.decoders.ascend_text.layers import Layer
from unified_prof.vocabulary import (
    COPY_OTHER,
    NO_CONNECTION,
    NO_CONTEXT,
    NO_MODEL,
    NO_NUMBER,
    NOT_AVAILABLE,
)

# The export calls the tasks of operators after their cores, the database after what launched them.
KERNELS = {
    "AI_CORE": "KERNEL_AICORE",
    "AI_VECTOR_CORE": "KERNEL_AIVEC",
    "AI_CPU": "KERNEL_AICPU",
    "MIX_AIC": "KERNEL_MIX_AIC",
    "MIX_AIV": "KERNEL_MIX_AIV",
}
_TYPE = re.compile(r"[A-Z0-9_]+")


class Tasks:
    """Takes slices of streams, then writes TASK and MEMCPY_INFO."""

    def __init__(self, texts: Names, enums: Enums) -> None:
        self._texts = texts
        self._enums = enums
        self._tasks = Columns(
            *("start", "end", "device", "connection", "process", "type", "context", "stream"),
            *("task", "model", "name", "is_kernel", "size", "direction"),
        )

    def arrays(self) -> dict[str, Ints]:
        """Return the tasks' columns; a task's number is its row."""
        return self._tasks.arrays()

    def take(self, event: Event, start: int, end: int, layer: Layer) -> None:
        """Take a slice of a stream.

        Raises:
            ValueError: something in it is no number.
        """
        args = event.args or {}
        shown = str(args.get("Task Type", NOT_AVAILABLE))
        kind = KERNELS.get(shown)
        stream = args.get("Physic Stream Id", args.get("Stream Id", event.tid))
        directions = self._enums("ENUM_MEMCPY_OPERATION")
        direction = args.get("operation")
        self._tasks.add(
            start,
            end,
            layer.device,
            number(args.get("connection_id"), NO_CONNECTION),
            layer.process,
            # Other tasks bear the name of their type, unless they are operators as well.
            self._texts[kind or (event.name if _TYPE.fullmatch(event.name) else shown)],
            number(args.get("Subtask Id"), NO_CONTEXT),
            number(stream, -1),
            number(args.get("Task Id"), NO_NUMBER),
            number(args.get("Model Id"), NO_MODEL),
            self._texts[event.name],
            kind is not None,
            number(args.get("size(B)"), -1),
            directions.get(str(direction), COPY_OTHER),
        )

    def write(self, texts: Ints, sink: Sink) -> None:
        """Write the tables.

        Args:
            texts: String id of every text.
            sink: Where rows go.
        """
        tasks = self.arrays()
        ids = np.arange(len(tasks["start"]))
        if len(ids):
            sink.write(
                "TASK",
                {
                    "startNs": tasks["start"],
                    "endNs": tasks["end"],
                    "deviceId": tasks["device"],
                    "connectionId": tasks["connection"],
                    "globalTaskId": ids,
                    "globalPid": tasks["process"],
                    "taskType": texts[tasks["type"]],
                    "contextId": tasks["context"],
                    "streamId": tasks["stream"],
                    "taskId": tasks["task"],
                    "modelId": tasks["model"],
                },
            )
        copies = np.flatnonzero(tasks["size"] >= 0)
        if len(copies):
            sink.write(
                "MEMCPY_INFO",
                {
                    "globalTaskId": ids[copies],
                    "size": tasks["size"][copies],
                    "memcpyOperation": tasks["direction"][copies],
                },
            )
