"""SIGTERM and SIGHUP end uprof as `sys.exit` would, and wait while reports get their names."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from unified_prof.base import signals


@pytest.mark.parametrize("number", signals.ENDING)
def test_the_signal_raises_system_exit_with_the_code_of_the_shell(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as ended, signals.ended_by_signals():
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_afterwards_the_signal_has_its_default_action_again() -> None:
    with signals.ended_by_signals():
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_program_stays() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with signals.ended_by_signals():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ended_by_signals(), signals.held_back():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_the_block_set_is_left_to_it() -> None:
    try:
        with signals.ended_by_signals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_held_signal_is_delivered_when_the_block_ends() -> None:
    done: list[str] = []

    def write_while_signals_come() -> None:
        with signals.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            done.append("written")
        done.append("never")

    with pytest.raises(SystemExit) as ended, signals.ended_by_signals():
        write_while_signals_come()
    assert done == ["written"]
    assert ended.value.code == 143


def test_ctrl_c_waits_too() -> None:
    done: list[str] = []

    def write_while_interrupted() -> None:
        with signals.held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("written")

    with pytest.raises(KeyboardInterrupt):
        write_while_interrupted()
    assert done == ["written"]


def test_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with signals.ended_by_signals(), signals.held_back():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_signals_wait_from_the_end_of_the_workload_and_not_before() -> None:
    done: list[str] = []

    def run() -> None:
        with signals.held_back_from_end_of_workload():
            signals.workload_ended()
            os.kill(os.getpid(), signal.SIGTERM)
            signals.workload_ended()
            done.append("written")
        done.append("never")

    with pytest.raises(SystemExit), signals.ended_by_signals():
        run()
    assert done == ["written"]
    with (
        pytest.raises(SystemExit),
        signals.ended_by_signals(),
        signals.held_back_from_end_of_workload(),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_such_a_block_the_end_of_a_workload_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals.workload_ended()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("in_children", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_forked_children_end_as_they_were_told(in_children: bool, before: bool) -> None:
    with signals.ended_by_signals(in_children=before):
        pass  # a block that is over says nothing of this one
    with signals.ended_by_signals(in_children=in_children):
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(in_children)
