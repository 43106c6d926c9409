"""`sbatch slurm/gpt_175b.sh` continues after the time limit, but not after a failure or scancel."""

import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from megaptm.resilience.events import read_events
from megaptm.storage import RetryPolicy
from tests.data.corpora import publish
from tests.drills.program import checkpoints, last_step, losses, resumed_at
from tests.processes import awaits, command_of, parents_alone, send
from tests.real.jobs import ENDS, SLOW_OBJECTIVE, STEPS, small, submit
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real

SPREAD = ("layout.data=2", "layout.tensor=2")


@dataclass(frozen=True)
class RequeuedRun:
    """Run whose job was warned of its time limit and requeued."""

    run: Path
    mlflow: Path
    log: str
    job: dict[str, str]


@pytest.fixture(scope="module")
def requeued_run(slurm, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    run, log, mlflow = folder / "run", folder / "job.log", folder / "mlflow.db"
    from mlflow import MlflowClient  # not by each worker that collects this file: it takes 1.4 s

    MlflowClient(f"sqlite:///{mlflow}").search_experiments()  # creates its tables, which takes longer than the run
    tracked = ("track.enabled=true", f"track.uri=sqlite:///{mlflow}")
    words = small("gpt2", run, corpus, f"train.steps={STEPS}", SLOW_OBJECTIVE, *SPREAD, *tracked)
    job = submit(slurm, "gpt_175b", log, words, nodes=2, tasks=2)
    slurm.wait_for(lambda: last_step(run) > 3)
    slurm.run_command("scancel", "--batch", "--signal=USR1", job)  # as Slurm does some time before the limit
    slurm.start_now(job)
    slurm.wait_for_state(job, *ENDS)
    return RequeuedRun(run, mlflow, log.read_text(), slurm.job(job))


def test_job_near_time_limit_saves_and_is_requeued(requeued_run):
    [saved] = resumed_at(requeued_run.run)
    assert 3 < saved < STEPS
    assert "goes back to the queue" in requeued_run.log
    assert (requeued_run.job["JobState"], requeued_run.job["Restarts"]) == ("COMPLETED", "1")


def test_losses_equal_one_process(requeued_run, undisturbed_losses):
    assert losses(requeued_run.run) == {
        step: pytest.approx(loss, rel=1e-5) for step, loss in undisturbed_losses.items()
    }


def test_both_starts_are_one_mlflow_run(requeued_run):
    with sqlite3.connect(requeued_run.mlflow) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]


def test_logs_of_ranks_and_job(requeued_run):
    logs = requeued_run.run / "logs"
    assert {path.name for path in logs.glob("*/rank-*.log")} == {f"rank-{rank}.log" for rank in range(4)}
    assert len(list(logs.iterdir())) == 2
    for step in range(1, STEPS + 1):
        assert requeued_run.log.count(f"step {step}/{STEPS}  loss") == 1


def test_failed_and_cancelled_jobs_are_not_repeated(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, "train.steps=100000", "layout.data=2")
    job = submit(slurm, "gpt_175b", log, words, nodes=2, tasks=1)
    slurm.wait_for(lambda: last_step(run) > 1)
    next(task for task in slurm.tasks_of("node2") if "train" in command_of(task)).kill()
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    assert "On node2, rank 1 was killed by signal 9 (SIGKILL)" in log.read_text()

    done = last_step(run)
    job = submit(slurm, "gpt_175b", log, words, nodes=2, tasks=1)
    slurm.wait_for(lambda: last_step(run) != done)
    slurm.run_command("scancel", job)
    assert slurm.wait_for_state(job, *ENDS) == "CANCELLED"
    assert slurm.job(job)["Restarts"] == "0"
    assert checkpoints(run)[-1] == last_step(run)
    assert [event["signal"] for event in read_events(run) if event["kind"] == "stop-signal"] == ["SIGTERM"]
    assert not slurm.processes()


def test_wrong_number_of_processes_fails_before_start(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, "layout.data=4"), nodes=1, tasks=1)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert "1 processes are fewer than the 4 the layout needs" in log.read_text()
    assert not run.exists()


def ranks_of(slurm):
    return parents_alone(
        process for process in slurm.processes() if command_of(process)[1:4] == ["-m", "megaptm", "train"]
    )


def test_job_warned_before_first_step_is_not_requeued(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, "layout.data=2")
    job = submit(slurm, "gpt_175b", log, words, nodes=1, tasks=2)
    ranks = slurm.wait_for(lambda: len(all_ranks := ranks_of(slurm)) == 2 and all_ranks)
    send(ranks, signal.SIGSTOP)  # so that they do not train before the signal arrives
    slurm.run_command("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_for(lambda: all(awaits(rank, signal.SIGUSR1) for rank in ranks))
    send(ranks, signal.SIGCONT)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    assert "came before the first step: use a longer --time" in log.read_text()


def test_job_warned_while_waiting_for_corpus_is_not_requeued(slurm, corpus, tmp_path, faults):
    publish(corpus, (url := f"s3://{BUCKET}/warned"), RetryPolicy(seconds=20, deadline=5))
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, url, "layout.data=2", f"data.cache_dir={tmp_path / 'cache'}")
    server = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("AWS_")]
    with_server = "--export=" + ",".join(["MEGAPTM_HOME", "MEGAPTM_VENV", *server])
    job = submit(slurm, "gpt_175b", log, words, with_server, nodes=1, tasks=2)
    slurm.wait_for(lambda: log.exists() and "loading PyTorch" in log.read_text())  # ranks handle signals from here
    faults.down()
    slurm.wait_for(lambda: "opening the corpora" in log.read_text())
    slurm.run_command("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    assert "came before the first step: use a longer --time" in log.read_text()


def test_different_node_is_reported_before_start(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, "train.steps=2", "layout.data=2")
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex/__init__.py").touch()
    nodelist = "--nodelist=node1,node2"
    with slurm.task_variables("node2", PYTHONPATH=str(tmp_path)):
        job = submit(slurm, "gpt_175b", log, words, nodelist, nodes=2, tasks=1)
        assert slurm.wait_for_state(job, *ENDS) == "FAILED"
        assert "error: The package apex on node2 is PyPI's, not NVIDIA's" in log.read_text()
        assert last_step(run) == 0
        without_check = "--export=MEGAPTM_HOME,MEGAPTM_VENV,MEGAPTM_CHECK=no"
        job = submit(slurm, "gpt_175b", log, words, nodelist, without_check, nodes=2, tasks=1)
        slurm.wait_for_state(job, *ENDS)
    assert {path.name for path in run.glob(f"logs/{job}.0/*")} & {"nodes", "nodes.out"} == {"nodes"}
