import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.corpus.workers import InProcess
from data_pipeline.progress import StageProgress


@dataclass(frozen=True)
class Job:
    log: str
    number: int
    rows: np.ndarray


def square(job: Job) -> int:
    with open(job.log, "a") as log:
        log.write(f"{job.number}\n")
    if job.number < 0:
        raise RuntimeError("below zero")
    return job.number**2


def cube(job: Job) -> int:
    return job.number**3


@pytest.fixture
def jobs(tmp_path):
    return [Job(str(tmp_path / "log"), number, np.arange(number)) for number in range(5)]


def work(tmp_path) -> JobRunner:
    return JobRunner(tmp_path / "work", InProcess(), StageProgress(None))


def log(tmp_path) -> list[int]:
    return [int(line) for line in (tmp_path / "log").read_text().split()]


def test_finished_jobs_are_reused(tmp_path, jobs):
    first_runner = work(tmp_path)
    assert first_runner.run("squares", square, jobs[1:4]) == [1, 4, 9]
    again = work(tmp_path)
    assert again.run("squares", square, jobs) == [0, 1, 4, 9, 16]
    assert log(tmp_path) == [1, 2, 3, 0, 4]
    assert (first_runner.reused_jobs, again.reused_jobs) == (0, 3)


def test_jobs_before_failure_are_reused(tmp_path, jobs):
    with pytest.raises(RuntimeError):
        work(tmp_path).run("squares", square, [*jobs[:3], replace(jobs[3], number=-1), jobs[4]])
    assert work(tmp_path).run("squares", square, jobs) == [0, 1, 4, 9, 16]
    assert log(tmp_path) == [0, 1, 2, -1, 3, 4]


def test_truncated_result_runs_job_again(tmp_path, jobs):
    work(tmp_path).run("squares", square, jobs)
    for retained in Path(tmp_path / "work").rglob("finished/*/*.json"):
        retained.write_bytes(retained.read_bytes()[:-1])
    assert work(tmp_path).run("squares", square, jobs) == [0, 1, 4, 9, 16]


def test_different_jobs_have_different_keys(jobs):
    job = jobs[3]
    other_items = [replace(job, number=4), replace(job, rows=np.arange(3) + 1), replace(job, rows=np.arange(3.0))]
    keys = {job_key(square, job), job_key(cube, job), *(job_key(square, other) for other in other_items)}
    assert len(keys) == 5
    assert job_key(square, replace(job, rows=job.rows.copy())) == job_key(square, job)


class AnyOrder(InProcess):
    """Runs jobs and returns their results in another order than the jobs came in."""

    def run(self, function, jobs):
        jobs = list(enumerate(jobs))
        random.Random(1).shuffle(jobs)
        done = [(number, function(job)) for number, job in jobs]
        yield from reversed(done)


def test_results_are_in_order_of_jobs(tmp_path, jobs):
    runner = JobRunner(tmp_path / "work", AnyOrder(), StageProgress(None))
    assert runner.run("squares", square, jobs[2:3]) == [4]
    assert runner.run("squares", square, jobs) == [0, 1, 4, 9, 16]
    assert log(tmp_path) != sorted(log(tmp_path))


def test_jobs_from_iterator(tmp_path, jobs):
    assert work(tmp_path).run("squares", square, iter(jobs), total=5) == [0, 1, 4, 9, 16]
