"""`megaptm launch slurm`: a chain of jobs to the end of the run, followed; arrays of runs."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megaptm.run.submission import queued
from megaptm.schedulers.slurm.jobs import job_state
from tests import ROOT
from tests.drills.program import checkpoints, last_step, resumed_at
from tests.processes import command_of
from tests.real.jobs import ENDS, PACED, small
from tests.real.slurm_cluster import slurm_cluster
from tests.storage.server import free_port

pytestmark = pytest.mark.real

FEW = ("--gpus-per-node=0", "--cpus-per-task=1", "--time=1:00:00")


@pytest.fixture
def begin(slurm, tmp_path):
    """`megaptm launch slurm WORDS`, begun; what is left of it ends with the test.

    In a folder of its own: a slurmstepd that fails leaves its core there.
    """
    begun = []

    def launching(*words, cluster=slurm):
        command = [sys.executable, "-m", "megaptm", "launch", "slurm", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path}
        begun.append(subprocess.Popen(command, env=cluster.environment, text=True, **pipes))
        return begun[-1]

    yield launching
    for program in begun:
        program.kill()
    slurm.cancel_all()
    slurm.wait_for(lambda: not slurm.processes())


@pytest.fixture
def launch(begin):
    """The same, to its end."""

    def run(*words, **more):
        program = begin(*words, **more)
        out, err = program.communicate(timeout=400)
        return subprocess.CompletedProcess(program.args, program.returncode, out, err)

    return run


def submitted(line):
    """The numbers in what a launch says first."""
    return line.partition(";")[0].removeprefix("Submitted job ").split(", ")


def jobs(slurm):
    """All that were ever submitted."""
    return re.findall(r"^JobId=(\d+)", slurm.say("scontrol", "show", "jobs", "--oneliner"), re.MULTILINE)


def test_a_chain_of_jobs_is_followed_until_the_run_is_done(launch, slurm, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=3")
    done = launch(*words, *FEW, "--jobs=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 3/3  loss" in done.stdout
    assert last_step(run) == 3
    first, second = submitted(done.stdout.splitlines()[0])
    assert [slurm.wait_for_state(job, *ENDS) for job in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert "is complete: all 3 steps are saved" in (run / f"logs/job-{second}.log").read_text()


@pytest.mark.drill
def test_a_chain_that_may_not_go_back_to_the_queue_gets_another_job(begin, slurm, real_corpus, tmp_path):
    """Two jobs are told that their time is up. The second goes on where the first ended, and a third is submitted."""
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=14", PACED, "layout.data=2")
    program = begin(*words, *FEW, "--jobs=2", "--sbatch=--no-requeue")
    for job in submitted(program.stdout.readline()):
        done = last_step(run)
        slurm.wait_for(lambda done=done: last_step(run) > done + 1)
        slurm.say("scancel", "--batch", "--signal=USR1", job)
        assert slurm.wait_for_state(job, *ENDS) == "FAILED"
        assert slurm.job(job)["ExitCode"] == "75:0"
        assert "another job goes on with the run" in (run / f"logs/job-{job}.log").read_text()
    out, err = program.communicate(timeout=400)
    assert program.returncode == 0, out + err
    assert "The run is not done and no job is left: submitted job " in out
    assert (len(resumed_at(run)), last_step(run)) == (2, 14)


def test_a_job_trains_what_it_was_submitted_with_wherever_its_run_lies(
    launch, slurm, real_corpus, tmp_path, monkeypatch
):
    """Whoever changes the run while it waits is refused; what is changed all the same, the job does not look at."""
    run = tmp_path / "lr=1e-3, it's #1; $(touch pwned) é😀"
    words = small("gpt2", run, real_corpus("byte-bpe"), f'run="{run}"', "train.steps=2")
    begun = launch(*words, *FEW, "--no-follow", "--sbatch=--hold --comment='two words'")
    assert begun.returncode == 0, begun.stderr
    [job] = submitted(begun.stdout.splitlines()[0])
    config = (run / "config.yaml").read_text()
    for command in (["launch", "slurm", *words, *FEW], ["train", *words], ["train", str(run)]):
        again = [sys.executable, "-m", "megaptm", *command, "optimizer.lr=5e-4"]
        refused = subprocess.run(
            again, env=slurm.environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr.startswith(
            f"error: run {run} is in Slurm's queue as job {job} (PENDING), with the config"
        )
        assert f"withdraw it first (scancel {job})" in refused.stderr
        assert (run / "config.yaml").read_text() == config
    (run / "config.yaml").write_text(config.replace("lr: 0.001", "lr: 0.0005"))
    slurm.say("scontrol", "release", job)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", (run / f"logs/job-{job}.log").read_text()
    assert "step 2/2  loss" in (run / f"logs/job-{job}.log").read_text()
    assert (run / "config.yaml").read_text() == config
    assert last_step(run) == 2
    assert not (tmp_path / "pwned").exists()
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    slurm.wait_for(lambda: queued(run) == {})


def test_a_chain_that_slurm_breaks_off_leaves_no_job(begin, slurm, real_corpus, tmp_path):
    slurm.say("scontrol", "create", "PartitionName=closing", "Nodes=node1")
    try:
        words = small("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
        program = begin(*words, *FEW, "--jobs=400", "--sbatch=--hold -pclosing")
        there = ["squeue", "--noheader", "--partition=closing", "--format=%A"]
        slurm.wait_for(lambda: len(slurm.say(*there).split()) > 2 or program.poll() is not None)
        slurm.say("scontrol", "update", "PartitionName=closing", "State=INACTIVE")
        out, err = program.communicate(timeout=400)
        assert (program.returncode, out) == (2, "")
        assert re.match(
            r"error: Slurm rejects the job \(.*\): .*; this was job \d+ of the chain; the earlier jobs", err
        ), err
        assert err.rstrip().endswith(" are canceled.")
        slurm.wait_for(lambda: not slurm.say(*there))
    finally:
        slurm.cancel_all()
        slurm.wait_for(lambda: not slurm.say("squeue", "--noheader", "--partition=closing"))
        slurm.say("scontrol", "delete", "PartitionName=closing")


SLOW_SBATCH = """#!/bin/sh
said=$({sbatch} "$@") || exit
case "$*" in
*--parsable*)
    touch {folder}/is-submitted
    while [ ! -e {folder}/may-answer ]; do sleep 0.1; done
