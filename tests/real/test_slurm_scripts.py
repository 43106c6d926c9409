"""What the shipped scripts ask of Slurm is what their configs need."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from megaptm.config import load
from megaptm.launch.slurm.script import JobScript, render
from tests import ROOT
from tests.docs.commands import all_commands

SCRIPTS = sorted(path for path in (ROOT / "slurm").glob("*.sh") if path.name != "common.sh")
TRAINING = [path for path in SCRIPTS if path.name != "corpus.sh"]


def asked(path):
    """`--nodes=128` -> {"nodes": "128"}, of the file's #SBATCH lines."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_a_script_asks_for_the_processes_of_its_layout(path):
    options = asked(path)
    [words] = re.findall(r'^train (.*?) "\$@"', path.read_text(), re.MULTILINE)
    config, *overrides = words.split()
    layout = load(ROOT / config, overrides).layout
    assert layout.processes == int(options["nodes"]) * int(options["ntasks-per-node"])
    assert options["ntasks-per-node"] == options["gpus-per-node"]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_a_script_is_what_launch_would_write(path):
    """The array says of each of its jobs where its run is; it differs in that."""
    options, text = asked(path), path.read_text()
    [words] = re.findall(r'^train (.*?) "\$@"', text, re.MULTILINE)
    job = JobScript(name=options["job-name"], nodes=int(options["nodes"]), output=options["output"])
    if "array" in options:
        assert set(job.lines()) < set(text.splitlines())
    else:
        title = text.splitlines()[1].removeprefix("# ")
        assert text == render(job, words.split(), title=title)


@pytest.mark.parametrize(("image", "seconds"), [("", "120"), ("site/megaptm:1", "1800")])
def test_nodes_have_time_to_pull_an_image(tmp_path: Path, image: str, seconds: str) -> None:
    stubs = "scontrol() { :; }; once() { :; }; timeout() { echo $1 >&3; }"
    commands = f"{stubs}; source {ROOT}/slurm/common.sh; {stubs}; logs={tmp_path}; compare_nodes"
    given = {"MEGAPTM_HOME": str(tmp_path), "MEGAPTM_IMAGE": image, "SLURM_JOB_NUM_NODES": "128"}
    given |= {"SLURM_JOB_NODELIST": "node[001-128]", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", f"{{ {commands}; }} 3>&1"], env=given, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{seconds}\n", "")


@pytest.mark.real
def test_slurm_takes_the_shipped_175b(slurm):
    script = str(ROOT / "slurm/gpt_175b.sh")
    assert "on nodes large[001-128]" in slurm.say("sbatch", "--test-only", "--partition=large", script)
    job = slurm.submit("--hold", "--partition=large", script)
    taken = slurm.job(job)
    slurm.say("scancel", job)
    wanted = {"NumTasks": "1024", "TresPerNode": "gres:gpu:8", "NtasksPerN:B:S:C": "8:0:*:*", "Requeue": "1"}
    assert taken["NumNodes"].partition("-")[0] == "128"
    assert taken | wanted == taken


@pytest.mark.real
@pytest.mark.parametrize("command", [c for c in all_commands() if c.words[0] == "sbatch"], ids=str)
def test_slurm_takes_what_the_pages_show(slurm, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "to start at" in slurm.say("sbatch", "--test-only", "--partition=large", *command.words[1:])
