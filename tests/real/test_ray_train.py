"""`ray job submit -- python -m megaptm launch ray` places tensor ranks on one node, and has the losses of one
process."""

import re
import signal

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import checkpoints, last_step, losses, resumed_at
from tests.forked import megaptm
from tests.real.jobs import small
from tests.real.ray_cluster import wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

STEPS = 8
SPREAD = ("layout.data=2", "layout.tensor=2", f"train.steps={STEPS}")
KINDS = {"gpt2": "byte-bpe", "t5": "unigram"}


@pytest.mark.parametrize("family", ["gpt2", pytest.param("t5", marks=pytest.mark.drill)])
def test_job_matches_one_process(ray, real_corpus, tmp_path, family):
    corpus, run = real_corpus(KINDS[family]), tmp_path / "run"
    job = ray.finish(ray.submit(*small(family, run, corpus, *SPREAD)))
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    megaptm("train", *small(family, tmp_path / "alone", corpus, *SPREAD), "layout.data=1", "layout.tensor=1")
    reference = losses(tmp_path / "alone")
    assert losses(run) == {step: pytest.approx(loss, rel=1e-5) for step, loss in reference.items()}

    [start_line] = re.findall(r"^Start 1: (.*); logs of the ranks: (.*)$", job.log, re.MULTILINE)
    assert re.fullmatch(r"ranks 0-1 on 127\.\d+\.\d+\.10\d, ranks 2-3 on 127\.\d+\.\d+\.10\d", start_line[0])
    assert {path.name for path in (run / "logs").glob("*/*.log")} == {f"rank-{rank}.log" for rank in range(4)}
    assert start_line[1] in map(str, (run / "logs").iterdir())
    for step in range(1, STEPS + 1):
        assert job.log.count(f"step {step}/{STEPS}  loss") == 1


def test_second_job_stop_and_failed_rank(ray, corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, corpus, "layout.data=3", "layout.microbatch=2", "train.steps=100000")
    number = ray.submit(*words)
    wait_for(lambda: last_step(run) > 1, describe=lambda: ray.log(number))
    another = ray.finish(ray.submit(*words))
    assert (another.status, another.code) == ("FAILED", 2)
    assert re.search(f"^error: .*{run}.* is in use by ", another.log, re.MULTILINE), another.log
    ray.stop_job(number)
    assert ray.finish(number).status == "STOPPED"
    assert checkpoints(run)[-1] == last_step(run)
    events = read_events(run)
    assert [event["signal"] for event in events if event["kind"] == "stop-signal"] == ["SIGTERM"]
    assert events[-1]["code"] == 75

    number = ray.submit(*words)  # train.restarts is 0
    done = last_step(run)
    wait_for(lambda: last_step(run) > done, describe=lambda: ray.log(number))
    assert resumed_at(run) == [done]
    ray.ranks()[1].send_signal(signal.SIGKILL)
    job = ray.finish(number)
    assert (job.status, job.code) == ("FAILED", 1)
    assert re.search(r"^rank \d was killed by signal 9 \(SIGKILL\)", job.log, re.MULTILINE)
    assert not ray.ranks()


def test_dry_run_prints_placement(ray, corpus, tmp_path):
    words = small("gpt2", tmp_path / "run", corpus, "layout.data=2", "layout.tensor=2", "layout.pipeline=1")
    job = ray.finish(ray.submit(*words, "--dry-run"))
    assert (job.status, job.code) == ("SUCCEEDED", 0), job.log
    assert re.findall(r"^(ranks \d-\d) on 127\.\d+\.\d+\.10\d: 2 of its 2 CPUs$", job.log, re.MULTILINE) == [
        *("ranks 0-1", "ranks 2-3"),
    ]
    assert not (tmp_path / "run").exists()


def test_run_folder_in_working_directory_copy_is_rejected(ray, corpus, tmp_path):
    job = ray.finish(ray.submit(*small("gpt2", tmp_path / "run", corpus), "run=runs/mine"))
    assert (job.status, job.code) == ("FAILED", 2)
    assert "error: run (mine) would be in a copy of the working directory" in job.log


def test_documented_command_shows_output_and_fails_with_job(ray, corpus, tmp_path):
    words = small("gpt2", tmp_path / "run", corpus, "layout.data=12", "layout.microbatch=1")
    refused = ray.run_job_command(
        "submit", "--working-dir", ".", "--", "python", "-m", "megaptm", "launch", "ray", *words
    )
    assert refused.returncode == 1
    [message] = {line for line in refused.stdout.splitlines() if line.startswith("error: ")}
    assert "the layout needs 12 CPUs, but the Ray cluster has 2 on 127." in message
    assert not (tmp_path / "run").exists()
