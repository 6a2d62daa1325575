"""Payloads that NCCL attaches to its ranges: bytes, peers and communicators of collectives."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.made import RowSink
from tests.decoders.nsys.made import (
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
"""Bytes that look like an escape of their own: 0x5c 0x78 0x30 0x30 is `\\x00`."""
PLAIN = 0xFEED_0000_0000_0001

_FIELDS: dict[int, list[tuple[str, int, int | None]]] = {
    INIT: [
        ("NCCL communicator ID", 18, None),
        ("No. of ranks", 5, 8),
        ("Rank", 5, 12),
        ("CUDA device", 5, 16),
    ],
    REDUCE: [
        ("NCCL communicator ID", 18, None),
        ("Message size [bytes]", 22, 8),
        ("Reduction operation", SUMS, 16),
    ],
    GATHER: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)],
    PEER: [
        ("NCCL communicator ID", 18, None),
        ("Message size [bytes]", 22, 8),
        ("Peer rank", 5, 16),
    ],
}
_LAYOUTS = {INIT: "<Qiii4x", REDUCE: "<QQi4x", GATHER: "<QQ", PEER: "<QQi4x"}


def payload(schema: int, *values: int, domain: int = DOMAIN) -> bytes:
    body = struct.pack(_LAYOUTS[schema], *values)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, len(body), 32 + len(body)) + body


def nccl(start: int, end: int, name: str, data: object = None, **more: Any) -> Row:
    row = pushed(start, end, None, domainId=DOMAIN, **more)
    return {**row, "text": name, "binaryData": data}


def export(*ranges: Row, kernels: list[Row], calls: list[Row]) -> dict[str, Any]:
    return small(
        StringIds=strings("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "cudaLaunchKernelExC_v1"),
        NVTX_PAYLOAD_SCHEMA_ENTRIES=[
            {
                "domainId": DOMAIN,
                "schemaId": schema,
                "idx": place,
                "type": kind,
                "name": name,
                "offset": offset,
            }
            for schema, fields in _FIELDS.items()
            for place, (name, kind, offset) in enumerate(fields)
        ],
        NVTX_PAYLOAD_ENUM_ENTRIES=[
            {"domainId": DOMAIN, "schemaId": SUMS, "idx": value, "name": name, "value": value}
            for value, name in enumerate(("Sum", "Product", "Max"))
        ],
        **{RANGES: ranges, KERNELS: kernels, CALLS: calls},
    )


def one_call(*ranges: Row, at: int = 1_100) -> dict[str, Any]:
    """One kernel of NCCL, launched at a time."""
    init = nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 8, 3, 0))
    return export(init, *ranges, kernels=[kernel(2_000, 5_000, 7)], calls=[call(at, at + 10, 7)])


def tasks(sink: RowSink) -> list[tuple[Any, ...]]:
    return sink.rows(
        "COMMUNICATION_TASK_INFO", "groupName", "size", "srcRank", "dstRank", texts=["groupName"]
    )


def operators(sink: RowSink) -> list[tuple[Any, ...]]:
    return sink.rows("COMMUNICATION_OP", "opType", "rankSize", texts=["opType"])


def decoded(tmp_path: Path, tables: dict[str, Any]) -> RowSink:
    return decode(write(tmp_path / "run.sqlite", tables))


def test_a_kernel_has_the_bytes_and_communicator_of_the_call_around_its_launch(
    tmp_path: Path,
) -> None:
    sink = decoded(
        tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 2)))
    )
    ((group, size, source, target),) = tasks(sink)
    assert (group, size) == (f"0x{PLAIN:x}", 4_096)
    assert source == target, "neither is a peer"
    assert operators(sink) == [("AllReduce", 8)]
    assert sink.rows("COMMUNICATION_TASK_INFO", "bandwidth") == [(4_096 * 10**9 / 3_000,)]
    payloads = [json.loads(text) for (text,) in sink.rows("UPROF_TRACE_EVENTS", "args")]
    assert {
        "payload": {
            "NCCL communicator ID": PLAIN,
            "Message size [bytes]": 4_096,
            "Reduction operation": "Max",
        }
    } in payloads
    assert "binary_payload" not in sink.anomalies


def test_gathered_bytes_are_of_all_ranks(tmp_path: Path) -> None:
    sink = decoded(
        tmp_path, one_call(nccl(1_000, 1_500, "ncclAllGather", payload(GATHER, PLAIN, 512)))
    )
    assert tasks(sink)[0][1] == 8 * 512


@pytest.mark.parametrize(("name", "source", "target"), [("ncclSend", 3, 5), ("ncclRecv", 5, 3)])
def test_peers_of_sends_and_receives(name: str, source: int, target: int, tmp_path: Path) -> None:
    sink = decoded(tmp_path, one_call(nccl(1_000, 1_500, name, payload(PEER, PLAIN, 64, 5))))
    assert tasks(sink) == [(f"0x{PLAIN:x}", 64, source, target)]
    assert operators(sink) == [(name.removeprefix("nccl"), 8)]


def grouped(*inside: Row) -> tuple[Row, ...]:
    return (nccl(1_000, 1_010, "ncclGroupStart"), *inside, nccl(1_090, 1_500, "ncclGroupEnd"))


def test_a_group_of_one_call_is_that_call(tmp_path: Path) -> None:
    reduce = nccl(1_020, 1_030, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0))
    sink = decoded(tmp_path, one_call(*grouped(reduce)))
    assert tasks(sink)[0][:2] == (f"0x{PLAIN:x}", 4_096)


def test_calls_of_a_group_that_are_one_kernel_add_up(tmp_path: Path) -> None:
    both = [
        nccl(1_020, 1_030, "ncclSend", payload(PEER, PLAIN, 64, 4)),
        nccl(1_040, 1_050, "ncclRecv", payload(PEER, PLAIN, 36, 2)),
    ]
    sink = decoded(tmp_path, one_call(*grouped(*both)))
    ((_, size, source, target),) = tasks(sink)
    assert size == 100
    assert source == target
    assert operators(sink) == [("SendRecv", 8)]


def test_groups_on_several_communicators_are_not_assigned(tmp_path: Path) -> None:
    both = [
        nccl(1_020, 1_030, "ncclAllReduce", payload(REDUCE, PLAIN, 64, 0)),
        nccl(1_040, 1_050, "ncclAllReduce", payload(REDUCE, PLAIN + 1, 36, 0)),
    ]
    sink = decoded(tmp_path, one_call(*grouped(*both)))
    assert tasks(sink)[0][1] is None
    assert sink.anomalies["grouped_collectives"] == 1


def test_groups_within_groups_close_once(tmp_path: Path) -> None:
    reduce = nccl(1_020, 1_030, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0))
    inner = [nccl(1_011, 1_012, "ncclGroupStart"), reduce, nccl(1_040, 1_050, "ncclGroupEnd")]
    sink = decoded(tmp_path, one_call(*grouped(*inner)))
    assert tasks(sink)[0][1] == 4_096


@pytest.mark.parametrize("at", [900, 1_501])
def test_launches_outside_of_a_call_are_not_its_own(at: int, tmp_path: Path) -> None:
    reduce = nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0))
    assert tasks(decoded(tmp_path, one_call(reduce, at=at)))[0][1] is None


def test_calls_of_other_threads_are_not_ours(tmp_path: Path) -> None:
    reduce = nccl(
        1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 1, 0), globalTid=packed(tid=TID + 1)
    )
    assert tasks(decoded(tmp_path, one_call(reduce)))[0][1] is None


def test_ranks_of_a_communicator_are_those_of_the_process(tmp_path: Path) -> None:
    other = packed(200, 201)
    ranges = [
        nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 2, 0, 0)),
        nccl(10, 20, "ncclCommInitRank", payload(INIT, PLAIN, 2, 1, 1), globalTid=other),
        nccl(1_000, 1_500, "ncclSend", payload(PEER, PLAIN, 64, 1)),
        nccl(1_000, 1_500, "ncclRecv", payload(PEER, PLAIN, 64, 0), globalTid=other),
    ]
    sink = decoded(
        tmp_path,
        export(
            *ranges,
            kernels=[
                kernel(2_000, 5_000, 7),
                kernel(2_000, 5_000, 7, globalPid=packed(200), deviceId=1),
            ],
            calls=[call(1_100, 1_200, 7), call(1_100, 1_200, 7, globalTid=other)],
        ),
    )
    assert sorted(tasks(sink)) == [(f"0x{PLAIN:x}", 64, 0, 1)] * 2


def test_payloads_as_json(tmp_path: Path) -> None:
    said = json.dumps({"NCCL communicator ID": str(PLAIN), "Message size [bytes]": 77})
    row = {**nccl(1_000, 1_500, "ncclBroadcast"), "jsonText": said}
    assert tasks(decoded(tmp_path, one_call(row)))[0][:2] == (f"0x{PLAIN:x}", 77)


def test_payloads_as_json_need_no_schemas(tmp_path: Path) -> None:
    said = json.dumps({"NCCL communicator ID": PLAIN, "Message size [bytes]": 77})
    domain = {**pushed(0, None, "NCCL"), "eventType": 75, "domainId": DOMAIN}
    row = {**nccl(1_000, 1_500, "ncclBroadcast"), "jsonText": said}
    tables = one_call(domain, row)
    del tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"], tables["NVTX_PAYLOAD_ENUM_ENTRIES"]
    assert tasks(decoded(tmp_path, tables))[0][:2] == (f"0x{PLAIN:x}", 77)


def test_folders_of_parquet_files_have_them_too(tmp_path: Path) -> None:
    tables = one_call(nccl(1_000, 1_500, "ncclAllReduce", payload(REDUCE, PLAIN, 4_096, 0)))
    folder = as_parquet(write(tmp_path / "run.sqlite", tables), tmp_path / "run_pqtdir")
    sink = RowSink()
    nsys.decode(folder, ParquetTables(folder), sink)
    assert tasks(sink)[0][1] == 4_096


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
def test_payloads_that_fit_no_schema_are_counted(data: object, tmp_path: Path) -> None:
    sink = decoded(tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", data)))
    assert tasks(sink)[0][1] is None
    assert sink.anomalies["binary_payload"] == 1


def test_hex_is_read_as_well(tmp_path: Path) -> None:
    sink = decoded(tmp_path, one_call(nccl(1_000, 1_500, "ncclAllReduce", GOOD.hex())))
    assert tasks(sink)[0][1] == 4_096


def test_schemas_may_say_anything(tmp_path: Path) -> None:
    tables = one_call(nccl(1_000, 1_500, "ncclAllReduce", GOOD))
    for row in tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"]:
        row["offset"] = -5 if row["name"] == "Message size [bytes]" else 1 << 40
    assert tasks(decoded(tmp_path, tables))[0][1] is None
    tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"] = [{"domainId": "x", "schemaId": None, "name": 5}]
    (tmp_path / "run.sqlite").unlink()
    assert tasks(decoded(tmp_path, tables))[0][1] is None
