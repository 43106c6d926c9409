"""A run folder is locked by one live job; the next job gets the lock when that job is dead."""

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
from megaptm.resilience.lock import RunLock, is_held_by

HOLDER = """
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


def start_holder(run, *arguments, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    lines = [process.stdout.readline().strip() for _ in range(1 + len(arguments))]
    assert "held" in lines
    return process, [int(line) for line in lines if line != "held"]


def write_holder(run, host, token="other"):
    (run / "lock").write_text(json.dumps({"host": host, "pid": 7, "since": "2026-01-01 00:00:00", "token": token}))


def test_second_process_is_rejected_with_holder(tmp_path):
    process, _ = start_holder(tmp_path)
    with pytest.raises(UserError, match=rf"in use by process {process.pid} on .* since .*: wait for it, stop it, or"):
        RunLock(tmp_path).acquire()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with RunLock(tmp_path) as lock:
        assert lock.is_held()


def test_second_lock_in_same_process_is_rejected(tmp_path):
    with RunLock(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path):
        pass


def test_child_does_not_hold_lock_after_parent_died(tmp_path):
    process, [child] = start_holder(tmp_path, "fork")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        os.kill(child, 0)  # it is alive
        with RunLock(tmp_path) as lock:
            assert lock.is_held()
    finally:
        os.kill(child, signal.SIGKILL)


def test_holder_notices_takeover(tmp_path):
    with RunLock(tmp_path) as lock:
        assert lock.is_held()
        assert is_held_by(tmp_path, lock.token)
        write_holder(tmp_path, "other-host")
        assert not lock.is_held()
        assert not is_held_by(tmp_path, lock.token)
    assert json.loads((tmp_path / "lock").read_text())["token"] == "other"  # release changes nothing
    assert not lock.is_held()


def test_temporary_read_error_is_no_takeover(tmp_path, faulty_files):
    code = (
        "import sys; from pathlib import Path; from megaptm.resilience.lock import RunLock\n"
        "lock = RunLock(Path(sys.argv[1])).acquire()\nprint(lock.is_held())"
    )
    environment = {**os.environ, **faulty_files(("read", "/run/lock", errno.EIO, 2))}
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_require_held_does_not_wait_for_unreadable_lock(tmp_path, faulty_files):
    code = (
        "import sys; from pathlib import Path; from megaptm.checkpoint import files\n"
        "from megaptm.resilience.lock import RunLock\nfrom megaptm.storage import RetryPolicy\n"
        "lock = RunLock(Path(sys.argv[1])).acquire()\nfiles.RETRY = RetryPolicy(seconds=0.1, pause=0.01)\n"
        "lock.run = lock.run.rename(lock.run.with_name('failing'))\nlock.path = lock.run / 'lock'\n"
        "lock.require_held()\nprint('continues', flush=True)\nimport os; os._exit(0)"
    )
    environment = {**os.environ, **faulty_files(("read", "/failing/lock", errno.EIO, -1))}
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "continues\n", done.stderr


def test_lock_is_lost_if_its_file_is_removed(tmp_path):
    with RunLock(tmp_path) as lock:
        (tmp_path / "lock").unlink()
        assert not lock.is_held()
        with RunLock(tmp_path) as other:
            assert other.is_held()
            assert not lock.is_held()


def test_holder_on_other_host_counts_only_while_it_beats(tmp_path):
    # As on a file system that does not share locks: the kernel's lock is free, but the file names another host.
    write_holder(tmp_path, "other-host")
    start = time.monotonic()
    with RunLock(tmp_path, beat_seconds=0.1) as lock:
        assert lock.is_held()
    assert 0.4 <= time.monotonic() - start < 5

    write_holder(tmp_path, "other-host")
    beating = "import os, sys, time\nwhile True: os.utime(sys.argv[1]); print(flush=True); time.sleep(0.02)"
    process = subprocess.Popen([sys.executable, "-c", beating, tmp_path / "lock"], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        with pytest.raises(UserError, match="process 7 on other-host since 2026-01-01"):
            RunLock(tmp_path, beat_seconds=0.5).acquire()
    finally:
        process.kill()
        process.wait()


def test_released_lock_file_is_empty(tmp_path):
    with RunLock(tmp_path):
        pass
    assert (tmp_path / "lock").read_bytes() == b""


def test_release_stops_beats(tmp_path, monkeypatch):
    touch = os.utime
    monkeypatch.setattr(os, "utime", lambda path: (time.sleep(0.2), touch(path)))
    with RunLock(tmp_path, beat_seconds=0.01):
        time.sleep(0.1)
    assert "run-lock" not in [thread.name for thread in threading.enumerate()]


INVALID_ATTEMPTS = [
    {"owner": "me"},
    {"chain": "7"},
    {"chain": 7, "job": 7, "restart": 0},
    {"chain": "7", "job": "7"},
    [7],
    "7",
]


@pytest.mark.parametrize("attempt", INVALID_ATTEMPTS)
def test_invalid_attempt_in_lock_file_is_ignored(tmp_path, attempt):
    (tmp_path / "lock").write_text(json.dumps({"attempt": attempt}))
    with RunLock(tmp_path, attempt=Attempt("7", 8, 0)) as lock:
        assert lock.is_held()
        (tmp_path / "lock").write_text(json.dumps({"attempt": attempt}))
        assert not lock.is_held()


@pytest.mark.parametrize("value", ["7", "{", *map(json.dumps, INVALID_ATTEMPTS)])
def test_invalid_attempt_variable_is_rejected(value):
    with pytest.raises(UserError, match=r"MEGAPTM_ATTEMPT .* unset it"):
        Attempt.from_environment({"MEGAPTM_ATTEMPT": value})


def test_held_lock_is_touched(tmp_path):
    with RunLock(tmp_path, beat_seconds=0.05):
        path = tmp_path / "lock"
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def unreachable(tmp_path):
    """Process of job 12's first start that is still alive and holds the lock."""
    process, _ = start_holder(tmp_path, SLURM_JOB_ID="12")
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("attempt", [Attempt("12", 12, 1), Attempt("12", 13, 0), Attempt("12", 12, 0, start=1)])
def test_next_attempt_takes_over_from_unreachable_holder(tmp_path, unreachable, attempt):
    for _ in range(2):  # as in a job: once to prepare the run, once to train
        with RunLock(tmp_path, attempt=attempt) as lock:
            assert lock.is_held()
            lock.require_held()


