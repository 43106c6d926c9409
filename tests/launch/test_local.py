"""The local launcher, with small programs instead of the trainer."""

import fcntl
import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.launch import restart_policy
from megaptm.launch.local import launch_ranks
from megaptm.launch.log_tee import LogTee
from megaptm.node import available_cpus
from megaptm.resilience.events import read_events
from tests.processes import survivors
from tests.train.ranks import pids, start_launcher, write_program


@pytest.fixture
def program(tmp_path):
    """Write a worker program and return the command that runs it."""

    return lambda body: write_program(tmp_path, body)


def gone(numbers: list[int]) -> bool:
    """Whether all processes have ended, with some time for the kernel."""
    return not survivors(numbers, seconds=5)


def test_each_rank_has_its_environment_and_log(program, tmp_path, capfd):
    body = """
    print(rank, world, os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"], os.environ["OMP_NUM_THREADS"])
    """
    assert launch_ranks(program(body), processes=3, run=tmp_path / "run", threads=5) == 0
    assert capfd.readouterr().out == "0 3 0 127.0.0.1 5\n"
    logs = [(tmp_path / f"run/logs/rank-{rank}.log").read_text() for rank in range(3)]
    assert logs == [f"{rank} 3 {rank} 127.0.0.1 5\n" for rank in range(3)]


def test_runs_with_text_only_stdout(program, tmp_path, monkeypatch):
    """Notebooks replace stdout by such a stream."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert launch_ranks(program("print(rank)"), processes=1, run=tmp_path / "run") == 0
    assert (tmp_path / "run/logs/rank-0.log").read_text() == "0\n"


def test_output_of_rank_0_is_copied_unchanged(program, tmp_path, capfd):
    body = r"""
    if rank == 0:
        for number in range(3):
            sys.stderr.buffer.write(b"\r\x1b[2K%d%% \xe2\x94\x81" % number)
            sys.stderr.flush()
    """
    assert launch_ranks(program(body), processes=2, run=tmp_path / "run") == 0
    assert capfd.readouterr().err == "".join(f"\r\x1b[2K{number}% ━" for number in range(3))


def test_workers_share_the_cores(program, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch_ranks(program("print(os.environ['OMP_NUM_THREADS'])"), processes=2, run=tmp_path / "run") == 0
    assert int(capfd.readouterr().out) == max(1, available_cpus() // 2)


@pytest.mark.parametrize(
    ("codes", "expected"), [("0, 0", 0), ("75, 75", 75), ("0, 75", 75), ("3, 0", 1), ("0, 3", 1), ("75, 3", 1)]
)
def test_exit_code_of_the_run(program, tmp_path, codes, expected):
    assert launch_ranks(program(f"sys.exit([{codes}][rank])"), processes=2, run=tmp_path, grace_seconds=0.5) == expected


def test_killed_worker_is_reported_and_all_processes_end(program, tmp_path):
    body = """
    import subprocess
    helper = subprocess.Popen(["sleep", "600"])
    (folder / f"pid-helper-{rank}").write_text(str(helper.pid))
    everybody_is_here()
    time.sleep(600)
    """
    launcher = start_launcher(program(body), tmp_path / "run")
    everyone = pids(tmp_path, 4, launcher)
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert errors.startswith("rank 1 was killed by signal 9 (SIGKILL)")
    assert gone(everyone)


def test_worker_that_ignores_sigterm_is_killed(program, tmp_path):
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    everybody_is_here()
    if rank == 1:
        raise ValueError("my own mistake")
    time.sleep(600)
    """
    started = time.monotonic()
    assert launch_ranks(program(body), processes=2, run=tmp_path / "run", grace_seconds=0.5) == 1
    assert time.monotonic() - started < 20
    assert gone(pids(tmp_path, 2))


