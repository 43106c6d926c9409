"""`sbatch slurm/gpt_175b.sh`: continued over its time limit, not after a failure, not after scancel."""

import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient

from megaptm.resilience.events import read_events
from megaptm.storage import RetryPolicy
from tests.data.corpora import publish
from tests.drills.program import checkpoints, last_step, losses, resumed_at
from tests.processes import awaits, command_of, parents_alone, send
from tests.real.jobs import ENDS, PACED, STEPS, small, submit
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real

SPREAD = ("layout.data=2", "layout.tensor=2")


@dataclass(frozen=True)
class Story:
    """A run whose job was told that its time is up, and went on."""

    run: Path
    mlflow: Path
    log: str
    job: dict[str, str]


@pytest.fixture(scope="module")
def story(slurm, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    run, log, mlflow = folder / "run", folder / "job.log", folder / "mlflow.db"
    MlflowClient(f"sqlite:///{mlflow}").search_experiments()  # which makes its tables, and takes longer than the run
    tracked = ("track.enabled=true", f"track.uri=sqlite:///{mlflow}")
    words = small("gpt2", run, corpus, f"train.steps={STEPS}", PACED, *SPREAD, *tracked)
    job = submit(slurm, "gpt_175b", log, words, nodes=2, tasks=2)
    slurm.wait_for(lambda: last_step(run) > 3)
    slurm.say("scancel", "--batch", "--signal=USR1", job)  # as Slurm does some time before the limit
    slurm.start_now(job)
    slurm.wait_for_state(job, *ENDS)
    return Story(run, mlflow, log.read_text(), slurm.job(job))


def test_near_its_limit_a_job_saves_and_goes_back_to_the_queue(story):
    [saved] = resumed_at(story.run)
    assert 3 < saved < STEPS
    assert "goes back to the queue" in story.log
    assert (story.job["JobState"], story.job["Restarts"]) == ("COMPLETED", "1")


def test_the_run_is_the_one_that_one_process_makes(story, unbroken):
    assert losses(story.run) == {step: pytest.approx(loss, rel=1e-5) for step, loss in unbroken.items()}


def test_both_starts_are_one_run_of_mlflow(story):
    with sqlite3.connect(story.mlflow) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]


def test_each_rank_has_a_log_and_rank_0_is_in_the_jobs(story):
    logs = story.run / "logs"
    assert {path.name for path in logs.glob("*/rank-*.log")} == {f"rank-{rank}.log" for rank in range(4)}
    assert len(list(logs.iterdir())) == 2
    for step in range(1, STEPS + 1):
        assert story.log.count(f"step {step}/{STEPS}  loss") == 1


def test_a_failure_is_told_and_not_repeated_and_a_cancelled_job_stays_so(slurm, corpus, tmp_path):
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
    slurm.say("scancel", job)
    assert slurm.wait_for_state(job, *ENDS) == "CANCELLED"
    assert slurm.job(job)["Restarts"] == "0"
    assert checkpoints(run)[-1] == last_step(run)
    assert [event["signal"] for event in read_events(run) if event["kind"] == "stop-signal"] == ["SIGTERM"]
    assert not slurm.processes()


def test_a_request_that_is_not_the_layouts_ends_before_anything_starts(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    job = submit(slurm, "gpt_175b", log, small("gpt2", run, corpus, "layout.data=4"), nodes=1, tasks=1)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert "1 processes are fewer than the 4 the layout needs" in log.read_text()
    assert not run.exists()


def ranks_of(slurm):
    return parents_alone(one for one in slurm.processes() if command_of(one)[1:4] == ["-m", "megaptm", "train"])


def test_a_job_that_is_warned_before_it_runs_does_not_go_round_in_circles(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, "layout.data=2")
    job = submit(slurm, "gpt_175b", log, words, nodes=1, tasks=2)
    ranks = slurm.wait_for(lambda: len(found := ranks_of(slurm)) == 2 and found)
    send(ranks, signal.SIGSTOP)  # or they might have trained before the warning is there
    slurm.say("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_for(lambda: all(awaits(rank, signal.SIGUSR1) for rank in ranks))
    send(ranks, signal.SIGCONT)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    assert "came before the first step: use a longer --time" in log.read_text()


def test_nor_does_one_that_is_warned_while_it_waits_for_its_corpus(slurm, corpus, tmp_path, faults):
    publish(corpus, (url := f"s3://{BUCKET}/warned"), RetryPolicy(seconds=20, deadline=5))
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, url, "layout.data=2", f"data.cache_dir={tmp_path / 'cache'}")
    server = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("AWS_")]
    with_server = "--export=" + ",".join(["MEGAPTM_HOME", "MEGAPTM_VENV", *server])
    job = submit(slurm, "gpt_175b", log, words, with_server, nodes=1, tasks=2)
    slurm.wait_for(lambda: log.exists() and "loading PyTorch" in log.read_text())  # the ranks hear signals from here on
    faults.down()
    slurm.wait_for(lambda: "opening the corpora" in log.read_text())
    slurm.say("scancel", "--batch", "--signal=USR1", job)
    assert slurm.wait_for_state(job, *ENDS) == "FAILED"
    assert slurm.job(job)["Restarts"] == "0"
    assert "came before the first step: use a longer --time" in log.read_text()


def test_a_node_that_is_not_like_the_others_is_named_before_a_process_waits_for_it(slurm, corpus, tmp_path):
    run, log = tmp_path / "run", tmp_path / "job.log"
    words = small("gpt2", run, corpus, "train.steps=2", "layout.data=2")
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex/__init__.py").touch()
    there = "--nodelist=node1,node2"
    with slurm.given("node2", PYTHONPATH=str(tmp_path)):
        job = submit(slurm, "gpt_175b", log, words, there, nodes=2, tasks=1)
        assert slurm.wait_for_state(job, *ENDS) == "FAILED"
        assert "error: The package apex on node2 is PyPI's, not NVIDIA's" in log.read_text()
        assert last_step(run) == 0
        unasked = "--export=MEGAPTM_HOME,MEGAPTM_VENV,MEGAPTM_CHECK=no"
        job = submit(slurm, "gpt_175b", log, words, there, unasked, nodes=2, tasks=1)
        slurm.wait_for_state(job, *ENDS)
    assert {path.name for path in run.glob(f"logs/{job}.0/*")} & {"nodes", "nodes.out"} == {"nodes"}
