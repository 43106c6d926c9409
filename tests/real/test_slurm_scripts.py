"""The scripts in slurm/ request what their configs need."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from megaptm.config import load_config
from megaptm.launch.slurm.script import JobScript, render_job_script
from tests import ROOT
from tests.docs.commands import all_commands

SCRIPTS = sorted(path for path in (ROOT / "slurm").glob("*.sh") if path.name != "common.sh")
TRAINING = [path for path in SCRIPTS if path.name != "corpus.sh"]


def sbatch_options(path):
    """Return the options of the #SBATCH lines: `--nodes=128` -> {"nodes": "128"}."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_script_requests_processes_of_layout(path):
    options = sbatch_options(path)
    [words] = re.findall(r'^train (.*?) "\$@"', path.read_text(), re.MULTILINE)
    config, *overrides = words.split()
    layout = load_config(ROOT / config, overrides).layout
    assert layout.processes == int(options["nodes"]) * int(options["ntasks-per-node"])
    assert options["ntasks-per-node"] == options["gpus-per-node"]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_script_equals_generated_one(path):
    """The array differs in the run folder of each job."""
    options, text = sbatch_options(path), path.read_text()
    [words] = re.findall(r'^train (.*?) "\$@"', text, re.MULTILINE)
    job = JobScript(name=options["job-name"], nodes=int(options["nodes"]), output=options["output"])
    if "array" in options:
        assert set(job.lines()) < set(text.splitlines())
    else:
        title = text.splitlines()[1].removeprefix("# ")
        assert text == render_job_script(job, words.split(), title=title)


@pytest.mark.parametrize(("image", "seconds"), [("", "120"), ("site/megaptm:1", "1800")])
def test_nodes_have_time_to_pull_an_image(tmp_path: Path, image: str, seconds: str) -> None:
    stubs = "scontrol() { :; }; once() { :; }; timeout() { echo $1 >&3; }"
    commands = f"{stubs}; source {ROOT}/slurm/common.sh; {stubs}; logs={tmp_path}; compare_nodes"
    environment = {"MEGAPTM_HOME": str(tmp_path), "MEGAPTM_IMAGE": image, "SLURM_JOB_NUM_NODES": "128"}
    environment |= {"SLURM_JOB_NODELIST": "node[001-128]", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", f"{{ {commands}; }} 3>&1"], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{seconds}\n", "")


@pytest.mark.real
def test_slurm_accepts_175b_script(slurm):
    script = str(ROOT / "slurm/gpt_175b.sh")
    assert "on nodes large[001-128]" in slurm.run_command("sbatch", "--test-only", "--partition=large", script)
    job = slurm.submit("--hold", "--partition=large", script)
    accepted = slurm.job(job)
    slurm.run_command("scancel", job)
    expected = {"NumTasks": "1024", "TresPerNode": "gres:gpu:8", "NtasksPerN:B:S:C": "8:0:*:*", "Requeue": "1"}
    assert accepted["NumNodes"].partition("-")[0] == "128"
    assert accepted | expected == accepted


@pytest.mark.real
@pytest.mark.parametrize("command", [c for c in all_commands() if c.words[0] == "sbatch"], ids=str)
def test_slurm_accepts_documented_commands(slurm, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "to start at" in slurm.run_command("sbatch", "--test-only", "--partition=large", *command.words[1:])