def test_root_cause_is_printed_without_echoes(program, tmp_path, capfd):
    body = """
    everybody_is_here()
    if rank == 2:
        time.sleep(0.3)
        raise ValueError("my own mistake")
    raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711")
    """
    assert launch_ranks(program(body), processes=3, run=tmp_path / "run", grace_seconds=2.0) == 1
    errors = capfd.readouterr().err
    assert errors.startswith("rank 2 failed:\nTraceback")
    assert errors.count("Traceback") == 1
    assert "ValueError: my own mistake" in errors
    assert "Failed later: rank 0, 1." in errors
    assert "Connection closed" in (tmp_path / "run/logs/rank-0.log").read_text()


def test_lost_peer_without_root_cause_is_printed(program, tmp_path, capfd):
    body = "raise RuntimeError('Connection reset by peer')"
    assert launch_ranks(program(body), processes=2, run=tmp_path / "run", grace_seconds=0.5) == 1
    assert "RuntimeError: Connection reset by peer" in capfd.readouterr().err


def test_error_of_an_earlier_launch_is_not_repeated(program, tmp_path, capfd):
    launch_ranks(program("raise ValueError('the first time')"), processes=1, run=tmp_path / "run", grace_seconds=0.2)
    launch_ranks(program("sys.exit(9)"), processes=1, run=tmp_path / "run", grace_seconds=0.2)
    assert capfd.readouterr().err.count("ValueError: the first time") == 1


def test_user_error_of_workers_is_raised_once(program, tmp_path, capfd):
    body = "print('error: data.mix: no such folder.', file=sys.stderr); sys.exit(2)"
    with pytest.raises(UserError, match=r"^data\.mix: no such folder\.$"):
        launch_ranks(program(body), processes=2, run=tmp_path / "run", grace_seconds=2.0)
    assert capfd.readouterr().err == ""


def test_user_error_after_a_truncated_line_is_found(program, tmp_path):
    body = "print('step 7  lo', end='', file=sys.stderr); print('error: no space left.', file=sys.stderr); sys.exit(2)"
    with pytest.raises(UserError, match=r"^no space left\.$"):
        launch_ranks(program(body), processes=1, run=tmp_path / "run", grace_seconds=0.2)


