"""Numbers in records of collectives have names."""

import pytest

from unified_prof.decoders.prof import layouts


@pytest.mark.parametrize(
    ("table", "number", "name"),
    [
        (layouts.DPU_REDUCTIONS, 0, "SUM"),
        (layouts.CCU_REDUCTIONS, 1, "PROD"),
        (layouts.LINKS, 8, "UBoE"),
        (layouts.TRANSPORTS, 4, "ROCE"),
        (layouts.RDMA_KINDS, 1, "RDMA_SEND_PAYLOAD"),
        (layouts.DATA_TYPES, 12, "INT128"),
        (layouts.DATA_TYPES, 14, "HIF8"),
        (layouts.DATA_TYPES, 15, "FP8E4M3"),
        (layouts.DATA_TYPES, 16, "FP8E5M2"),
        (layouts.DATA_TYPES, 17, "FP8E8M0"),
    ],
)
def test_numbers_have_names(table: dict[int, str], number: int, name: str) -> None:
    assert table[number] == name
    assert table[255] == "RESERVED"
    assert len(set(table.values())) == len(table)
