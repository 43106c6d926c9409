"""`ray job submit -- python -m megaptm launch ray`: tensor ranks together on a node, the losses of one process."""

import re
import signal

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, finish, last_step, losses, resumed_at
from tests.real.jobs import small
from tests.real.ray_cluster import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

STEPS = 8
SPREAD = ("layout.data=2", "layout.tensor=2", f"train.steps={STEPS}")
KINDS = {"gpt2": "byte-bpe", "t5": "unigram"}


def in_one_process(words):
    """The losses of the same run in one process."""
    done = finish("train", *words, "layout.data=1", "layout.tensor=1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("family", KINDS)
def test_a_submitted_job_trains_as_one_process_does(ray, real_corpus, tmp_path, family):
    corpus, run = real_corpus(KINDS[family]), tmp_path / "run"
    job = ray.finish(ray.submit(*small(family, run, corpus, *SPREAD)))
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    in_one_process(small(family, tmp_path / "alone", corpus, *SPREAD))
    alone = losses(tmp_path / "alone")
    assert losses(run) == {step: pytest.approx(loss, rel=1e-5) for step, loss in alone.items()}

    [placed] = re.findall(r"^Start 1: (.*); each rank's log is in (.*)$", job.log, re.MULTILINE)
    assert re.fullmatch(r"ranks 0-1 on 127\.0\.0\.10\d, ranks 2-3 on 127\.0\.0\.10\d", placed[0])
    assert {path.name for path in (run / "logs").glob("*/*")} == {f"rank-{rank}.log" for rank in range(4)}
    assert placed[1] in map(str, (run / "logs").iterdir())
    for step in range(1, STEPS + 1):
        assert job.log.count(f"step {step}/{STEPS}  loss") == 1


def test_a_job_that_is_stopped_saves_and_a_rank_that_fails_is_told(ray, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "layout.data=3", "layout.microbatch=2", "train.steps=100000")
    number = ray.submit(*words)
    wait_for(lambda: last_step(run) > 1, told=lambda: ray.log(number))
    ray.stop_job(number)
    assert ray.finish(number).status == "STOPPED"
    assert checkpoints(run)[-1] == last_step(run)
    events = read_events(run)
    assert [event["signal"] for event in events if event["kind"] == "stop-signal"] == ["SIGTERM"]
    assert events[-1]["code"] == 75

    number = ray.submit(*words, "--retries", "0")
    done = last_step(run)
    wait_for(lambda: last_step(run) > done, told=lambda: ray.log(number))
    assert resumed_at(run) == [done]
    ray.ranks()[1].send_signal(signal.SIGKILL)
    job = ray.finish(number)
    assert (job.status, job.code) == ("FAILED", 1)
    assert re.search(r"^rank \d was killed by signal 9 \(SIGKILL\)", job.log, re.MULTILINE)
    assert not ray.ranks()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ["layout.data=12", "layout.microbatch=1"],
            "the layout needs 12 CPUs, and the Ray cluster has 2 on 127.0.0.101, 2 on 127.0.0.102, 2 on",
        ),
        (
            ["layout.tensor=4", "model.heads=4"],
            "needs 4 CPUs, 4 together on a node (layout.tensor), and the Ray cluster",
        ),
        (["run=runs/mine"], "would lie in the copy of the working directory"),
        (["layout.tensor=3"], "layout.tensor (3) must divide the 2 attention heads"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(ray, real_corpus, tmp_path, change, told):
    job = ray.finish(ray.submit(*small("gpt2", tmp_path / "run", real_corpus("byte-bpe")), *change))
    assert (job.status, job.code) == ("FAILED", 2)
    [said] = [line for line in job.log.splitlines() if line.startswith("error: ")]
    assert told in said
    assert not (tmp_path / "run").exists()


def test_the_command_of_the_manual_shows_what_the_job_says_and_fails_with_it(ray, real_corpus, tmp_path):
    command = ["python", "-m", "megaptm", "launch", "ray", *small("gpt2", tmp_path / "run", real_corpus("byte-bpe"))]
    shown = ray.ask("submit", "--working-dir", ".", "--", *command, "layout.data=2", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "ranks 0-1 on 127.0.0.101: 2 of its 2 CPUs" in shown.stdout
    assert not (tmp_path / "run").exists()
    refused = ray.ask("submit", "--working-dir", ".", "--", *command, "layout.tensor=3")
    assert refused.returncode == 1
    assert "error: " in refused.stdout + refused.stderr
