"""A job with a hanging process reports it, is requeued, and continues from its checkpoint."""

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, resumed_at
from tests.processes import command_of, environment_of
from tests.real.jobs import ENDS, small, submit

pytestmark = [pytest.mark.real, pytest.mark.drill]


def test_job_with_hanging_rank_is_requeued(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    settings = ("layout.data=2", "train.steps=2000", "checkpoint.every=2", "train.hang_seconds=15")
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, *settings), nodes=2, tasks=1)
    slurm.wait_for(lambda: checkpoints(run))
    [rank_1] = [
        task
        for task in slurm.tasks_of("node2")
        if "train" in command_of(task) and environment_of(task).get("SLURM_PROCID") == "1"
    ]
    rank_1.suspend()
    slurm.wait_for(lambda: "goes back to the queue" in log.read_text())
    assert "rank 1 hangs: for " in log.read_text()
    [hang] = [event for event in read_events(run) if event["kind"] == "hang"]
    assert (hang["rank"], hang["node"]) == (1, "node2")
    slurm.start_now(job)
    slurm.wait_for(lambda: resumed_at(run))
    slurm.run_command("scancel", job)
    slurm.wait_for_state(job, *ENDS)
    assert resumed_at(run)[0] >= 2
