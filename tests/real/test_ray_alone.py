"""`megaptm launch ray` without any cluster: Ray is started here, and gone afterwards."""

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
def nowhere(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def ranks(run: Path) -> list[psutil.Process]:
    """Ray's workers are nobody's children: their ranks are found by the run they were told."""
    words = ["megaptm.train.worker", "--run", str(run)]
    return parents_alone(process for process in everybody() if command_of(process)[-3:] == words)


def listening(processes: list[psutil.Process]) -> dict[str, set[str]]:
    """Process -> addresses that it takes connections at. Ranks are left out: torch has its own way to meet."""
    found: dict[str, set[str]] = {}
    for process in processes:
        with suppress(psutil.Error):
            if "megaptm.train.worker" not in process.cmdline():
                sockets = [one for one in process.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN]
                found.setdefault(process.name(), set()).update(one.laddr.ip for one in sockets)
    return found


def test_a_rank_that_is_killed_is_started_again_where_it_was_saved_and_ctrl_c_saves(real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "layout.data=2", "train.steps=100000", "checkpoint.every=10")
    program = start("launch", "ray", *words)
    wait_for(lambda: checkpoints(run) or program.poll())
    family = family_of(program)
    heard = listening([psutil.Process(program.pid), *family])
    assert {"gcs_server", "raylet"} <= heard.keys()
    assert {address for addresses in heard.values() for address in addresses} <= LOOPBACK, heard
    ranks(run)[1].kill()
    wait_for(lambda: any(event["kind"] == "resume" for event in read_events(run)) or program.poll())
    began = last_step(run)
    wait_for(lambda: last_step(run) > began or program.poll())
    left = [*family, *ranks(run)]
    os.kill(program.pid, signal.SIGINT)
    said, errors = program.communicate(timeout=500)
    assert program.returncode == 75, errors
    assert checkpoints(run)[-1] == last_step(run)
    kinds = [event["kind"] for event in read_events(run)]
    assert [kind for kind in kinds if kind in ("launch", "worker-lost", "restart", "stop-signal")] == [
        *("launch", "worker-lost", "restart", "stop-signal"),
    ]
    assert "was killed by signal 9 (SIGKILL)" in errors
    assert re.findall(r"^Start (\d): ranks 0-1 on ", said, re.MULTILINE) == ["1", "2"]
    assert survivors(left) == []


@pytest.mark.drill
def test_a_halted_rank_costs_a_start_and_a_second_ctrl_c_leaves_at_once(real_corpus, tmp_path):
    run = tmp_path / "run"
    settings = ("layout.data=2", "train.steps=100000", "checkpoint.every=10", "train.hang_seconds=15")
    program = start("launch", "ray", *small("gpt2", run, real_corpus("byte-bpe"), *settings))
    wait_for(lambda: checkpoints(run) or program.poll())
    family = family_of(program)
    halted = next(process for process in ranks(run) if environment_of(process).get("RANK") == "1")
    halted.suspend()
    wait_for(lambda: any(event["kind"] == "resume" for event in read_events(run)) or program.poll())
    [hang] = [event for event in read_events(run) if event["kind"] == "hang"]
    assert (hang["rank"], "halted" in hang["problem"]) == (1, True)
    left = [*family, halted, *ranks(run)]
    send(ranks(run), signal.SIGSTOP)
    program.send_signal(signal.SIGINT)
    said = ""
    while "exit at once" not in said:
        said += program.stderr.readline()
    program.send_signal(signal.SIGINT)
    _, more = program.communicate(timeout=500)
    assert program.returncode == 130, said + more
    assert "rank 1 hangs: for " in said
    assert read_events(run)[-1]["kind"] == "interrupt"
    assert survivors(left) == []
