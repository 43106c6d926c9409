"""After a node is lost, or only invisible to Slurm, the job continues elsewhere, and only there."""

from pathlib import Path

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, last_step, losses, resumed_at
from tests.processes import environment_of
from tests.real.jobs import ENDS, SLOW_OBJECTIVE, STEPS, small, submit

pytestmark = pytest.mark.real

SAVED_OFTEN = (f"train.steps={STEPS}", SLOW_OBJECTIVE, "layout.data=2", "checkpoint.every=2")


def start_job(slurm, corpus, folder: Path, *more, nodes, tasks):
    """Start a job and wait for a checkpoint; return its run folder, log and id."""
    run, log = folder / "run", folder / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, *SAVED_OFTEN, *more), nodes=nodes, tasks=tasks)
    slurm.wait_for(lambda: checkpoints(run))
    return run, log, job


def test_run_continues_without_dead_node(slurm, corpus, undisturbed_losses, tmp_path):
    run, log, job = start_job(slurm, corpus, tmp_path, nodes=2, tasks=1)
    slurm.kill_node("node2")
    slurm.declare_down("node2")
    slurm.start_now(job)
    slurm.start_node("node2")  # back in service, but still excluded
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    job_info = slurm.job(job)
    assert (job_info["Restarts"], job_info["ExcNodeList"]) == ("1", "node2")
    assert "node2" not in slurm.run_command("scontrol", "show", "hostnames", job_info["NodeList"])
    assert "Node failure on node2: the next start excludes node2." in log.read_text()
    assert resumed_at(run)[0] >= 2
    loss_by_step = losses(run)
    assert loss_by_step.keys() == undisturbed_losses.keys()
    for step, [loss] in undisturbed_losses.items():
        assert loss_by_step[step] == [pytest.approx(loss, rel=1e-5)] * len(loss_by_step[step])


@pytest.mark.drill
def test_lost_first_node_is_excluded_after_return(slurm, corpus, tmp_path):
    """The job's script is lost with the node, so the failure is recorded at the next start, which gets the node
    again."""
    run, log, job = start_job(slurm, corpus, tmp_path, nodes=1, tasks=2)
    node = slurm.job(job)["NodeList"]
    slurm.kill_node(node)
    slurm.declare_down(node)
    slurm.start_node(node)
    slurm.wait_for_state(job, "PENDING")
    slurm.run_command("scontrol", "update", f"JobId={job}", f"ReqNodeList={node}")  # as if it were the first free node
    slurm.start_now(job)
    slurm.wait_for(lambda: f"Node failure on {node}: the next start excludes {node}." in log.read_text())
    slurm.run_command("scontrol", "update", f"JobId={job}", "ReqNodeList=")
    slurm.start_now(job)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    job_info = slurm.job(job)
    assert (job_info["Restarts"], job_info["ExcNodeList"]) == ("2", node)
    assert len(resumed_at(run)) == 1


@pytest.mark.drill
def test_all_failed_nodes_are_excluded(slurm, corpus, tmp_path):
    run, log, job = start_job(slurm, corpus, tmp_path, "train.batch=120", nodes=2, tasks=1)
    excluded = []
    for start in (1, 2):
        # not the first node, which has the job's script
        lost = slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"]).split()[-1]
        slurm.kill_node(lost)
        slurm.declare_down(lost)
        slurm.start_now(job)
        slurm.start_node(lost)
        excluded.append(lost)
        slurm.wait_for(lambda start=start: len(resumed_at(run)) == start)
        assert slurm.job(job)["ExcNodeList"] == ",".join(excluded)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    assert f"Node failure on {excluded[1]}: the next start excludes {excluded[0]},{excluded[1]}." in log.read_text()


@pytest.mark.drill
def test_slurm_detects_dead_node(slurm, corpus, tmp_path):
    """Slurm needs half a minute to detect that the node does not respond."""
    run, log, job = start_job(slurm, corpus, tmp_path, "train.steps=100000", nodes=2, tasks=1)
    slurm.kill_node("node2")
    slurm.wait_for_state(job, "PENDING")
    assert slurm.job(job)["ExcNodeList"] == "node2"
    slurm.start_now(job)
    slurm.wait_for(lambda: resumed_at(run))
    assert "node2" not in slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"])
    slurm.run_command("scancel", job)
    assert slurm.wait_for_state(job, *ENDS) == "CANCELLED", log.read_text()
    slurm.start_node("node2")


def test_processes_of_lost_node_cannot_write(slurm, corpus, undisturbed_losses, tmp_path):
    """Only the daemon dies. The tasks are suspended with the lock until the job runs elsewhere: the worst case."""
    run, log, job = start_job(slurm, corpus, tmp_path, nodes=1, tasks=2)
    node = slurm.job(job)["NodeList"]
    old_processes = slurm.tasks_of(node)
    [step] = {number for process in old_processes if (number := environment_of(process).get("SLURM_STEP_ID"))}
    for process in old_processes:
        process.suspend()
    slurm.kill_daemon(node)
    slurm.declare_down(node)
    before = last_step(run)
    slurm.start_now(job)
    slurm.wait_for(lambda: resumed_at(run))
    slurm.run_command(
        "scancel", f"{job}.{step}", check=False
    )  # as srun does when it wakes up and its tasks are still there
    for process in old_processes:
        process.resume()
    slurm.wait_for(lambda: not any(process.is_running() for process in old_processes))
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", log.read_text()
    slurm.start_node(node)
    log_of_old_job = next((run / "logs").glob("*.0/rank-0.log")).read_text()
    assert f"another job took over the run {run}" in log_of_old_job  # when it records a step or saves
    assert slurm.job(job)["Restarts"] == "1"
    [saved] = resumed_at(run)
    done = losses(run)
    assert {step: len(times) for step, times in done.items()} == {
        step: 2 if saved < step <= before else 1 for step in undisturbed_losses
    }
    assert {step: times[-1] for step, times in done.items()} == {
        step: pytest.approx(loss, rel=1e-5) for step, [loss] in undisturbed_losses.items()
    }
    events = [event["kind"] for event in read_events(run)]
    assert events[events.index("resume") :].count("exit") == 1
    assert checkpoints(run) == [STEPS - 2, STEPS]
