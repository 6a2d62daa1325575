"""Communication in the open, in small pieces, or waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import US, Plant, advice, cost_ns, found

STEP = 1000 * US
MIB = 1 << 20
FP32 = 4


class Talking(Plant):
    """A recording whose collectives have sizes."""

    def talk(self, start: int, end: int, size: int, *, members: int = 8) -> None:
        """Add an all-reduce of so many bytes."""
        self._connections += 1
        row: dict[str, Any] = {
            "opName": [self.text(f"hcom_allReduce__{self._connections}")],
            "opType": self.text("hcom_allReduce_"),
            "startNs": self.T0 + start,
            "endNs": self.T0 + end,
            "connectionId": 4294967295,
            "opId": self._connections,
            "groupName": self.text("dp"),
            "count": size // 4,
            "dataType": FP32,
            "rankSize": members,
            "deviceId": 0,
        }
        self.writer.write("COMMUNICATION_OP", row)

    def __enter__(self) -> Talking:
        super().__enter__()
        return self


def steps(path: Path, *messages: tuple[int, int, int], compute: int, members: int = 8) -> Path:
    """Write five steps of a millisecond: a kernel up to `compute`, messages (start, end, bytes)."""
    with Talking(path, revision="latest") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            plant.kernel(begin, begin + compute)
            for start, end, size in messages:
                plant.talk(begin + start, begin + end, size, members=members)
    return path


BESIDE = ((600 * US, 800 * US, 8 * MIB), (800 * US, STEP, 8 * MIB))


def test_communication_alone_costs_all_but_the_last_message(tmp_path: Path) -> None:
    said = found(steps(tmp_path / "run.db", *BESIDE, compute=600 * US))["exposed_communication"]
    assert said.figures["exposed_share"] == 0.4
    assert cost_ns(said) == 200 * US
    # Two fifths of the time and a cost of one: the sentence says where the other one is.
    assert "40 % of the time is not overlapped with compute" in said.text
    assert "which cannot be overlapped; saves up to 200 µs per step" in said.text
    assert said.sure == "likely"
    assert said.evidence[0]["name"] == "all_reduce of 8.39 MB"


def exposed_cost_us(path: Path) -> float:
    """Return the cost of exposed communication per step."""
    finding = found(path).get("exposed_communication")
    return 0 if finding is None else cost_ns(finding) / US


def test_only_one_bucket_of_a_large_last_message_is_exempt(tmp_path: Path) -> None:
    # 100 MiB in 400 µs: a bucket of 25 MiB takes 100 µs of it.
    message = (600 * US, STEP, 100 * MIB)
    path = steps(tmp_path / "run.db", message, compute=600 * US)
    finding = found(path)["exposed_communication"]
    assert cost_ns(finding) == 300 * US
    assert "10 % is the last bucket of each step" in finding.text
    assert finding.figures["last_bucket_ns"] == 4 * 100 * US


@pytest.mark.parametrize("size", [8 * MIB, 800 * MIB])
def test_a_message_with_a_kernel_after_it_is_not_exempt(tmp_path: Path, size: int) -> None:
    with Talking(tmp_path / "run.db", revision="latest") as plant:
        for step in range(5):
            begin = step * STEP
            plant.step(step, begin, begin + STEP)
            plant.kernel(begin, begin + 200 * US)
            plant.talk(begin + 200 * US, begin + 880 * US, size)
            plant.kernel(begin + 900 * US, begin + STEP)
    assert exposed_cost_us(tmp_path / "run.db") == 680


def test_two_large_messages_at_the_end_cost_all_but_one_bucket(tmp_path: Path) -> None:
    messages = ((600 * US, 800 * US, 75 * MIB), (800 * US, STEP, 75 * MIB))
    path = steps(tmp_path / "run.db", *messages, compute=600 * US)
    assert exposed_cost_us(path) == pytest.approx(400 - 200 / 3, abs=0.01)


def test_communication_under_computation_is_no_finding(tmp_path: Path) -> None:
    assert advice(steps(tmp_path / "run.db", *BESIDE, compute=STEP)).findings == ()


def test_a_group_of_one_does_not_communicate(tmp_path: Path) -> None:
    path = steps(tmp_path / "run.db", *BESIDE, compute=600 * US, members=1)
    assert advice(path).findings == ()


def test_what_is_longer_than_moving_takes_is_waiting(tmp_path: Path) -> None:
    # The larger message takes 50 µs, so the smaller one needs no more: 350 of 400 are waiting.
    messages = ((550 * US, 950 * US, 4 * MIB), (950 * US, STEP, 8 * MIB))
    said = found(steps(tmp_path / "run.db", *messages, compute=550 * US))
    assert "exposed_communication" not in said
    waiting = said["waiting_for_ranks"]
    assert cost_ns(waiting) == 350 * US
    assert "uprof cluster" in waiting.advice


def test_many_small_messages_cost_their_latency(tmp_path: Path) -> None:
    large = (0, 100 * US, 10 * MIB)
    small = tuple((500 * US + at * 10 * US, 510 * US + at * 10 * US, 65536) for at in range(40))
    said = found(steps(tmp_path / "run.db", large, *small, compute=500 * US))["small_buckets"]
    # 400 µs alone; at the rate of the large one 40 x 64 KiB take 25 µs.
    assert cost_ns(said) == 400 * US - 40 * 65536 * 100 * US // (10 * MIB)
    assert said.figures["small"] == 4 * 40


def test_few_small_messages_are_no_finding(tmp_path: Path) -> None:
    messages = tuple((at * 100 * US, at * 100 * US + 90 * US, 10 * MIB) for at in range(9))
    path = steps(tmp_path / "run.db", *messages, (960 * US, STEP, 4), compute=960 * US)
    assert "small_buckets" not in found(path)


def test_without_collectives_they_are_not_judged(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        plant.kernel(0, US)
    missing = {one.kind: one.why for one in advice(tmp_path / "run.db").not_judged}
    assert "COMMUNICATION_OP" in missing["exposed_communication"]