@pytest.mark.parametrize("attempt", [None, Attempt("12", 12, 0), Attempt("12", 11, 5), Attempt("13", 13, 0)])
def test_other_attempt_does_not_take_over(tmp_path, unreachable, attempt):
    with pytest.raises(UserError, match=f"in use by process {unreachable.pid}"):
        RunLock(tmp_path, attempt=attempt).acquire()


def test_attempt_variable_overrides_slurm(tmp_path):
    first = Attempt("launcher", 12, 0).next_start()
    process, _ = start_holder(tmp_path, SLURM_JOB_ID="12", **first.environment())
    try:
        with pytest.raises(UserError, match=f"in use by process {process.pid}"):
            RunLock(tmp_path, attempt=first).acquire()
        with RunLock(tmp_path, attempt=first.next_start()) as lock:
            assert lock.is_held()
    finally:
        process.kill()
        process.wait()


def test_earlier_attempt_stays_replaced_after_next_ends(tmp_path):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 0)) as earlier:
        error = pytest.raises(UserError, match="another job took over the run")
        with RunLock(tmp_path, attempt=Attempt("12", 12, 1)), error:
            earlier.require_held()
        assert not earlier.is_held()


def test_late_write_of_earlier_attempt_is_overwritten(tmp_path):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 1), beat_seconds=0.02) as lock:
        late = {"chain": "12", "job": 12, "restart": 0}
        (tmp_path / "lock").write_text(json.dumps({"host": "other-host", "token": "late", "attempt": late}))
        assert lock.is_held()
        deadline = time.monotonic() + 10
        while not is_held_by(tmp_path, lock.token):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_kernel_lock_is_taken_when_earlier_holder_ends(tmp_path, unreachable):
    with RunLock(tmp_path, attempt=Attempt("12", 12, 1), beat_seconds=0.02):
        unreachable.kill()
        unreachable.wait()
        deadline = time.monotonic() + 10
        while subprocess.run(["flock", "--nonblock", tmp_path / "lock", "true"], check=False).returncode == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
