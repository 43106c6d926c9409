"""`megaptm launch slurm`: a chain of jobs to the end of the run, followed; arrays of runs."""

import subprocess
import sys

import pytest

from tests.drills.program import ROOT, last_step
from tests.real.jobs import ENDS, small

pytestmark = pytest.mark.real

FEW = ("--gpus-per-node=0", "--cpus-per-task=1", "--time=1:00:00")


@pytest.fixture
def launch(slurm):
    def run(*words):
        command = [sys.executable, "-m", "megaptm", "launch", "slurm", *words]
        return subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=240, check=False)

    return run


def test_a_chain_of_jobs_is_followed_until_the_run_is_done(launch, slurm, real_corpus, tmp_path):
    run = tmp_path / "run"
    words = small("gpt2", run, real_corpus("byte-bpe"), "train.steps=3")
    done = launch(*words, *FEW, "--jobs=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 3/3  loss" in done.stdout
    assert last_step(run) == 3
    first, second = done.stdout.splitlines()[0].partition(";")[0].removeprefix("Submitted job ").split(", ")
    assert [slurm.wait_for_state(job, *ENDS) for job in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert "has all its 3 steps" in (run / f"logs/job-{second}.log").read_text()


def test_what_slurm_refuses_is_told(launch, real_corpus, tmp_path):
    words = small("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
    refused = launch(*words, *FEW, "--sbatch=--partition=nowhere")
    assert refused.returncode == 2
    [sentence] = refused.stderr.splitlines()
    assert sentence.startswith("error: Slurm refuses the job (")
    assert "partition" in sentence
    assert not (tmp_path / "run").exists()


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
