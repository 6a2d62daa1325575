"""SIGTERM and SIGHUP end uprof like `sys.exit`, and wait while reports are renamed."""

import os
import signal
import sys
import threading
import time
import weakref

import pytest

from unified_prof.base import signals


@pytest.mark.parametrize("number", signals.ENDING)
def test_signal_raises_system_exit_with_the_shells_exit_code(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as ended, signals.ended_by_signals():
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_default_action_is_restored_after_the_block() -> None:
    with signals.ended_by_signals():
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_of_the_program_is_kept() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with signals.ended_by_signals():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]


def test_signal_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ended_by_signals(), signals.held_back():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handler_set_within_the_block_is_kept() -> None:
    try:
        with signals.ended_by_signals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_held_signal_is_delivered_at_the_end_of_the_block() -> None:
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


def test_ctrl_c_is_held_too() -> None:
    done: list[str] = []

    def write_while_interrupted() -> None:
        with signals.held_back():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("written")

    with pytest.raises(KeyboardInterrupt):
        write_while_interrupted()
    assert done == ["written"]


def test_blocks_in_other_threads_change_no_handler() -> None:
    seen: list[object] = []

    def work() -> None:
        with signals.ended_by_signals(), signals.held_back():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_signals_are_held_from_the_end_of_the_workload() -> None:
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


def test_end_of_workload_without_a_block_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals.workload_ended()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("in_children", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_forked_children_get_the_requested_action(in_children: bool, before: bool) -> None:
    with signals.ended_by_signals(in_children=before):
        pass  # an ended block does not affect the next one
    with signals.ended_by_signals(in_children=in_children):
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(in_children)


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_signal_during_a_callback_is_sent_again(
    number: int, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints and ignores exceptions of weak reference callbacks, which imports use."""

    class Target:
        """An object with weak references."""

    monkeypatch.setattr(sys, "unraisablehook", signals.send_ignored_again)
    targets = [Target()]
    reference = weakref.ref(targets[0], lambda _: signal.raise_signal(number))

    def run() -> None:
        targets.clear()
        time.sleep(20)

    begin_s = time.monotonic()
    with signals.ended_by_signals(), pytest.raises(raised):
        run()
    assert reference() is None
    assert time.monotonic() - begin_s < 15, "the signal did not end the blocking call"


def test_signal_waits_until_the_hook_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Target:
        """An object with weak references."""

    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(20 * signals._AGAIN_S)  # a busy machine

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    monkeypatch.setattr(sys, "unraisablehook", signals.send_ignored_again)
    targets = [Target()]
    reference = weakref.ref(targets[0], lambda _: signal.raise_signal(signal.SIGTERM))

    def run() -> None:
        targets.clear()
        time.sleep(20)

    with signals.ended_by_signals(), pytest.raises(SystemExit):
        run()
    assert reference() is None
