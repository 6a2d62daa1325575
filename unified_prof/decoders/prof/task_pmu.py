"""TASK_PMU_INFO: what the performance counters of the AI cores counted for every task.

ffts_profile.data of platforms with the stars scheduler. A context record has the counters of a
task, or of one context of an FFTS+ task, on the cores of one kind. A MIX task runs on both kinds
of cores: its context record counts the main ones, block records (one a core) the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof import samples
from unified_prof.decoders.prof.core_metrics import CoreMetrics, Counted, Side, core_metrics
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.slices import Records
from unified_prof.decoders.prof.stream_words import decode_words
from unified_prof.decoders.prof.task_ids import NO_CONTEXT
from unified_prof.decoders.prof.tasks import DeviceTasks

FILE = "ffts_profile"

_CONTEXT, _BLOCK, _V6 = 40, 41, 42
_FUNCTION_BITS = 0x3F
_OVERFLOW = 1 << 10
_SUBTASK_TYPE_BITS = 0xFF
_FFTS_TYPE_SHIFT = 13

# Kinds of tasks, as FFTS types: on AIC cores, on AIV cores, one context of an FFTS+ task.
_AIC_ONLY, _AIV_ONLY, _FFTS_PLUS = 0, 1, 4
# Kinds of contexts, as subtask types.
_AIC, _AIV, _MIX_AIC, _MIX_AIV = 0, 1, 6, 7

_V6_MASTER, _V6_MIX, _V6_OVERFLOW = 1, 2, 4
