"""A killed rank of a Slurm job costs no requeue: all ranks start again within the allocation."""

import time

import pytest

from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests.drills.program import checkpoints, losses, resumed_at
from tests.forked import megaptm
from tests.processes import command_of
from tests.real.jobs import ENDS, SLOW_OBJECTIVE, STEPS, small, submit

pytestmark = pytest.mark.real

SETTINGS = (f"train.steps={STEPS}", SLOW_OBJECTIVE, "layout.data=2", "checkpoint.every=2", "train.restarts=1")


@pytest.fixture
def slow_to_notice(slurm):
    """Slurm cluster that needs 5 minutes to notice that a node does not respond, the default."""
    config = slurm.folder / "slurm.conf"
    before = config.read_text()
    config.write_text(before.replace("SlurmdTimeout=5\n", "SlurmdTimeout=300\n"))
    slurm.run_command("scontrol", "reconfigure")
    yield slurm
    config.write_text(before)
    slurm.run_command("scontrol", "reconfigure")


def rank_on(slurm, node):
    return next(task for task in slurm.tasks_of(node) if command_of(task)[1:4] == ["-m", "megaptm", "train"])


def test_killed_rank_restarts_within_the_allocation(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, *SETTINGS)
    job = submit(slurm, "gpt_175b", log, words, "--nodelist=node1,node2", nodes=2, tasks=1)
    slurm.wait_for(lambda: checkpoints(run))
    killed_at = time.time()
    rank_on(slurm, "node2").kill()
    slurm.wait_for(lambda: resumed_at(run))
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert slurm.job(job)["Restarts"] == "0"
    events = [event["kind"] for event in read_events(run) if event["kind"] in ("launch", "worker-lost", "restart")]
    assert events == ["launch", "worker-lost", "restart"]
    assert "On node2, rank 1 was killed by signal 9 (SIGKILL)" in log.read_text()
    assert "Starting all ranks again from the checkpoint of step " in log.read_text()
    [resumed] = [event for event in read_events(run) if event["kind"] == "resume"]
    next_step = next(record["time"] for record in read_metrics(run) if record["time"] > resumed["time"])
    assert next_step - killed_at < 60, log.read_text()
    print(f"{next_step - killed_at:.1f} s from the kill to the next step")
    megaptm("train", *small("gpt2", tmp_path / "whole", corpus, *SETTINGS))
    assert {step: values[-1:] for step, values in losses(run).items()} == losses(tmp_path / "whole")
    assert not slurm.processes()


@pytest.mark.drill
def test_unreachable_node_costs_a_requeue(slow_to_notice, corpus, tmp_path):
    """Slurm does not know yet that the node is lost; the processes cannot be started there."""
    slurm = slow_to_notice
    run, log = tmp_path / "run", tmp_path / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, *SETTINGS), nodes=2, tasks=1)
    slurm.wait_for(lambda: checkpoints(run))
    slurm.kill_node("node2")
    slurm.wait_for(lambda: "The processes cannot be started again on node2" in log.read_text())
    slurm.start_now(job)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert "node2" not in slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"])
    assert slurm.job(job)["ExcNodeList"] == "node2"
    slurm.start_node("node2")
