"""Automatic garbage collection is suspended during a measured backward pass, and restored."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from tests.tracking.test_scripts import NET
from tests.tracking.workloads import Workload
from unified_prof.tracking.interference import collection_held_off


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_nothing_is_collected_within_and_all_is_as_before_after() -> None:
    before = gc.get_threshold()
    with collection_held_off():
        count = gc.get_stats()[0]["collections"]
        kept: list[list[int]] = [[] for _ in range(100_000)]
        assert gc.get_stats()[0]["collections"] == count
        assert gc.isenabled()  # the program's own switch stays as it is
    assert gc.get_threshold() == before
    assert len(kept) == 100_000


def test_an_exception_gives_it_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyboardInterrupt), collection_held_off():
        raise KeyboardInterrupt
    assert gc.get_threshold() == before


def test_blocks_within_each_other_and_of_two_threads_give_it_back_once() -> None:
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


def test_a_generator_that_is_never_finished_gives_it_back() -> None:
    before = gc.get_threshold()

    def steps() -> Iterator[int]:
        with collection_held_off():
            yield 1

    generator = steps()
    next(generator)
    assert gc.get_threshold()[0] == 0
    del generator
    assert gc.get_threshold() == before


def test_what_the_program_sets_within_stays() -> None:
    with collection_held_off():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold()[0] == 123


def test_a_program_without_automatic_collection_stays_so() -> None:
    gc.set_threshold(0)
    with collection_held_off():
        pass
    assert gc.get_threshold()[0] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_collects() -> None:
    before = gc.get_threshold()
    with collection_held_off():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.get_threshold() == before else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_threshold()[0] == 0


def test_a_backward_pass_that_raises_gives_it_back(
    workload: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
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
