"""One live job to a run folder, and the next one as soon as it is dead."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from megaptm.errors import UserError
from megaptm.resilience.attempt import Attempt
from megaptm.resilience.lock import RunLock, holds

HOLD = """
import os, sys, time
from pathlib import Path
from megaptm.resilience.lock import RunLock
lock = RunLock(Path(sys.argv[1])).acquire()
if len(sys.argv) > 2 and os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
else:
    os.write(1, b"held\\n")
time.sleep(60)
"""


def holder(run, *arguments, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, run, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    said = [process.stdout.readline().strip() for _ in range(1 + len(arguments))]
    assert "held" in said
    return process, [int(line) for line in said if line != "held"]


def named(run, host, token="theirs"):
    (run / "lock").write_text(json.dumps({"host": host, "pid": 7, "since": "2026-01-01 00:00:00", "token": token}))


def test_a_second_process_is_told_who_has_the_run(tmp_path):
    process, _ = holder(tmp_path)
    with pytest.raises(UserError, match=rf"in use by process {process.pid} on .* since .*: wait for it, stop it, or"):
        RunLock(tmp_path).acquire()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with RunLock(tmp_path) as lock:
        assert lock.still_mine()


def test_a_second_lock_in_the_same_process_is_refused_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path):
        pass


def test_a_child_left_behind_does_not_hold_the_lock(tmp_path):
    process, [child] = holder(tmp_path, "fork")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        os.kill(child, 0)  # it lives
        with RunLock(tmp_path) as lock:
            assert lock.still_mine()
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_holder_learns_that_it_was_taken_over(tmp_path):
    with RunLock(tmp_path) as lock:
        assert lock.still_mine()
        assert holds(tmp_path, lock.token)
        named(tmp_path, "elsewhere")
        assert not lock.still_mine()
        assert not holds(tmp_path, lock.token)
    assert json.loads((tmp_path / "lock").read_text())["token"] == "theirs"  # a release does not touch it any more
    assert not lock.still_mine()


def test_a_lock_that_cannot_be_read_for_a_moment_is_not_taken_over(tmp_path, faulty_files):
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.lock import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])).acquire()\nprint(lock.still_mine())"
    )
    environment = {**os.environ, **faulty_files(("read", "/run/lock", errno.EIO, 2))}
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_a_step_does_not_wait_for_a_lock_that_cannot_be_read(tmp_path, faulty_files):
    code = (
        "import sys; from pathlib import Path; from megaptm.checkpoint import files\n"
        "from megaptm.resilience.lock import RunLock\nfrom megaptm.storage import RetryPolicy\n"
        "lock = RunLock(Path(sys.argv[1])).acquire()\nfiles.RETRY = RetryPolicy(seconds=0.1, pause=0.01)\n"
        "lock.run = lock.run.rename(lock.run.with_name('failing'))\nlock.path = lock.run / 'lock'\n"
        "lock.must_be_mine()\nprint('goes on', flush=True)\nimport os; os._exit(0)"
    )
    environment = {**os.environ, **faulty_files(("read", "/failing/lock", errno.EIO, -1))}
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "goes on\n", done.stderr


def test_a_lock_file_removed_by_hand_is_no_longer_ours(tmp_path):
    with RunLock(tmp_path) as lock:
        (tmp_path / "lock").unlink()
        assert not lock.still_mine()
        with RunLock(tmp_path) as other:
            assert other.still_mine()
            assert not lock.still_mine()


def test_a_holder_on_another_host_is_believed_only_while_it_beats(tmp_path):
    # The kernel's lock is free, as on a file system that does not share locks, but another host's name is in the file.
    named(tmp_path, "elsewhere")
    start = time.monotonic()
    with RunLock(tmp_path, beat_seconds=0.1) as lock:
        assert lock.still_mine()
    assert 0.4 <= time.monotonic() - start < 5

    named(tmp_path, "elsewhere")
    beating = "import os, sys, time\nwhile True: os.utime(sys.argv[1]); print(flush=True); time.sleep(0.02)"
    process = subprocess.Popen([sys.executable, "-c", beating, tmp_path / "lock"], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with pytest.raises(UserError, match="process 7 on elsewhere since 2026-01-01"):
            RunLock(tmp_path, beat_seconds=0.5).acquire()
    finally:
        process.kill()
        process.wait()


def test_a_released_lock_makes_no_one_wait(tmp_path):
    with RunLock(tmp_path):
        pass
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_lock_that_is_released_touches_nothing_any_more(tmp_path, monkeypatch):
    touch = os.utime
    monkeypatch.setattr(os, "utime", lambda path: (time.sleep(0.2), touch(path)))
    with RunLock(tmp_path, beat_seconds=0.01):
        time.sleep(0.1)
    assert "run-lock" not in [thread.name for thread in threading.enumerate()]


FOREIGN = [{"owner": "me"}, {"chain": "7"}, {"chain": 7, "job": 7, "restart": 0}, {"chain": "7", "job": "7"}, [7], "7"]


@pytest.mark.parametrize("attempt", FOREIGN)
def test_an_attempt_that_cannot_be_one_is_none(tmp_path, attempt):
    (tmp_path / "lock").write_text(json.dumps({"attempt": attempt}))
    with RunLock(tmp_path, attempt=Attempt("7", 8, 0)) as lock:
        assert lock.still_mine()
        (tmp_path / "lock").write_text(json.dumps({"attempt": attempt}))
        assert not lock.still_mine()


@pytest.mark.parametrize("told", ["7", "{", *map(json.dumps, FOREIGN)])
def test_a_launcher_that_is_none_is_told(told):
    with pytest.raises(UserError, match=r"MEGAPTM_ATTEMPT .* unset it"):
        Attempt.here({"MEGAPTM_ATTEMPT": told})


def test_a_held_lock_beats(tmp_path):
    with RunLock(tmp_path, beat_seconds=0.05):
        path = tmp_path / "lock"
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def lost(tmp_path):
    """A process of job 12's first start that still lives and holds the lock."""
    process, _ = holder(tmp_path, SLURM_JOB_ID="12")
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("attempt", [Attempt("12", 12, 1), Attempt("12", 13, 0), Attempt("12", 12, 0, start=1)])
def test_the_next_attempt_takes_the_run_from_one_that_is_lost_and_alive(tmp_path, lost, attempt):
    for _ in range(2):  # as a job does: once to prepare the run, once to train
        with RunLock(tmp_path, attempt=attempt) as lock:
            assert lock.still_mine()
            lock.must_be_mine()


