"""Names of the small numbers in records of collectives that DPUs and CCUs run.

Where other tables keep such numbers and an ENUM table has their names, DPU_TASK and CCU have the
names themselves; a number without one appears as its decimal text.
"""

from __future__ import annotations

_RESERVED = {255: "RESERVED"}


def _numbered(names: str, **others: int) -> dict[int, str]:
    named = dict(enumerate(names.split()))
    return named | {number: name for name, number in others.items()} | _RESERVED


DPU_REDUCTIONS = _numbered("SUM MUL MAX MIN")
CCU_REDUCTIONS = _numbered("SUM PROD MAX MIN")
LINKS = _numbered("ON_CHIP HCCS PCIE ROCE SIO HCCS_SW STANDARD_ROCE UB UBoE")
TRANSPORTS = _numbered("SDMA RDMA LOCAL UB ROCE")
RDMA_KINDS = _numbered("RDMA_SEND_NOTIFY RDMA_SEND_PAYLOAD")
DATA_TYPES = _numbered(
    "INT8 INT16 INT32 FP16 FP32 INT64 UINT64 UINT8 UINT16 UINT32 FP64 BFP16 INT128",
    HIF8=14,
    FP8E4M3=15,
    FP8E5M2=16,
    FP8E8M0=17,
)


def name_of(names: dict[int, str], number: int) -> str:
    """Return the name of `number`, or its decimal text."""
    return names.get(number, str(number))
