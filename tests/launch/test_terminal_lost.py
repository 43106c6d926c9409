"""A terminal that goes away under a run: a laptop that is closed, a connection that drops."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import arguments, checkpoints, family_of, last_step, wait_for
from tests.processes import survivors


class Terminal:
    """A terminal, whose session is that of the one program that was started on it."""

    def __init__(self, *words, hangup=signal.SIG_DFL):
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))

        def begin():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, hangup)

        command = [sys.executable, "-m", "megaptm", *words]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.job = subprocess.Popen(command, **streams, start_new_session=True, preexec_fn=begin)
        os.close(theirs)

    def until(self, what):
        """Show what is written, until something is so."""

        def shown():
            while select.select([self._ours], [], [], 0)[0] and self.job.poll() is None:
                os.read(self._ours, 1 << 16)
            return what()

        wait_for(shown, self.job)

    def lose(self):
        os.close(self._ours)


@pytest.fixture
def lost(tmp_path, real_corpus):
    """A run on two ranks whose terminal is lost in the midst of its steps: the run, the job and its processes."""

    def lose(hangup):
        run = tmp_path / "run"
        more = ("layout.data=2", "train.steps=1000000", "train.validate_every=2", "checkpoint.every=7")
        terminal = Terminal("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *more), hangup=hangup)
        terminal.until(lambda: checkpoints(run))
        everybody = family_of(terminal.job)
        terminal.lose()
        return run, terminal.job, everybody

    return lose


def saved_at_its_end(run):
    return checkpoints(run)[-1] == last_step(run)


def test_a_run_whose_terminal_is_lost_saves_and_ends(lost):
    run, job, everybody = lost(signal.SIG_DFL)
    assert job.wait(timeout=240) == 75
    assert saved_at_its_end(run)
    stop, left = read_events(run)[-2:]
    assert (stop["kind"], stop["signal"], left["kind"], left["code"]) == ("stop-signal", "SIGHUP", "exit", 75)
    assert survivors(everybody) == []


def test_a_run_that_is_to_outlive_its_terminal_does(lost):
    """As under nohup, but with the terminal still in its hands."""
    run, job, everybody = lost(signal.SIG_IGN)
    before = last_step(run)
    wait_for(lambda: last_step(run) > before + 20, job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=240) == 75
    assert saved_at_its_end(run)
    assert survivors(everybody) == []
