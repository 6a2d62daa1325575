"""Payloads that NCCL attaches to its ranges: bytes, peers and communicators of collectives."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import RowSink
from tests.decoders.nsys.builders import (
    CALLS,
    KERNELS,
    RANGES,
    TID,
    Row,
    call,
    decode,
    kernel,
    packed,
    pushed,
    small,
    strings,
    write,
)
from tests.decoders.nsys.test_parquet import as_parquet
from unified_prof.decoders import nsys
from unified_prof.decoders.nsys.columns import ParquetTables

DOMAIN = 1
INIT, REDUCE, GATHER, PEER = (16_777_218 + number for number in range(4))
SUMS = 16_777_300
COMMUNICATOR = 0xDEAD_BEEF_3030_785C
"""Bytes that look like an escape sequence: 0x5c 0x78 0x30 0x30 is `\\x00`."""
PLAIN = 0xFEED_0000_0000_0001

_SIZED = [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)]
_FIELDS: dict[int, list[tuple[str, int, int | None]]] = {
    INIT: [_SIZED[0], ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
    REDUCE: [*_SIZED, ("Reduction operation", SUMS, 16)],
    GATHER: [*_SIZED],
    PEER: [*_SIZED, ("Peer rank", 5, 16)],
}
_LAYOUTS = {INIT: "<Qiii4x", REDUCE: "<QQi4x", GATHER: "<QQ", PEER: "<QQi4x"}


def payload(schema: int, *values: int, domain: int = DOMAIN) -> bytes:
    body = struct.pack(_LAYOUTS[schema], *values)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), 32 + len(body)) + body


def nccl(start: int, end: int, name: str, data: object = None, **more: Any) -> Row:
    row = pushed(start, end, None, domainId=DOMAIN, **more)
    return {**row, "text": name, "binaryData": data}


def export(*ranges: Row, kernels: list[Row], calls: list[Row]) -> dict[str, Any]:
    domain = {"domainId": DOMAIN}
    return small(
        StringIds=strings("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "cudaLaunchKernelExC_v1"),
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[
            {**domain, "schemaId": schema, "idx": i, "type": kind, "name": name, "offset": offset}
            for schema, fields in _FIELDS.items()
            for i, (name, kind, offset) in enumerate(fields)
        ],
        NVTX_PAYLOAD_ENUM_ENTRIES=[
            {**domain, "schemaId": SUMS, "idx": value, "name": name, "value": value}
            for value, name in enumerate(("Sum", "Product", "Max"))
        ],
        **{RANGES: ranges, KERNELS: kernels, CALLS: calls},
    )


def one_call(*ranges: Row, at: int = 1_100) -> dict[str, Any]:
    """Return an export with one NCCL kernel, launched at a time."""
    init = nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 8, 3, 0))
    return export(init, *ranges, kernels=[kernel(2_000, 5_000, 7)], calls=[call(at, at + 10, 7)])


def communication_tasks(sink: RowSink) -> list[tuple[Any, ...]]:
    return sink.rows(
        "COMMUNICATION_TASK_INFO", "groupName", "size", "srcRank", "dstRank", texts=["groupName"]
    )


def communication_operators(sink: RowSink) -> list[tuple[Any, ...]]:
    return sink.rows("COMMUNICATION_OP", "opType", "rankSize", texts=["opType"])


def decode_nccl(tmp_path: Path, tables: dict[str, Any]) -> RowSink:
    return decode(write(tmp_path / "run.sqlite", tables))


def test_kernel_has_bytes_and_communicator_of_the_call_around_its_launch(tmp_path: Path) -> None:
    sink = decode_nccl(
        tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 2)))
    )
    ((group, size, source, target),) = communication_tasks(sink)
    assert (group, size) == (f"0x{PLAIN:x}", 4_096)
    assert source == target, "both unknown"
    assert communication_operators(sink) == [("AllReduce", 8)]
    assert sink.rows("COMMUNICATION_TASK_INFO", "bandwidth") == [(4_096 * 10**9 / 3_000,)]
    payloads = [json.loads(text) for (text,) in sink.rows("UPROF_TRACE_EVENTS", "args")]
    expected = {"NCCL communicator ID": PLAIN, "Message size [bytes]": 4_096}
    assert {"payload": {**expected, "Reduction operation": "Max"}} in payloads
    assert "binary_payload" not in sink.anomalies


@pytest.mark.parametrize(("name", "source", "target"), [("ncclSend", 3, 5), ("ncclRecv", 5, 3)])
def test_sends_and_receives_have_peers(name: str, source: int, target: int, tmp_path: Path) -> None:
    sink = decode_nccl(tmp_path, one_call(nccl(1_000, 1_500, name, payload(PEER, PLAIN, 64, 5))))
    assert communication_tasks(sink) == [(f"0x{PLAIN:x}", 64, source, target)]
    assert communication_operators(sink) == [(name.removeprefix("nccl"), 8)]


def grouped(*inside: Row) -> tuple[Row, ...]:
    """Return ranges of a group that contains these calls."""
    return (nccl(1_000, 1_010, "ncclGroupStart"), *inside, nccl(1_090, 1_500, "ncclGroupEnd"))


def test_calls_of_a_group_that_become_one_kernel_are_summed(tmp_path: Path) -> None:
    both = [
        nccl(1_020, 1_030, "ncclSend", payload(PEER, PLAIN, 64, 4)),
        nccl(1_040, 1_050, "ncclRecv", payload(PEER, PLAIN, 36, 2)),
    ]
    sink = decode_nccl(tmp_path, one_call(*grouped(*both)))
    ((_, size, source, target),) = communication_tasks(sink)
    assert size == 100
    assert source == target
    assert communication_operators(sink) == [("SendRecv", 8)]


def test_groups_on_different_communicators_are_not_assigned(tmp_path: Path) -> None:
    both = [
        nccl(1_020, 1_030, "ncclAllReduce", payload(REDUCE, PLAIN, 64, 0)),
        nccl(1_040, 1_050, "ncclAllReduce", payload(REDUCE, PLAIN + 1, 36, 0)),
    ]
    sink = decode_nccl(tmp_path, one_call(*grouped(*both)))
    assert communication_tasks(sink)[0][1] is None
    assert sink.anomalies["grouped_collectives"] == 1


REDUCE_CALL = nccl(1_020, 1_030, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0))
GATHER_CALL = nccl(1_000, 1_500, "ncclAllGather", payload(GATHER, PLAIN, 512))
JSON_PAYLOAD = json.dumps({"NCCL communicator ID": str(PLAIN), "Message size [bytes]": 77})


@pytest.mark.parametrize(
    ("ranges", "size"),
    [
        pytest.param(grouped(REDUCE_CALL), 4_096, id="group of one call"),
        pytest.param(grouped(*grouped(REDUCE_CALL)), 4_096, id="nested groups"),
        pytest.param([GATHER_CALL], 8 * 512, id="gather counts bytes of all ranks"),
        pytest.param(
            [{**nccl(1_000, 1_500, "ncclBroadcast"), "jsonText": JSON_PAYLOAD}], 77, id="JSON"
        ),
    ],
)
def test_collective_has_its_payload(ranges: Sequence[Row], size: int, tmp_path: Path) -> None:
    sink = decode_nccl(tmp_path, one_call(*ranges))
    assert communication_tasks(sink)[0][:2] == (f"0x{PLAIN:x}", size)


def test_launches_outside_of_the_calls_of_their_thread_have_no_size(tmp_path: Path) -> None:
    reduce = nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0))
    before, after, other_thread = tmp_path / "before", tmp_path / "after", tmp_path / "thread"
    for folder, tables in (
        (before, one_call(reduce, at=900)),
        (after, one_call(reduce, at=1_501)),
        (other_thread, one_call({**reduce, "globalTid": packed(tid=TID + 1)})),
    ):
        folder.mkdir()
        assert communication_tasks(decode_nccl(folder, tables))[0][1] is None, folder.name


def test_ranks_of_a_communicator_are_scoped_to_the_process(tmp_path: Path) -> None:
    other = packed(200, 201)
    ranges = [
        nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 2, 0, 0)),
        nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 2, 1, 1), globalTid=other),
        nccl(1_000, 1_500, "ncclSend", payload(PEER, PLAIN, 64, 1)),
        nccl(1_000, 1_500, "ncclRecv", payload(PEER, PLAIN, 64, 0), globalTid=other),
    ]
    kernels = [
        kernel(2_000, 5_000, 7, globalPid=pid, deviceId=i)
        for i, pid in ((0, packed()), (1, packed(200)))
    ]
    calls = [call(1_100, 1_200, 7), call(1_100, 1_200, 7, globalTid=other)]
    sink = decode_nccl(tmp_path, export(*ranges, kernels=kernels, calls=calls))
    assert sorted(communication_tasks(sink)) == [(f"0x{PLAIN:x}", 64, 0, 1)] * 2


@pytest.mark.parametrize("texts_are_shared", [False, True])
def test_json_payloads_need_no_schemas(tmp_path: Path, texts_are_shared: bool) -> None:
    domain = {**pushed(0, None, "NCCL"), "eventType": 75, "domainId": DOMAIN}
    row = {**nccl(1_000, 1_500, "ncclBroadcast"), "jsonText": JSON_PAYLOAD, "jsonTextId": None}
    if texts_are_shared:
        domain |= {"text": None, "textId": 901}
        row |= {"jsonText": None, "jsonTextId": 902}
    tables = one_call(domain, row)
    tables["StringIds"] = [
        *tables.get("StringIds", []),
        {"id": 901, "value": "NCCL"},
        {"id": 902, "value": JSON_PAYLOAD},
    ]
    del tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"], tables["NVTX_PAYLOAD_ENUM_ENTRIES"]
    assert communication_tasks(decode_nccl(tmp_path, tables))[0][:2] == (f"0x{PLAIN:x}", 77)


def test_payloads_in_parquet_exports_are_read(tmp_path: Path) -> None:
    tables = one_call(nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0)))
    folder = as_parquet(write(tmp_path / "run.sqlite", tables), tmp_path / "run_pqtdir")
    sink = RowSink()
    nsys.decode(folder, ParquetTables(folder), sink)
    assert communication_tasks(sink)[0][1] == 4_096


GOOD = payload(REDUCE, PLAIN, 4_096, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:40],
        GOOD + b"x",
        payload(REDUCE, PLAIN, 1, 0, domain=9),
        payload(REDUCE, COMMUNICATOR, 1, 0),
        b"\xff" * 56,
        "some text",
        17,
    ],
    ids=["empty", "cut", "long", "domain", "like an escape", "bits", "text", "number"],
)
def test_payloads_without_matching_schema_are_counted(data: object, tmp_path: Path) -> None:
    sink = decode_nccl(tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", data)))
    assert communication_tasks(sink)[0][1] is None
    assert sink.anomalies["binary_payload"] == 1


def test_hexadecimal_payloads_are_read(tmp_path: Path) -> None:
    sink = decode_nccl(tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", GOOD.hex())))
    assert communication_tasks(sink)[0][1] == 4_096


def test_invalid_schemas_leave_the_size_unknown(tmp_path: Path) -> None:
    tables = one_call(nccl(1_000, 1_500, "ncclAllReduce", GOOD))
    for row in tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"]:
        row["offset"] = -5 if row["name"] == "Message size [bytes]" else 1 << 40
    assert communication_tasks(decode_nccl(tmp_path, tables))[0][1] is None
    tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"] = [{"domainId": "x", "schemaId": None, "name": 5}]
    (tmp_path / "run.sqlite").unlink()
    assert communication_tasks(decode_nccl(tmp_path, tables))[0][1] is None
