"""Hanging ranks are detected, reported and ended. Small programs stand in for the trainer."""

import signal
import subprocess
import sys

import psutil
import pytest

from megaptm.launch.local import launch_ranks
from megaptm.resilience.events import HangEvent, read_events
from megaptm.resilience.failures import report_hang
from megaptm.resilience.heartbeat import EXIT, write_request
from megaptm.resilience.watchdog import Hang
from tests.drills.program import wait_for
from tests.processes import survivors
from tests.train.ranks import pids, start_launcher, write_program

HANG_SECONDS = 4.0
STEPS = f"""
from megaptm.resilience.heartbeat import VARIABLE, Heartbeat
heartbeat = Heartbeat(rank, hang_seconds={HANG_SECONDS}).open(Path(os.environ[VARIABLE]))
i_am_here()
for _ in range(3):
    with heartbeat.during("data"):
        time.sleep(0.01)
    with heartbeat.during("step"):
        time.sleep(0.05)
"""


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a worker's program and returns the command that runs it."""

    return lambda body: write_program(tmp_path, STEPS, body)


def hang_of(run):
    [hang] = [event for event in read_events(run) if event["kind"] == "hang"]
    return hang


HALTED = """
with heartbeat.during("step"):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
"""
# In a phase that the other rank has finished.
READS_FOR_EVER = """
def read_for_ever():
    time.sleep(600)
with heartbeat.during("data"):
    if rank == 1:
        read_for_ever()
with heartbeat.during("step"):
    time.sleep(600)
"""
# In the same phase as the other rank, which waits for it, inside a library that holds the interpreter lock.
HOLDS_THE_INTERPRETER = """
def search_for_ever():
    ctypes.PyDLL(None).sleep(600)
with heartbeat.during("step"):
    if rank == 1:
        search_for_ever()
    time.sleep(600)
"""
COMPUTES_FOR_EVER = """
with heartbeat.during("loading"):
    import torch
    import torch.distributed as dist
    from megaptm.parallel.groups import join_process_group
    from megaptm.run.rank import worker_environment
    join_process_group(rank=rank, world=2, local_rank=rank, listener=worker_environment().listener)
def compute_for_ever():
    while True:
        time.sleep(0.1)
with heartbeat.during("step"):
    if rank == 1:
        compute_for_ever()
    dist.all_reduce(torch.ones(1))
"""
# As on GPUs, where a collective returns at once and its result is awaited.
COMPUTES_FOR_EVER_ON_ITS_DEVICE = """
with heartbeat.during("loading"):
    from megaptm.parallel.collectives import copy_to_host
class OfOthers:
    def tolist(self):
        ctypes.CDLL(None).sleep(600)
def compute_for_ever():
    ctypes.CDLL(None).sleep(600)
with heartbeat.during("step"):
    if rank == 1:
        compute_for_ever()
    copy_to_host(OfOthers())
"""


READER_IS_HALTED = """
import multiprocessing
def read():
    os.kill(os.getpid(), signal.SIGSTOP)
with heartbeat.during("data"):
    if rank == 1:
        reader = multiprocessing.get_context("fork").Process(target=read, daemon=True)
        reader.start()
        (folder / "reader").write_text(str(reader.pid))
        reader.join()
with heartbeat.during("step"):
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("body", "phase", "message", "stack"),
    [
        (HALTED, "step", "in step 4, and its process is stopped (state T", None),
        (READS_FOR_EVER, "data", "waiting for the data of step 4", "read_for_ever"),
        (HOLDS_THE_INTERPRETER, "step", "in step 4, and it sends no heartbeats", "search_for_ever"),
        (COMPUTES_FOR_EVER, "step", "in step 4", "compute_for_ever"),
        (COMPUTES_FOR_EVER_ON_ITS_DEVICE, "step", "in step 4", "compute_for_ever"),
    ],
)
def test_hanging_rank_is_reported_with_phase_and_stack(program, tmp_path, capfd, body, phase, message, stack):
    run = tmp_path / "run"
    assert launch_ranks(program(body), processes=2, run=run, hang_seconds=HANG_SECONDS) == 75
    output, hang = capfd.readouterr().err, hang_of(run)
    assert output.startswith("rank 1 hangs: for ")
    assert message in output
    assert (hang["rank"], hang["phase"], hang["step"]) == (1, phase, 3)
    assert hang["seconds"] >= HANG_SECONDS
    assert hang["problem"] in output
    if stack:
        assert f" in {stack}" in output
        assert f" in {stack}" in hang["stack"]
    assert survivors(pids(tmp_path, 2)) == []


def test_stopped_loader_worker_is_reported(program, tmp_path, capfd):
    """Even with a long `data.timeout_seconds`."""
    run = tmp_path / "run"
    assert (
        launch_ranks(program(READER_IS_HALTED), processes=2, run=run, hang_seconds=HANG_SECONDS, data_timeout=600.0)
        == 75
    )
    reader = int((tmp_path / "reader").read_text())
    errors = capfd.readouterr().err
    assert "it has been waiting for the data of step 4, and its data readers are stopped (state T" in errors
    assert f"): process {reader}." in errors
    assert survivors([*pids(tmp_path, 2), reader]) == []


def test_progress_is_no_hang(program, tmp_path):
    body = f"""
    end = time.monotonic() + {2 * HANG_SECONDS}
    while time.monotonic() < end:
        with heartbeat.during("step"):
            time.sleep(0.2)
    with heartbeat.during("saving"):
        time.sleep({1.5 * HANG_SECONDS})
    heartbeat.close()
    """
    assert launch_ranks(program(body), processes=2, run=tmp_path / "run", hang_seconds=HANG_SECONDS) == 0


REFUSED = """
import os, sys
from pathlib import Path
from megaptm.resilience.heartbeat import VARIABLE, Heartbeat
if os.environ["RANK"] == "0":
    Heartbeat(0).open(Path(os.environ[VARIABLE]))
