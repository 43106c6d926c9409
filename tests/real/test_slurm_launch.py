"""`megaptm launch slurm`: chains of jobs until the run is complete, and arrays of runs."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megaptm.run.submission import queued_jobs
from megaptm.schedulers.slurm.jobs import job_state
from tests import ROOT
from tests.drills.program import checkpoints, last_step, resumed_at
from tests.processes import command_of
from tests.real.jobs import ENDS, SLOW_OBJECTIVE, small
from tests.real.slurm_cluster import slurm_cluster
from tests.storage.server import free_port

pytestmark = pytest.mark.real

RESOURCES = ("--gpus-per-node=0", "--cpus-per-task=1", "--time=1:00:00")


@pytest.fixture
def start_launch(slurm, tmp_path):
    """Function that starts `megaptm launch slurm ARGUMENTS`, which ends with the test.

    It runs in its own folder, where a failed slurmstepd leaves its core.
    """
    programs = []

    def launching(*arguments, cluster=slurm):
        command = [sys.executable, "-m", "megaptm", "launch", "slurm", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path}
        programs.append(subprocess.Popen(command, env=cluster.environment, text=True, **pipes))
        return programs[-1]

    yield launching
    for program in programs:
        program.kill()
    slurm.cancel_all()
    slurm.wait_for(lambda: not slurm.processes())


@pytest.fixture
def launch(start_launch):
    """Function that runs `megaptm launch slurm ARGUMENTS` to its end."""

    def run(*words, **more):
        program = start_launch(*words, **more)
        out, err = program.communicate(timeout=400)
        return subprocess.CompletedProcess(program.args, program.returncode, out, err)

    return run


def submitted_jobs(line):
    """Return the job ids in the first line of a launch."""
    return line.partition(";")[0].removeprefix("Submitted job ").split(", ")


def all_jobs(slurm):
    """Return the ids of all jobs ever submitted."""
    return re.findall(r"^JobId=(\d+)", slurm.run_command("scontrol", "show", "jobs", "--oneliner"), re.MULTILINE)


def test_chain_is_followed_until_run_is_complete(launch, slurm, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=3")
    done = launch(*words, *RESOURCES, "--jobs=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 3/3  loss" in done.stdout
    assert last_step(run) == 3
    first, second = submitted_jobs(done.stdout.splitlines()[0])
    assert [slurm.wait_for_state(job, *ENDS) for job in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert "is complete, and saved at step 3" in (run / f"logs/job-{second}.log").read_text()


@pytest.mark.drill
def test_chain_without_requeue_gets_another_job(start_launch, slurm, real_corpus, tmp_path):
    """Two jobs reach their time limit. The second continues from the first, and a third is submitted."""
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=14", SLOW_OBJECTIVE, "layout.data=2")
    program = start_launch(*words, *RESOURCES, "--jobs=2", "--sbatch=--no-requeue")
    for job in submitted_jobs(program.stdout.readline()):
        done = last_step(run)
        slurm.wait_for(lambda done=done: last_step(run) > done + 1)
        slurm.run_command("scancel", "--batch", "--signal=USR1", job)
        assert slurm.wait_for_state(job, *ENDS) == "FAILED"
        assert slurm.job(job)["ExitCode"] == "75:0"
        assert "another job can continue the run" in (run / f"logs/job-{job}.log").read_text()
    out, err = program.communicate(timeout=400)
    assert program.returncode == 0, out + err
    assert "The run is not complete and no job is left: submitted job " in out
    assert (len(resumed_at(run)), last_step(run)) == (2, 14)


def test_job_trains_the_submitted_config(launch, slurm, real_corpus, tmp_path, monkeypatch):
    """Changes of a waiting run are rejected, and the job ignores a modified config file."""
    run = tmp_path / "lr=1e-3, it's #1; $(touch pwned) é😀"
    words = small("gpt2", run, real_corpus("byte-bpe"), f'run="{run}"', "train.steps=2")
    launched = launch(*words, *RESOURCES, "--no-follow", "--sbatch=--hold --comment='two words'")
    assert launched.returncode == 0, launched.stderr
    [job] = submitted_jobs(launched.stdout.splitlines()[0])
    config = (run / "config.yaml").read_text()
    for command in (["launch", "slurm", *words, *RESOURCES], ["train", *words], ["train", str(run)]):
        again = [sys.executable, "-m", "megaptm", *command, "optimizer.lr=5e-4"]
        refused = subprocess.run(
            again, env=slurm.environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2
        assert refused.stderr.startswith(
            f"error: run {run} is already in Slurm's queue as job {job} (PENDING), with the config"
        )
        assert f"cancel it first (scancel {job})" in refused.stderr
        assert (run / "config.yaml").read_text() == config
    (run / "config.yaml").write_text(config.replace("lr: 0.001", "lr: 0.0005"))
    slurm.run_command("scontrol", "release", job)
    assert slurm.wait_for_state(job, *ENDS) == "COMPLETED", (run / f"logs/job-{job}.log").read_text()
    assert "step 2/2  loss" in (run / f"logs/job-{job}.log").read_text()
    assert (run / "config.yaml").read_text() == config
    assert last_step(run) == 2
    assert not (tmp_path / "pwned").exists()
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    slurm.wait_for(lambda: queued_jobs(run) == {})


def test_rejected_chain_leaves_no_job(start_launch, slurm, real_corpus, tmp_path):
    slurm.run_command("scontrol", "create", "PartitionName=closing", "Nodes=node1")
    try:
        words = small("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
        program = start_launch(*words, *RESOURCES, "--jobs=400", "--sbatch=--hold -pclosing")
        there = ["squeue", "--noheader", "--partition=closing", "--format=%A"]
        slurm.wait_for(lambda: len(slurm.run_command(*there).split()) > 2 or program.poll() is not None)
        slurm.run_command("scontrol", "update", "PartitionName=closing", "State=INACTIVE")
        out, err = program.communicate(timeout=400)
        assert (program.returncode, out) == (2, "")
        assert re.match(
            r"error: Slurm rejects the job \(.*\): .*; this was job \d+ of the chain; the earlier jobs", err
        ), err
        assert err.rstrip().endswith(" are canceled.")
        slurm.wait_for(lambda: not slurm.run_command(*there))
    finally:
        slurm.cancel_all()
        slurm.wait_for(lambda: not slurm.run_command("squeue", "--noheader", "--partition=closing"))
        slurm.run_command("scontrol", "delete", "PartitionName=closing")


SLOW_SBATCH = """#!/bin/sh
said=$({sbatch} "$@") || exit
case "$*" in
*--parsable*)
    touch {folder}/is-submitted
    while [ ! -e {folder}/may-answer ]; do sleep 0.1; done
