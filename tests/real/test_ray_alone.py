"""`megaptm launch ray` without a cluster starts Ray on this machine, and ends it afterwards."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, family_of, last_step, start
from tests.processes import command_of, environment_of, everybody, parents_alone, send, survivors
from tests.real.jobs import small
from tests.real.ray_cluster import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]


LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture(autouse=True)
def no_ray_address(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def ranks(run: Path) -> list[psutil.Process]:
    """Return the ranks of a run. They are no descendants of the launcher, and are found by their command."""
    words = ["megaptm.train.worker", "--run", str(run)]
    return parents_alone(process for process in everybody() if command_of(process)[-3:] == words)


def listening_addresses(processes: list[psutil.Process]) -> dict[str, set[str]]:
    """Return process -> addresses at which it listens, without ranks."""
    addresses: dict[str, set[str]] = {}
    for process in processes:
        with suppress(psutil.Error):
            if "megaptm.train.worker" not in process.cmdline():
                sockets = [
                    connection
                    for connection in process.net_connections(kind="inet")
                    if connection.status == psutil.CONN_LISTEN
                ]
                addresses.setdefault(process.name(), set()).update(connection.laddr.ip for connection in sockets)
    return addresses


def test_killed_rank_is_restarted_and_ctrl_c_saves(real_corpus, tmp_path):
    run = tmp_path / "run"
    settings = ("layout.data=2", "train.steps=100000", "checkpoint.every=10", "train.restarts=1")
    words = small("gpt2", run, real_corpus("byte-bpe"), *settings)
    program = start("launch", "ray", *words)
    wait_for(lambda: checkpoints(run) or program.poll())
    descendants = family_of(program)
    listening = listening_addresses([psutil.Process(program.pid), *descendants])
    assert {"gcs_server", "raylet"} <= listening.keys()
    assert {address for addresses in listening.values() for address in addresses} <= LOOPBACK, listening
    ranks(run)[1].kill()
    wait_for(lambda: any(event["kind"] == "resume" for event in read_events(run)) or program.poll())
    resume_step = last_step(run)
    wait_for(lambda: last_step(run) > resume_step or program.poll())
    processes = [*descendants, *ranks(run)]
    os.kill(program.pid, signal.SIGINT)
    output, errors = program.communicate(timeout=500)
    assert program.returncode == 75, errors
    assert checkpoints(run)[-1] == last_step(run)
    kinds = [event["kind"] for event in read_events(run)]
    assert [kind for kind in kinds if kind in ("launch", "worker-lost", "restart", "stop-signal")] == [
        *("launch", "worker-lost", "restart", "stop-signal"),
    ]
    assert "was killed by signal 9 (SIGKILL)" in errors
    assert re.findall(r"^Start (\d): ranks 0-1 on ", output, re.MULTILINE) == ["1", "2"]
    assert survivors(processes) == []


@pytest.mark.drill
def test_hang_restarts_and_second_ctrl_c_exits(real_corpus, tmp_path):
    run = tmp_path / "run"
    settings = (
        "layout.data=2",
        "train.steps=100000",
        "checkpoint.every=10",
        "train.hang_seconds=15",
        "train.restarts=1",
    )
    program = start("launch", "ray", *small("gpt2", run, real_corpus("byte-bpe"), *settings))
    wait_for(lambda: checkpoints(run) or program.poll())
    descendants = family_of(program)
    stopped = next(process for process in ranks(run) if environment_of(process).get("RANK") == "1")
    stopped.suspend()
    wait_for(lambda: any(event["kind"] == "resume" for event in read_events(run)) or program.poll())
    [hang] = [event for event in read_events(run) if event["kind"] == "hang"]
    assert (hang["rank"], "stopped" in hang["problem"]) == (1, True)
    processes = [*descendants, stopped, *ranks(run)]
    send(ranks(run), signal.SIGSTOP)
    program.send_signal(signal.SIGINT)
    output = ""
    while "exit at once" not in output:
        output += program.stderr.readline()
    program.send_signal(signal.SIGINT)
    _, more = program.communicate(timeout=500)
    assert program.returncode == 130, output + more
    assert "rank 1 hangs: for " in output
    assert read_events(run)[-1]["kind"] == "interrupt"
    assert survivors(processes) == []
