"""Two commands start the same run: the second one writes nothing but an error."""

import signal

from megaptm.config import load_config
from megaptm.resilience.events import read_events
from tests.drills.program import arguments, checkpoints, family_of, finish, start, wait_for
from tests.processes import send


def test_second_start_is_refused_before_the_first_step(tmp_path, real_corpus):
    run, corpus = tmp_path / "run", real_corpus("byte-bpe")
    job = start("train", *arguments("gpt2", run, corpus, "train.steps=1000000"))
    ranks = wait_for(lambda: family_of(job), job)
    send(ranks, signal.SIGSTOP)
    wait_for(lambda: read_events(run), job)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "heartbeats" not in path.parts}

    refused = finish("train", *arguments("gpt2", run, corpus, "train.steps=3", "optimizer.lr=2e-3"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: run folder {run} is in use by process {job.pid} on ")
    assert {path: path.read_bytes() for path in before} == before

    send(ranks, signal.SIGCONT)
    wait_for(lambda: any(event["kind"] == "first-step" for event in read_events(run)), job)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=240)
    assert job.returncode == 75, errors
    assert checkpoints(run)
    assert load_config(run / "config.yaml").optimizer.lr == 1e-3
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["launch", "start", "first-step", "checkpoint", "stop-signal", "exit"]


def test_one_of_two_concurrent_starts_trains(tmp_path, real_corpus):
    run, corpus = tmp_path / "run", real_corpus("byte-bpe")
    jobs = [
        start("train", *arguments("gpt2", run, corpus, f"train.steps={steps}", f"optimizer.lr={rate}"))
        for steps, rate in ((30, 1e-3), (31, 2e-3))
    ]
    errors = [job.communicate(timeout=240)[1] for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0, 2], errors
    assert [event["kind"] for event in read_events(run)] == ["launch", "start", "first-step", "checkpoint", "exit"]