@pytest.mark.parametrize("attempt", [None, Attempt("12", 12, 0), Attempt("12", 11, 5), Attempt("13", 13, 0)])
def test_no_other_attempt_does(tmp_path, lost, attempt):
    with pytest.raises(UserError, match=f"in use by process {lost.pid}"):
        RunLock(tmp_path, attempt=attempt).acquire()


def test_a_launcher_says_which_start_a_process_is_whatever_slurm_says(tmp_path):
    first = Attempt("launcher", 12, 0).next_start()
    process, _ = holder(tmp_path, SLURM_JOB_ID="12", **first.environment())
    try:
        with pytest.raises(UserError, match=f"in use by process {process.pid}"):
            RunLock(tmp_path, attempt=first).acquire()
        with RunLock(tmp_path, attempt=first.next_start()) as lock:
            assert lock.still_mine()
    finally:
        process.kill()
        process.wait()


def test_one_that_was_lost_has_no_say_when_the_next_one_is_done(tmp_path):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 0)) as lost:
        error = pytest.raises(UserError, match="another job took over the run")
        with RunLock(tmp_path, attempt=Attempt("12", 12, 1)), error:
            lost.must_be_mine()
        assert not lost.still_mine()


def test_one_that_signs_too_late_is_signed_over(tmp_path):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 1), beat_seconds=0.02) as lock:
        late = {"chain": "12", "job": 12, "restart": 0}
        (tmp_path / "lock").write_text(json.dumps({"host": "elsewhere", "token": "late", "attempt": late}))
        assert lock.still_mine()
        deadline = time.monotonic() + 10
        while not holds(tmp_path, lock.token):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_lock_is_had_when_the_one_that_was_lost_ends(tmp_path, lost):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 1), beat_seconds=0.02):
        lost.kill()
        lost.wait()
        deadline = time.monotonic() + 10
        while subprocess.run(["flock", "--nonblock", tmp_path / "lock", "true"], check=False).returncode == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