def test_user_error_is_printed_if_the_log_is_full(program, tmp_path):
    log = tmp_path / "run/logs/rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 5000)
    body = """
    sys.stderr.write("error: the disk is full.\\n" if rank == 0 else "")
    sys.exit(2 if rank == 0 else 0)
    """
    source = (
        "import resource, sys; from pathlib import Path; from megaptm.launch.local import launch_ranks\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        f"launch_ranks({program(body)!r}, processes=2, run=Path({str(tmp_path / 'run')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("UserError: the disk is full.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_log_does_not_block_the_terminal():
    reading, writing = os.pipe()
    terminal = io.BytesIO()
    tee = LogTee(os.fdopen(reading, "rb", buffering=0), terminal=terminal, log=Path("/dev/full"))
    tee.start()
    with os.fdopen(writing, "wb", buffering=0) as rank_0:
        for number in range(3):
            rank_0.write(b"step %d\n" % number)
    tee.join(timeout=30)
    assert terminal.getvalue() == b"step 0\nstep 1\nstep 2\n"


def test_output_is_read_in_a_process_with_many_open_files(tmp_path):
    """`select` cannot wait for a file number above 1,023; `pretrain` may be called by a program with more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1500)
    os.close(reading)
    terminal = io.BytesIO()
    tee = LogTee(os.fdopen(high, "rb", buffering=0), terminal=terminal, log=tmp_path / "log")
    tee.start()
    os.write(writing, b"Traceback (most recent call last):\n")
    while not tee.held:
        time.sleep(0.01)
    os.close(writing)
    tee.join(timeout=30)
    assert not tee.is_alive()
    assert tee.held == b"Traceback (most recent call last):\n"


def test_traceback_of_a_living_worker_is_printed(program, tmp_path, capfd):
    body = "print('Traceback (most recent call last): only a warning', file=sys.stderr)"
    assert launch_ranks(program(body), processes=1, run=tmp_path / "run") == 0
    assert "only a warning" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_signal_reaches_each_worker_once(program, tmp_path, number):
    body = """
    got = []
    for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, lambda number, frame: got.append(number))
    everybody_is_here()
    while not got:
        time.sleep(0.01)
    time.sleep(0.2)
    (folder / f"got-{rank}").write_text(str([int(one) for one in got]))
    sys.exit(75)
    """
    launcher = start_launcher(program(body), tmp_path / "run")
    pids(tmp_path, 2, launcher)
    launcher.send_signal(number)
    launcher.communicate(timeout=30)
    assert launcher.returncode == 75
    assert [(tmp_path / f"got-{rank}").read_text() for rank in range(2)] == [f"[{int(number)}]"] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_before_the_first_save_exits_with_75(program, tmp_path, number):
    launcher = start_launcher(program("everybody_is_here(); time.sleep(600)"), tmp_path / "run")
    everyone = pids(tmp_path, 2, launcher)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 75
    assert f"Stopped by {number.name} before the first step" in errors
    assert gone(everyone)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent died")
def test_workers_end_with_a_killed_launcher(program, tmp_path):
    launcher = start_launcher(program("everybody_is_here(); time.sleep(600)"), tmp_path / "run")
    everyone = pids(tmp_path, 2, launcher)
    launcher.kill()
    launcher.communicate(timeout=30)
    assert gone(everyone)


def test_launcher_imports_no_torch():
    source = "import sys, megaptm.launch.local; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


COUNT_STARTS = """
with open(folder / f"starts-{rank}", "a") as file:
    file.write("x")
start = (folder / f"starts-{rank}").stat().st_size
"""


def num_starts(folder, rank):
    return (folder / f"starts-{rank}").stat().st_size


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit('error: replicas of the weights differ')"]
)
def test_all_ranks_start_again_after_a_fault_of_the_machine(program, tmp_path, capfd, end):
    body = f"{COUNT_STARTS}if rank == 1 and start == 1:\n    {end}\nif start == 1:\n    time.sleep(60)\n"
    assert launch_ranks(program(body), processes=2, run=tmp_path / "run", restarts=2, grace_seconds=0.5) == 0
    assert [num_starts(tmp_path, rank) for rank in range(2)] == [2, 2]
    assert "again from the beginning (restart 1 of 2 without a new checkpoint)." in capfd.readouterr().err


def test_repeated_fault_without_a_checkpoint_ends_the_run(program, tmp_path, monkeypatch):
    monkeypatch.setattr(restart_policy, "PAUSES", (0.0, 0.2))
    command = program(f"{COUNT_STARTS}os.kill(os.getpid(), signal.SIGKILL)\n")
    assert launch_ranks(command, processes=1, run=tmp_path / "run", restarts=2) == 1
    assert num_starts(tmp_path, 0) == 3
    assert [event["start"] for event in read_events(tmp_path / "run") if event["kind"] == "restart"] == [2, 3]


def test_signal_before_a_restart_stops_the_run(program, tmp_path, monkeypatch):
    monkeypatch.setattr(restart_policy, "PAUSES", (60.0,))
    command = program(f"{COUNT_STARTS}os.kill(os.getpid(), signal.SIGKILL)\n")

    def send_signal_after_failure():
        while not read_events(tmp_path / "run"):
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send_signal_after_failure, daemon=True).start()
    assert launch_ranks(command, processes=1, run=tmp_path / "run", restarts=5) == 75
    assert num_starts(tmp_path, 0) == 1


def test_error_of_the_program_is_not_repeated(program, tmp_path):
    command = program(f"{COUNT_STARTS}raise KeyError('label')\n")
    assert launch_ranks(command, processes=1, run=tmp_path / "run", restarts=5) == 1
    assert num_starts(tmp_path, 0) == 1
