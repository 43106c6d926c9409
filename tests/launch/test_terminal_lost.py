"""Loss of the terminal of a run, such as a closed laptop or a dropped connection."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from multiprocessing.connection import wait

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import arguments, checkpoints, family_of, last_step, wait_for
from tests.processes import survivors


class Terminal:
    """Terminal with one program in its session."""

    def __init__(self, *words, hangup=signal.SIG_DFL):
        self._controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (24, 80))

        def begin():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, hangup)

        command = [sys.executable, "-m", "megaptm", *words]
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        self.job = subprocess.Popen(command, **streams, start_new_session=True, preexec_fn=begin)
        os.close(terminal)

    def until(self, is_done):
        """Read the output until a condition holds."""

        def read_and_check():
            while wait([self._controller], 0) and self.job.poll() is None:
                os.read(self._controller, 1 << 16)
            return is_done()

        wait_for(read_and_check, self.job)

    def lose(self):
        os.close(self._controller)


@pytest.fixture
def lost(tmp_path, real_corpus):
    """Start a run on two ranks, lose its terminal between steps, and return the run, the job and its processes."""

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


def test_run_saves_and_ends_when_its_terminal_is_lost(lost):
    run, job, everybody = lost(signal.SIG_DFL)
    assert job.wait(timeout=240) == 75
    assert saved_at_its_end(run)
    stop, left = read_events(run)[-2:]
    assert (stop["kind"], stop["signal"], left["kind"], left["code"]) == ("stop-signal", "SIGHUP", "exit", 75)
    assert survivors(everybody) == []


def test_run_with_ignored_hangup_outlives_its_terminal(lost):
    """SIGHUP is ignored, as under nohup, but the output still goes to the terminal."""
    run, job, everybody = lost(signal.SIG_IGN)
    before = last_step(run)
    wait_for(lambda: last_step(run) > before + 20, job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=240) == 75
    assert saved_at_its_end(run)
    assert survivors(everybody) == []