esac
echo "$said"
"""


@pytest.mark.parametrize("num_signals", [1, 2])
def test_ctrl_c_during_sbatch(slurm, real_corpus, tmp_path, num_signals):
    programs, run = tmp_path / "bin", tmp_path / "run"
    programs.mkdir()
    (programs / "sbatch").write_text(SLOW_SBATCH.format(sbatch=shutil.which("sbatch"), folder=tmp_path))
    (programs / "sbatch").chmod(0o755)
    words = [*small("gpt2", run, real_corpus("byte-bpe")), *RESOURCES, "--sbatch=--hold"]
    program = subprocess.Popen(
        [sys.executable, "-m", "megaptm", "launch", "slurm", *words],
        env={**slurm.environment, "PATH": f"{programs}:{slurm.environment['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    slurm.wait_for(lambda: (tmp_path / "is-submitted").exists() or program.poll() is not None)
    [job] = slurm.run_command("squeue", "--noheader", "--format=%A").split()
    output = ""
    for _ in range(num_signals):
        os.killpg(program.pid, signal.SIGINT)
        while "exit at once" not in output:
            line = program.stderr.readline()
            assert line, output
            output += line
    if num_signals == 1:
        (tmp_path / "may-answer").touch()
    _, errors = program.communicate(timeout=120)
    assert program.returncode == 2, errors
    if num_signals == 1:
        assert errors == f"error: interrupted; job {job} is canceled.\n"
        slurm.wait_for(lambda: slurm.job(job)["JobState"] == "CANCELLED")
    else:
        assert errors.startswith(
            f"error: interrupted before sbatch answered: the job of {run}/job.sh may be in the queue"
        )
        assert job in slurm.run_command("squeue", "--me", "--format=%A %T %o").split()


def test_held_job_is_released(start_launch, slurm, real_corpus, tmp_path):
    """Slurm would hold the job forever."""
    next_job = int(max(all_jobs(slurm), key=int, default="0")) + 1
    blocking_files = [
        slurm.folder / f"spool/node{node}/job{next_job + n:05d}" for node in (1, 2, 3, 4) for n in range(6)
    ]
    for script in blocking_files:
        script.touch()
    program = start_launch(*small("gpt2", tmp_path / "run", real_corpus("byte-bpe"), "train.steps=3"), *RESOURCES)
    [job] = submitted_jobs(program.stdout.readline())
    assert program.stdout.readline() == f"Slurm could not start job {job} and held it; released it.\n"
    for script in blocking_files:
        script.unlink(missing_ok=True)
    slurm.start_now(job)
    out, err = program.communicate(timeout=400)
    assert program.returncode == 0, out + err
    assert "step 3/3  loss" in out


def test_job_state_of_ended_job_and_unreachable_slurm(slurm, monkeypatch, tmp_path):
    configured = Path(slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("SLURM_CONF", str(configured))
    assert job_state("999999") == ("", "")
    unreachable = re.sub(r"SlurmctldPort=\d+", f"SlurmctldPort={free_port()}", configured.read_text())
    (tmp_path / "slurm.conf").write_text(unreachable)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert job_state("999999") == ("UNKNOWN", "")


def test_failed_job_is_not_repeated(start_launch, slurm, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=100000", "checkpoint.every=2", "layout.data=2")
    program = start_launch(*words, *RESOURCES, "--per-node=1")
    [job] = submitted_jobs(program.stdout.readline())
    slurm.wait_for(lambda: checkpoints(run))
    *_, last = slurm.run_command("scontrol", "show", "hostnames", slurm.job(job)["NodeList"]).split()
    next(task for task in slurm.tasks_of(last) if "train" in command_of(task)).kill()
    out, err = program.communicate(timeout=400)
    assert program.returncode == 1
    assert f"On {last}, rank 1 was killed by signal 9" in out
    assert "the run is not complete" in err
    assert slurm.run_command("squeue", "--noheader") == ""


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_invalid_request_is_not_submitted(launch, slurm, real_corpus, tmp_path, words, message):
    jobs_before = all_jobs(slurm)
    refused = launch(*small("gpt2", tmp_path / "run", real_corpus("byte-bpe")), *RESOURCES, *words)
    assert refused.returncode == 2
    [sentence] = refused.stderr.splitlines()
    assert sentence.startswith(f"error: {message}")
    assert all_jobs(slurm) == jobs_before
    assert not (tmp_path / "run").exists()


def test_slurm_without_gpus(launch, real_corpus, tmp_path):
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


def test_array_trains_one_run_per_learning_rate(slurm, real_corpus, tmp_path):
    for name in ("slurm", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)  # runs of the array are in the folder from which it is submitted
    config, *values = small("gpt2", tmp_path / "none", real_corpus("byte-bpe"), "train.steps=2")
    job = slurm.submit(
        *("--array=0-1", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/%a.log"),
        *("slurm/array_sweep.sh", config, *values),
        folder=tmp_path,
    )
    for element in (f"{job}_0", f"{job}_1"):
        assert slurm.wait_for_state(element, *ENDS) == "COMPLETED", [log.read_text() for log in tmp_path.glob("*.log")]
    assert {path.name: last_step(path) for path in (tmp_path / "runs/sweep").iterdir()} == {"lr-3e-4": 2, "lr-6e-4": 2}