sys.exit(1)
"""
LONG_SAVING = f"""
with heartbeat.during("saving"):
    time.sleep({3 * HANG_SECONDS})
heartbeat.close()
"""


def test_refused_second_start_is_no_hang(program, tmp_path):
    """The second start has prepared the run before the first one takes its lock."""
    run, command = tmp_path / "run", program(LONG_SAVING)
    source = (
        "import sys; from pathlib import Path; from megaptm.launch.local import launch_ranks\n"
        f"sys.exit(launch_ranks({command!r}, processes=2, run=Path({str(run)!r}), hang_seconds={HANG_SECONDS}))"
    )
    first = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE)
    pids(tmp_path, 2, first)
    assert launch_ranks([sys.executable, "-c", REFUSED], processes=2, run=run) == 1
    assert (first.wait(timeout=120), first.stderr.read().decode()) == (0, "")


def test_waiting_for_a_slow_server_is_no_hang(program, tmp_path):
    body = f"""
    with heartbeat.during("data"):
        if rank == 1:
            time.sleep({2 * HANG_SECONDS})
            (folder / "has-read").touch()
    with heartbeat.during("step"):
        while not (folder / "has-read").exists():
            time.sleep(0.01)
    """
    run = tmp_path / "run"
    assert launch_ranks(program(body), processes=2, run=run, hang_seconds=HANG_SECONDS, data_timeout=60.0) == 0


def test_hang_is_reported_without_a_writable_folder(tmp_path, capfd):
    (tmp_path / "run").touch()
    write_request(tmp_path / "run", EXIT)
    event = HangEvent(rank=1, phase="saving", step=3, seconds=4.0, problem="rank 1 hangs.", stack="")
    assert report_hang(Hang(event, tmp_path), run=tmp_path / "run") == 75
    assert capfd.readouterr().err.startswith("rank 1 hangs.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_ends_a_stopped_rank_without_hang_detection(program, tmp_path, number):
    """Started without `hang_seconds`: only the stop request gives up a rank that cannot save."""
    deaf = 'for one in (15, 2): signal.signal(one, signal.SIG_IGN)\n(folder / f"deaf-{rank}").touch()\n'
    launcher = start_launcher(program(deaf + HALTED), tmp_path / "run")
    rank_pids = pids(tmp_path, 2, launcher)
    wait_for(lambda: psutil.Process(rank_pids[1]).status() == psutil.STATUS_STOPPED, launcher)
    wait_for(lambda: (tmp_path / "deaf-0").exists(), launcher)
    launcher.send_signal(number)
    _, output = launcher.communicate(timeout=120)
    assert launcher.returncode == 75, output
    assert "rank 1 hangs" in output
    assert survivors(rank_pids) == []


SLOW_START = """
from megaptm.resilience.heartbeat import VARIABLE, Heartbeat
signal.signal(signal.SIGTERM, lambda *_: None)
heartbeat = Heartbeat(rank, hang_seconds=1.0).open(Path(os.environ[VARIABLE]))
i_am_here()
time.sleep(600)
"""


@pytest.mark.parametrize("phase", ["starting", "loading", "data"])
def test_stop_during_a_slow_start_is_no_hang(tmp_path, phase):
    """Two hangs without a checkpoint would prevent restarts of the run."""
    start = SLOW_START.replace("i_am_here()", f"heartbeat.enter({phase!r})\ni_am_here()")
    launcher = start_launcher(write_program(tmp_path, start, ""), tmp_path / "run", hang_seconds=1.0)
    rank_pids = pids(tmp_path, 2, launcher)
    launcher.send_signal(signal.SIGTERM)
    _, output = launcher.communicate(timeout=120)
    assert launcher.returncode == 75, output
    assert "Stopped by SIGTERM before the first step: after " in output
    assert "rank 0 was still starting and was killed." in output
    assert [event["kind"] for event in read_events(tmp_path / "run")] == ["stop-signal"]
    assert survivors(rank_pids) == []


def test_ctrl_c_messages(program, tmp_path):
    body = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (folder / f"deaf-{rank}").touch()
    with heartbeat.during("step"):
        while True:
            time.sleep(600)
    """
    launcher = start_launcher(program(body), tmp_path / "run")
    rank_pids = pids(tmp_path, 2, launcher)
    wait_for(lambda: len(list(tmp_path.glob("deaf-*"))) == 2, launcher)
    launcher.send_signal(signal.SIGINT)
    assert launcher.stderr.readline() == "\n"
    assert launcher.stderr.readline() == (
        "Ctrl-C: finishing the step and saving; then exiting with code 75. Ctrl-C again: exit at once, without "
        "saving.\n"
    )
    launcher.send_signal(signal.SIGINT)
    _, output = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert output == "Exited without saving; no checkpoint was saved.\n"
    assert [event["kind"] for event in read_events(tmp_path / "run")] == ["interrupt"]
    assert survivors(rank_pids) == []
