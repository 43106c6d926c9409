"""Started by torchrun, each process finds its place in the run by itself."""

import os
import re
import shlex
import socket
import subprocess
import sys

import pytest

from megaptm.resilience.events import last_saved, read_events
from megaptm.track import read_metrics
from tests import ROOT
from tests.drills.program import family_of, last_step, wait_for
from tests.processes import environment_of, survivors
from tests.storage.server import free_port


def torchrun(processes, *words):
    """`torchrun -m megaptm train WORDS`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*command, "--master-port", str(free_port()), "-m", "megaptm", "train", "configs/gpt2/tiny.yaml", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def documented_commands():
    """The commands of the page, one for each node."""
    text = (ROOT / "docs/torchrun.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^    torchrun (.*)$", text, re.MULTILINE)]


def on_two_nodes(*more):
    """The documented commands, with two nodes of one process on this machine."""
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


def test_torchrun_starts_the_processes_of_one_run(tmp_path, real_corpus):
    run = tmp_path / "run"
    job = torchrun(2, *words(run, real_corpus("byte-bpe"), "train.steps=3"))
    _, said = job.communicate()
    assert job.returncode == 0, said[-2000:]
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 2, 3]
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["launch", "start", "first-step", "checkpoint", "exit"]


def test_the_documented_commands_train_one_run_on_two_nodes(tmp_path, real_corpus):
    run = tmp_path / "run"
    first, second = on_two_nodes(*words(run, real_corpus("byte-bpe"), "train.steps=3"))
    said = [job.communicate()[1] for job in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert last_step(run) == 3
    assert [event["processes"] for event in read_events(run) if event["kind"] == "start"] == [2]


@pytest.mark.drill
def test_a_signal_to_one_of_two_nodes_saves_the_run(tmp_path, real_corpus):
    run = tmp_path / "run"
    first, second = on_two_nodes(*words(run, real_corpus("byte-bpe"), "train.steps=1000000"))
    wait_for(lambda: last_step(run) > 2, first)
    second.terminate()
    said = [job.communicate(timeout=240)[1] for job in (first, second)]
    assert [event["code"] for event in read_events(run) if event["kind"] == "exit"] == [75], said
    assert last_saved(run) >= 2


@pytest.mark.drill
def test_a_halted_rank_is_named_by_the_others_though_torchrun_waits_for_it(tmp_path, real_corpus):
    run = tmp_path / "run"
    job = torchrun(2, *words(run, real_corpus("byte-bpe"), "train.steps=1000000", "train.hang_seconds=12"))
    wait_for(lambda: last_step(run) > 2, job)
    everybody = family_of(job)
    [rank] = [one for one in everybody if one.parent().pid == job.pid and environment_of(one)["RANK"] == "0"]
    rank.suspend()
    _, said = job.communicate(timeout=300)
    assert "rank 0 hangs: for " in said
    assert "its process is halted (state T" in said
    assert [event["rank"] for event in read_events(run) if event["kind"] == "hang"] == [0]
    assert survivors(everybody) == []


def test_a_wrong_number_of_processes_is_told_once(tmp_path):
    job = torchrun(3, f"run={tmp_path / 'run'}", "layout.data=2")
    _, said = job.communicate()
    assert job.returncode != 0
    assert [line for line in said.splitlines() if line.startswith("error: ")] == [
        "error: 3 processes are more than the 2 the layout needs (data 2 x tensor 1 x pipeline 1): start 2, or change "
        "layout.data."
    ]
    # torchrun itself says which rank ended first, by a traceback of its own.
    assert said.count("Traceback") == 1
    assert not (tmp_path / "run").exists()


def test_a_port_that_another_program_has_is_told_in_a_sentence(tmp_path, real_corpus):
    """To rank 0 of ranks that nobody handed a socket."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        alone = words(tmp_path / "run", real_corpus("byte-bpe"), "layout.tensor=1", "train.steps=3")
        done = subprocess.run(
            [sys.executable, "-m", "megaptm", "train", "configs/gpt2/tiny.yaml", *alone],
            env={**os.environ, **place},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: MASTER_PORT ({port}): another program of this machine")
    assert "Traceback" not in done.stderr


@pytest.mark.drill
def test_a_loader_that_is_killed_is_told_in_a_sentence(tmp_path, real_corpus):
    run = tmp_path / "run"
    more = ("train.steps=1000000", "data.workers=1")
    job = torchrun(2, *words(run, real_corpus("byte-bpe"), *more))
    wait_for(lambda: last_step(run) > 2, job)
    [rank] = [
        one for one in family_of(job) if one.ppid() == job.pid and environment_of(one).get("RANK") == "0"
    ]  # it reads
    [loader] = rank.children()
    loader.kill()
    _, said = job.communicate(timeout=240)
    assert job.returncode == 1, said[-2000:]
    assert f"error: process {loader.pid}, which reads data, was lost (signal 9, Killed)" in said
    assert "; the run is saved at step " in said
    assert "the machine was out of memory" in said
