"""Automatic garbage collection is suspended during a measured backward pass, and restored."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from tests.tracking.workloads import NET, Workload
from unified_prof.tracking.device import collection_held_off


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_collection_is_suspended_inside_and_restored_after_the_block() -> None:
    before = gc.get_threshold()
    with collection_held_off():
        count = gc.get_stats()[0]["collections"]
        kept: list[list[int]] = [[] for _ in range(100_000)]
        assert gc.get_stats()[0]["collections"] == count
        assert gc.isenabled(), "the switch of the program is unchanged"
    assert gc.get_threshold() == before
    assert len(kept) == 100_000


def test_collection_is_restored_after_an_exception() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyboardInterrupt), collection_held_off():
        raise KeyboardInterrupt
    assert gc.get_threshold() == before


def test_nested_and_concurrent_blocks_restore_collection_once() -> None:
    before = gc.get_threshold()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collection_held_off():
            inside.set()
            leave.wait(10)

    with collection_held_off():
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        with collection_held_off():
            pass
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == before
    leave.set()
    thread.join()
    assert gc.get_threshold() == before


def test_abandoned_generator_restores_collection() -> None:
    before = gc.get_threshold()

    def steps() -> Iterator[int]:
        with collection_held_off():
            yield 1

    generator = steps()
    next(generator)
    assert gc.get_threshold()[0] == 0
    del generator
    assert gc.get_threshold() == before


def test_thresholds_set_inside_the_block_are_kept() -> None:
    with collection_held_off():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold()[0] == 123


def test_disabled_collection_stays_disabled() -> None:
    gc.set_threshold(0)
    with collection_held_off():
        pass
    assert gc.get_threshold()[0] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_collection_is_restored_in_a_forked_child() -> None:
    before = gc.get_threshold()
    with collection_held_off():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.get_threshold() == before else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_threshold()[0] == 0


def test_collection_is_restored(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    workload.write("main.py", NET + """
import gc
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
seen = set()
def look(gradient):
    seen.add(gc.get_threshold()[0])
def fail(gradient):
    raise ValueError("from a hook")
for number in range(9):
    loss = net(torch.ones(4, 8)).sum()
    loss.register_hook(fail if number == 3 else look)
    try:
        loss.backward()
    except ValueError as error:
        print(error, gc.get_threshold()[0] > 0)
    optimizer.step()
print(0 in seen)
""")  # fmt: skip
    workload.tracked()
    assert capsys.readouterr().out.splitlines() == ["from a hook True", "True"]
    assert gc.get_threshold() == before
