"""A signal asks for a stop; it interrupts nothing but waiting."""

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
def test_a_signal_only_sets_the_flag(name):
    with StopRequest() as stop:
        assert not stop.requested
        send(getattr(signal, name))
        assert stop.requested
        assert stop.name == name


def test_the_loss_of_the_terminal_stays_ignored_where_it_is():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            send(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_as_often_as_it_comes_does_not_interrupt():
    with StopRequest() as stop:
        for _ in range(5):
            send(signal.SIGTERM)
        send(signal.SIGUSR1)
        assert stop.name == "SIGTERM"


def test_ctrl_c_a_second_time_interrupts():
    with StopRequest() as stop:
        send(signal.SIGTERM)
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.name == "SIGTERM"


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before


def test_a_signal_that_comes_when_all_is_done_does_no_harm():
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    try:
        with StopRequest() as stop:
            stop.ignore_from_now_on()
        for number in signals.SIGNALS:
            send(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_loader_s_worker_serves_through_a_stop_but_dies_of_sigterm():
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
def test_reading_that_waits_is_given_up_some_time_after_a_stop(monkeypatch, wait, stopped_before):
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.2)
    with StopRequest() as stop:
        if stopped_before:
            send(signal.SIGTERM)
        else:
            threading.Timer(0.2, send, [signal.SIGTERM]).start()
        with pytest.raises(StopError), stop.ends_waiting():
            wait()
        assert stop.name == "SIGTERM"


def test_reading_that_is_done_in_time_is_not_given_up_nor_what_comes_after(monkeypatch):
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.3)
    with StopRequest() as stop:
        with stop.ends_waiting():
            send(signal.SIGTERM)
            time.sleep(0.01)
        time.sleep(0.5)
    assert stop.requested


@pytest.mark.parametrize(
    ("stopped", "said", "ends_as"),
    [
        (True, "Connection closed by peer", StopError),
        (False, "Connection closed by peer", RuntimeError),
        (True, "no such row", RuntimeError),
    ],
)
def test_a_rank_whose_peer_has_heeded_a_stop_heeds_it_too(stopped, said, ends_as):
    """It waits in a collective, which a signal does not end."""
    with StopRequest() as stop:
        if stopped:
            send(signal.SIGTERM)
        with pytest.raises(ends_as), stop.ends_waiting():
            raise RuntimeError(said)
