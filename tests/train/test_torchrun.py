"""Runs started by torchrun."""

import os
import re
import shlex
import socket
import subprocess
import sys

import pytest

from megaptm.resilience.events import last_saved_step, read_events
from megaptm.track import read_metrics
from tests import ROOT
from tests.drills.program import checkpoints, family_of, last_step, losses, resumed_at, wait_for
from tests.processes import environment_of, survivors
from tests.storage.server import free_port


def torchrun(processes, *words, options=()):
    """Start `torchrun OPTIONS -m megaptm train WORDS`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), *options]
    return subprocess.Popen(
        [*command, "--master-port", str(free_port()), "-m", "megaptm", "train", "configs/gpt2/tiny.yaml", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def documented_commands():
    """Return the documented commands, one per node."""
    text = (ROOT / "docs/torchrun.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^    torchrun (.*)$", text, re.MULTILINE)]


def on_two_nodes(*more):
    """Start the documented commands, with two nodes of one process on this machine."""
    port, jobs = str(free_port()), []
    smaller = {"node0": "127.0.0.1", "29500": port, "8": "1", "configs/gpt3/xl.yaml": "configs/gpt2/tiny.yaml"}
    for command in documented_commands():
        known = [smaller.get(word, word) for word in command if "=" not in word]
        jobs.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *known, *more],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return jobs


def words(run, corpus, *more):
    return [
        f"run={run}",
        f"data.mix={{{corpus}: 1}}",
        "train.log_every=1",
        "train.batch=4",
        "layout.tensor=2",
        "layout.microbatch=4",
        "model.layers=2",
        "model.width=32",
        "model.ffn=64",
        "track.enabled=false",
        *more,
    ]


def test_killed_rank_continues_under_torchrun(tmp_path, real_corpus):
    """The store of torchrun still has the addresses of the first start."""
    settings = words(tmp_path / "run", real_corpus("byte-bpe"), "train.steps=30", "checkpoint.every=4")
    job = torchrun(2, *settings, options=("--max-restarts", "1"))
    run = tmp_path / "run"
    wait_for(lambda: max(checkpoints(run), default=0) >= 4 if run.exists() else False, job)
    [rank] = [child for child in family_of(job) if environment_of(child).get("RANK") == "1" and child.ppid() == job.pid]
    rank.kill()
    _, output = job.communicate(timeout=200)
    assert job.returncode == 0, output[-2000:]
    assert resumed_at(run)[0] >= 4
    assert len(resumed_at(run)) == 1
    assert last_step(run) == 30
    repeated = [values for values in losses(run).values() if len(values) > 1]
    assert all(first == again for first, again in repeated)


def test_documented_torchrun_commands_train_on_two_nodes(tmp_path, real_corpus):
    run = tmp_path / "run"
    first, second = on_two_nodes(*words(run, real_corpus("byte-bpe"), "train.steps=3"))
    output = [job.communicate()[1] for job in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), output
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 2, 3]
    events = read_events(run)
    assert [event["kind"] for event in events] == ["launch", "start", "first-step", "checkpoint", "exit"]
    assert events[1]["processes"] == 2


@pytest.mark.drill
def test_signal_to_one_node_saves_the_run(tmp_path, real_corpus):
    run = tmp_path / "run"
    first, second = on_two_nodes(*words(run, real_corpus("byte-bpe"), "train.steps=1000000"))
    wait_for(lambda: last_step(run) > 2, first)
    second.terminate()
    output = [job.communicate(timeout=240)[1] for job in (first, second)]
    assert [event["code"] for event in read_events(run) if event["kind"] == "exit"] == [75], output
    assert last_saved_step(run) >= 2


@pytest.mark.drill
def test_stopped_rank_is_reported_under_torchrun(tmp_path, real_corpus):
    run = tmp_path / "run"
    job = torchrun(2, *words(run, real_corpus("byte-bpe"), "train.steps=1000000", "train.hang_seconds=12"))
    wait_for(lambda: last_step(run) > 2, job)
    family = family_of(job)
    [rank] = [child for child in family if child.parent().pid == job.pid and environment_of(child)["RANK"] == "0"]
    rank.suspend()
    _, output = job.communicate(timeout=300)
    assert "rank 0 hangs: for " in output
    assert "its process is stopped (state T" in output
    assert [event["rank"] for event in read_events(run) if event["kind"] == "hang"] == [0]
    assert survivors(family) == []


def test_wrong_number_of_processes_is_reported_once(tmp_path):
    job = torchrun(3, f"run={tmp_path / 'run'}", "layout.data=2")
    _, output = job.communicate()
    assert job.returncode != 0
    assert [line for line in output.splitlines() if line.startswith("error: ")] == [
        "error: 3 processes are more than the 2 the layout needs (data 2 x tensor 1 x pipeline 1): start 2, or change "
        "layout.data."
    ]
    # torchrun itself reports the rank that ended first, with its own traceback.
    assert output.count("Traceback") == 1
    assert not (tmp_path / "run").exists()


def test_port_in_use_is_reported(tmp_path, real_corpus):
    """Rank 0 gets no socket from its launcher."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        variables = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        alone = words(tmp_path / "run", real_corpus("byte-bpe"), "layout.tensor=1", "train.steps=3")
        done = subprocess.run(
            [sys.executable, "-m", "megaptm", "train", "configs/gpt2/tiny.yaml", *alone],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: MASTER_PORT ({port}): another program of this machine")
    assert "Traceback" not in done.stderr


@pytest.mark.drill
def test_killed_loader_worker_is_reported_under_torchrun(tmp_path, real_corpus):
    run = tmp_path / "run"
    more = ("train.steps=1000000", "data.workers=1")
    job = torchrun(2, *words(run, real_corpus("byte-bpe"), *more))
    wait_for(lambda: last_step(run) > 2, job)
    [rank] = [
        child for child in family_of(job) if child.ppid() == job.pid and environment_of(child).get("RANK") == "0"
    ]  # the rank that reads data
    [loader] = rank.children()
    loader.kill()
    _, output = job.communicate(timeout=240)
    assert job.returncode == 1, output[-2000:]
    assert f"error: data loader worker {loader.pid} died (signal 9, Killed)" in output
    assert "; the run is saved at step " in output
    assert "the machine ran out of memory" in output
