"""A signal requests a stop; it interrupts only waits."""

import multiprocessing
import os
import queue
import signal
import threading
import time

import pytest

from megaptm.resilience import signals
from megaptm.resilience.signals import StopError, StopRequest


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_signal_sets_requested(name):
    with StopRequest() as stop:
        assert not stop.requested
        send(getattr(signal, name))
        assert stop.requested
        assert stop.name == name


def test_ignored_sighup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            send(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_repeated_sigterm_does_not_interrupt():
    with StopRequest() as stop:
        for _ in range(5):
            send(signal.SIGTERM)
        send(signal.SIGUSR1)
        assert stop.name == "SIGTERM"


def test_second_ctrl_c_interrupts():
    with StopRequest() as stop:
        send(signal.SIGTERM)
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.name == "SIGTERM"


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before


def test_seconds_count_from_the_first_stop_signal():
    with StopRequest() as stop:
        assert stop.seconds < 0
        send(signal.SIGTERM)
        seconds = stop.seconds
        send(signal.SIGUSR1)
        assert stop.seconds >= seconds >= 0


def test_late_signals_are_ignored():
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    try:
        with StopRequest() as stop:
            stop.ignore_signals()
        for number in signals.SIGNALS:
            send(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_forked_worker_ignores_stop_signals_except_sigterm():
    with StopRequest() as stop:
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            os.kill(worker.pid, number)
        worker.join(0.3)
        assert worker.is_alive()
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM
        assert not stop.requested


@pytest.mark.parametrize("wait", [lambda: time.sleep(600), queue.SimpleQueue().get, threading.Event().wait])
@pytest.mark.parametrize("stopped_before", [False, True])
def test_wait_is_interrupted_after_stop(monkeypatch, wait, stopped_before):
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.2)
    with StopRequest() as stop:
        if stopped_before:
            send(signal.SIGTERM)
        else:
            threading.Timer(0.2, send, [signal.SIGTERM]).start()
        with pytest.raises(StopError), stop.interrupt_waits():
            wait()
        assert stop.name == "SIGTERM"


def test_wait_that_ends_in_time_is_not_interrupted(monkeypatch):
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.3)
    with StopRequest() as stop:
        with stop.interrupt_waits():
            send(signal.SIGTERM)
            time.sleep(0.01)
        time.sleep(0.5)
    assert stop.requested


@pytest.mark.parametrize(
    ("stopped", "message", "expected_error"),
    [
        (True, "Connection closed by peer", StopError),
        (False, "Connection closed by peer", RuntimeError),
        (True, "no such row", RuntimeError),
    ],
)
def test_lost_peer_after_stop_is_a_stop(stopped, message, expected_error):
    """A signal does not end a wait in a collective; the end of the peer does."""
    with StopRequest() as stop:
        if stopped:
            send(signal.SIGTERM)
        with pytest.raises(expected_error), stop.interrupt_waits():
            raise RuntimeError(message)