esac
echo "$said"
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_waits_for_the_number_of_a_job_and_a_second_one_says_how_to_find_it(slurm, real_corpus, tmp_path, times):
    programs, run = tmp_path / "bin", tmp_path / "run"
    programs.mkdir()
    (programs / "sbatch").write_text(SLOW_SBATCH.format(sbatch=shutil.which("sbatch"), folder=tmp_path))
    (programs / "sbatch").chmod(0o755)
    words = [*small("gpt2", run, real_corpus("byte-bpe")), *FEW, "--sbatch=--hold"]
    program = subprocess.Popen(
        [sys.executable, "-m", "megaptm", "launch", "slurm", *words],
        env={**slurm.environment, "PATH": f"{programs}:{slurm.environment['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    slurm.wait_for(lambda: (tmp_path / "is-submitted").exists() or program.poll() is not None)
    [job] = slurm.say("squeue", "--noheader", "--format=%A").split()
    said = ""
    for _ in range(times):
        os.killpg(program.pid, signal.SIGINT)
        while "exit at once" not in said:
            line = program.stderr.readline()
            assert line, said
            said += line
    if times == 1:
        (tmp_path / "may-answer").touch()
    _, told = program.communicate(timeout=120)
    assert program.returncode == 2, told
    if times == 1:
        assert told == f"error: interrupted; job {job} is canceled.\n"
        slurm.wait_for(lambda: slurm.job(job)["JobState"] == "CANCELLED")
    else:
        assert told.startswith(
            f"error: interrupted before sbatch answered: the job of {run}/job.sh may be in the queue"
        )
        assert job in slurm.say("squeue", "--me", "--format=%A %T %o").split()


def test_a_job_that_a_node_could_not_start_is_let_go_again(begin, slurm, real_corpus, tmp_path):
    """Slurm would hold it for good, and nobody notice."""
    coming = int(max(jobs(slurm), key=int, default="0")) + 1
    in_the_way = [slurm.folder / f"spool/node{node}/job{coming + n:05d}" for node in (1, 2, 3, 4) for n in range(6)]
    for script in in_the_way:
        script.touch()
    program = begin(*small("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "train.steps=3"), *FEW)
    [job] = submitted(program.stdout.readline())
    assert program.stdout.readline() == f"Slurm could not start job {job} and held it; released it.\n"
    for script in in_the_way:
        script.unlink(missing_ok=True)
    slurm.start_now(job)
    out, err = program.communicate(timeout=400)
    assert program.returncode == 0, out + err
    assert "step 3/3  loss" in out


def test_a_job_is_over_where_slurm_says_so_and_not_where_it_says_nothing(slurm, monkeypatch, tmp_path):
    configured = Path(slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("SLURM_CONF", str(configured))
    assert job_state("999999") == ("", "")
    nobody = re.sub(r"SlurmctldPort=\d+", f"SlurmctldPort={free_port()}", configured.read_text())
    (tmp_path / "slurm.conf").write_text(nobody)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert job_state("999999") == ("UNKNOWN", "")


def test_a_failure_gets_no_other_job(begin, slurm, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=100000", "checkpoint.every=2", "layout.data=2")
    program = begin(*words, *FEW, "--per-node=1")
    [job] = submitted(program.stdout.readline())
    slurm.wait_for(lambda: checkpoints(run))
    *_, last = slurm.say("scontrol", "show", "hostnames", slurm.job(job)["NodeList"]).split()
    next(task for task in slurm.tasks_of(last) if "train" in command_of(task)).kill()
    out, err = program.communicate(timeout=400)
    assert program.returncode == 1
    assert f"On {last}, rank 1 was killed by signal 9" in out
    assert "the run is not complete" in err
    assert slurm.say("squeue", "--noheader") == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sbatch=--partition=nowhere"], "Slurm has no partition nowhere (partitions: main, large)"),
        (
            ["layout.data=6", "layout.microbatch=2", "--per-node=1"],
            "Slurm's partition main allows jobs of at most 4 nodes, not 6",
        ),
        (["--gpus-per-node=12"], "Slurm's partition main has 0 nodes with 12 GPUs"),
        (["--machine=this-cpu", "--time=16:00"], "a job of 16 min completes no step"),
        (["--cpus-per-task=999"], "Slurm rejects the job ("),
    ],
)
def test_a_wrong_request_is_refused_before_it_is_submitted(launch, slurm, real_corpus, tmp_path, words, said):
    known = jobs(slurm)
    refused = launch(*small("gpt2", tmp_path / "run", real_corpus("byte-bpe")), *FEW, *words)
    assert refused.returncode == 2
    [sentence] = refused.stderr.splitlines()
    assert sentence.startswith(f"error: {said}")
    assert jobs(slurm) == known
    assert not (tmp_path / "run").exists()


def test_a_slurm_without_gpus_says_so_and_takes_the_job_without(launch, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=2")
    with slurm_cluster(nodes=1, gpus=0) as cpus:
        refused = launch(*words, "--cpus-per-task=1", cluster=cpus)
        assert refused.returncode == 2
        assert "Slurm's partition main declares no GPUs, but the job requests 1 on each node" in refused.stderr
        assert "GresTypes=gpu" in refused.stderr
        assert "--gpus-per-node 0" in refused.stderr
        assert not run.exists()
        assert launch(*words, "--cpus-per-task=1", "--gpus-per-node=0", cluster=cpus).returncode == 0
    assert last_step(run) == 2


def test_an_array_makes_a_run_of_each_learning_rate(slurm, real_corpus, tmp_path):
    for name in ("slurm", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)  # the runs of the array belong to the folder it is submitted from
    config, *values = small("gpt2", tmp_path / "none", real_corpus("byte-bpe"), "train.steps=2")
    job = slurm.submit(
        *("--array=0-1", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/%a.log"),
        *("slurm/array_sweep.sh", config, *values),
        folder=tmp_path,
    )
    for element in (f"{job}_0", f"{job}_1"):
        assert slurm.wait_for_state(element, *ENDS) == "COMPLETED", [log.read_text() for log in tmp_path.glob("*.log")]
    assert {path.name: last_step(path) for path in (tmp_path / "runs/sweep").iterdir()} == {"lr-3e-4": 2, "lr-6e-4": 2}
