"""A killed rank of a Slurm job costs no requeue, unless its node failed before: all ranks start again within the
allocation."""

import time

import pytest

from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests.drills.program import checkpoints, losses, resumed_at
from tests.forked import megaptm
from tests.processes import command_of
from tests.real.jobs import ENDS, SLOW_OBJECTIVE, STEPS, small, submit
from tests.real.slurm_cluster import slurm_cluster

pytestmark = pytest.mark.real

SETTINGS = (f"train.steps={STEPS}", SLOW_OBJECTIVE, "layout.data=2", "checkpoint.every=2", "train.restarts=1")


@pytest.fixture
def slow_to_notice():
    """Slurm cluster that notices a node that does not respond later than the job does."""
    with slurm_cluster(nodes=3, slurmd_timeout=60) as cluster:
        yield cluster


def rank_on(slurm, node):
    return next(task for task in slurm.tasks_of(node) if command_of(task)[1:4] == ["-m", "megaptm", "train"])


def saved_again(run):
    """Whether the run has a checkpoint after the one from which it continued last."""
    return max([0, *checkpoints(run)]) > max([0, *resumed_at(run)])


def test_killed_rank_restarts_within_the_allocation(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, *SETTINGS)
    threads = "--export=MEGAPTM_HOME,MEGAPTM_VENV,OMP_NUM_THREADS=1"  # losses depend on the number of threads
    job = submit(slurm, "gpt_175b", log, words, "--nodelist=node1,node2", threads, nodes=2, tasks=1)
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
    megaptm("train", *small("gpt2", tmp_path / "whole", corpus, *SETTINGS, "train.threads=1"))
    assert {step: values[-1:] for step, values in losses(run).items()} == losses(tmp_path / "whole")
    assert not slurm.processes()


def test_node_with_two_killed_ranks_is_excluded_at_the_requeue(slurm, corpus, tmp_path):
    """After the second kill idle nodes can replace it, so the job is requeued."""
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, *SETTINGS, "train.restarts=3", "train.steps=40")
    job = submit(slurm, "gpt_175b", log, words, nodes=2, tasks=1)
    for number in (0, 1):
        slurm.wait_for(lambda number=number: len(resumed_at(run)) == number and saved_again(run))
        rank_on(slurm, "node2").kill()
    slurm.start_now(job)
    slurm.wait_for_state(job, "RUNNING", *ENDS)
    assert (slurm.job(job)["Restarts"], slurm.job(job)["ExcNodeList"]) == ("1", "node2"), log.read_text()
    assert "node2" not in slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"])
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert "Ranks on node2 crashed or hung 2 times or more in 24 hours" in log.read_text()
    kinds = ("launch", "worker-lost", "restart", "node-excluded")
    events = [event for event in read_events(run) if event["kind"] in kinds]
    assert [event["kind"] for event in events] == [
        *("launch", "worker-lost", "restart"),
        *("worker-lost", "node-excluded", "launch"),
    ]
    assert {event["node"] for event in events if "node" in event} == {"node2"}


@pytest.mark.drill
def test_unreachable_node_costs_a_requeue(slow_to_notice, corpus, tmp_path):
    """Slurm does not know yet that the node is lost; the processes cannot be started there."""
    slurm = slow_to_notice
    run, log = tmp_path / "run", tmp_path / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, *SETTINGS), nodes=2, tasks=1)
    slurm.wait_for(lambda: checkpoints(run))
    slurm.kill_node("node2")
    slurm.wait_for(lambda: "The processes cannot be started again" in log.read_text())
    slurm.wait_for(lambda: slurm.job(job)["ExcNodeList"] == "node2")
    slurm.run_command("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert (slurm.job(job)["Restarts"], slurm.job(job)["ExcNodeList"]) == ("1", "node2")
    assert "node2" not in slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"])
    assert [step for step in resumed_at(run) if step >= 2]
