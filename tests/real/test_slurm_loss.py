"""Nodes that are lost, wholly or only out of Slurm's sight: the job goes on elsewhere, and alone."""

from pathlib import Path

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, last_step, losses, resumed_at
from tests.processes import environment_of
from tests.real.jobs import ENDS, PACED, STEPS, small, submit

pytestmark = pytest.mark.real

SAVED_OFTEN = (f"train.steps={STEPS}", PACED, "layout.data=2", "checkpoint.every=2")


def begin(slurm, corpus, folder: Path, *more, nodes, tasks):
    """A job that has saved something: its run, log and number."""
    run, log = folder / "run", folder / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, *SAVED_OFTEN, *more), nodes=nodes, tasks=tasks)
    slurm.wait_for(lambda: checkpoints(run))
    return run, log, job


def test_a_run_whose_node_dies_goes_on_without_it(slurm, corpus, unbroken, tmp_path):
    run, log, job = begin(slurm, corpus, tmp_path, nodes=2, tasks=1)
    slurm.kill_node("node2")
    slurm.declare_down("node2")
    slurm.start_now(job)
    slurm.start_node("node2")  # back in service, but not to be trusted at once
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    told = slurm.job(job)
    assert (told["Restarts"], told["ExcNodeList"]) == ("1", "node2")
    assert "node2" not in slurm.say("scontrol", "show", "hostnames", told["NodeList"])
    assert "Node failure on node2: the next start excludes node2." in log.read_text()
    assert resumed_at(run)[0] >= 2
    again = losses(run)
    assert again.keys() == unbroken.keys()
    for step, [loss] in unbroken.items():
        assert again[step] == [pytest.approx(loss, rel=1e-5)] * len(again[step])


@pytest.mark.drill
def test_a_first_node_that_was_lost_and_is_back_is_left_again(slurm, corpus, tmp_path):
    """It takes the job's script with it: nobody can note its failure before the next start, which gets it again."""
    run, log, job = begin(slurm, corpus, tmp_path, nodes=1, tasks=2)
    node = slurm.job(job)["NodeList"]
    slurm.kill_node(node)
    slurm.declare_down(node)
    slurm.start_node(node)
    slurm.wait_for_state(job, "PENDING")
    slurm.say("scontrol", "update", f"JobId={job}", f"ReqNodeList={node}")  # as if it were the first to be free
    slurm.start_now(job)
    slurm.wait_for(lambda: f"Node failure on {node}: the next start excludes {node}." in log.read_text())
    slurm.say("scontrol", "update", f"JobId={job}", "ReqNodeList=")
    slurm.start_now(job)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    told = slurm.job(job)
    assert (told["Restarts"], told["ExcNodeList"]) == ("2", node)
    assert len(resumed_at(run)) == 1


@pytest.mark.drill
def test_nodes_that_fail_one_after_the_other_are_all_left(slurm, corpus, tmp_path):
    run, log, job = begin(slurm, corpus, tmp_path, "train.batch=120", nodes=2, tasks=1)
    left = []
    for start in (1, 2):
        # Not the first, which has the job's script.
        lost = slurm.say("scontrol", "show", "hostnames", slurm.job(job)["NodeList"]).split()[-1]
        slurm.kill_node(lost)
        slurm.declare_down(lost)
        slurm.start_now(job)
        slurm.start_node(lost)
        left.append(lost)
        slurm.wait_for(lambda start=start: len(resumed_at(run)) == start)
        assert slurm.job(job)["ExcNodeList"] == ",".join(left)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert f"Node failure on {left[1]}: the next start excludes {left[0]},{left[1]}." in log.read_text()


@pytest.mark.drill
def test_slurm_finds_a_dead_node_by_itself(slurm, corpus, tmp_path):
    """Nobody declares it down: it no longer answers, which takes Slurm half a minute to believe."""
    run, log, job = begin(slurm, corpus, tmp_path, "train.steps=100000", nodes=2, tasks=1)
    slurm.kill_node("node2")
    slurm.wait_for_state(job, "PENDING")
    assert slurm.job(job)["ExcNodeList"] == "node2"
    slurm.start_now(job)
    slurm.wait_for(lambda: resumed_at(run))
    assert "node2" not in slurm.say("scontrol", "show", "hostnames", slurm.job(job)["NodeList"])
    slurm.say("scancel", job)
    assert slurm.wait_for_state(job, *ENDS) == "CANCELLED", log.read_text()
    slurm.start_node("node2")


def test_what_a_lost_node_still_runs_cannot_write_to_the_run_any_more(slurm, corpus, unbroken, tmp_path):
    """Only the node's daemon dies. Its tasks are halted, lock and all, until the job runs elsewhere: the worst case."""
    run, log, job = begin(slurm, corpus, tmp_path, nodes=1, tasks=2)
    node = slurm.job(job)["NodeList"]
    left = slurm.tasks_of(node)
    [step] = {number for process in left if (number := environment_of(process).get("SLURM_STEP_ID"))}
    for process in left:
        process.suspend()
    slurm.kill_daemon_of(node)
    slurm.declare_down(node)
    before = last_step(run)
    slurm.start_now(job)
    slurm.wait_for(lambda: resumed_at(run))
    slurm.say("scancel", f"{job}.{step}", check=False)  # as srun does that wakes and finds its tasks still there
    for process in left:
        process.resume()
    slurm.wait_for(lambda: not any(process.is_running() for process in left))
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    slurm.start_node(node)
    said = next((run / "logs").glob("*.0/rank-0.log")).read_text()
    assert f"another job took over the run {run}" in said  # as it records a step, or as it saves one
    assert slurm.job(job)["Restarts"] == "1"
    [saved] = resumed_at(run)
    done = losses(run)
    assert {step: len(times) for step, times in done.items()} == {
        step: 2 if saved < step <= before else 1 for step in unbroken
    }
    assert {step: times[-1] for step, times in done.items()} == {
        step: pytest.approx(loss, rel=1e-5) for step, [loss] in unbroken.items()
    }
    events = [event["kind"] for event in read_events(run)]
    assert events[events.index("resume") :].count("exit") == 1
    assert checkpoints(run) == [STEPS - 2, STEPS]
