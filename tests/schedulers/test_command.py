"""Slurm's commands that do not answer or are not installed; real answers are tested with a cluster."""

import os
import subprocess

import pytest

from megaptm.errors import UserError
from megaptm.schedulers.slurm import command
from megaptm.schedulers.slurm.command import run_slurm
from megaptm.schedulers.slurm.environment import torch_variables
from megaptm.schedulers.slurm.jobs import check_submission, job_state, slurm_job_fields
from megaptm.schedulers.slurm.nodes import run_on_slurm_nodes
from tests import ROOT

STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
STEP |= {"SLURM_JOB_NODELIST": "node1"}


@pytest.fixture(params=["no answer in 0 s", "No such file or directory"])
def reason(request, tmp_path, monkeypatch):
    """Reason why no Slurm command answers: each hangs, or none is installed."""
    if request.param.startswith("no answer"):
        for name in ("sbatch", "squeue", "scontrol"):
            (tmp_path / name).write_text("#!/bin/sh\nexec /bin/sleep 60\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.3)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.mark.timeout(30)
def test_hanging_command_is_not_awaited(reason):
    assert job_state("7") == ("UNKNOWN", "")
    assert slurm_job_fields("7") == {}
    with pytest.raises(UserError, match=reason):
        run_on_slurm_nodes("module", [], 1.0)
    with pytest.raises(UserError, match=reason):
        torch_variables(os.environ)


def write_command(folder, name, *lines):
    (folder / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("node", "node_address", "address"),
    [("127.0.0.1", "", "127.0.0.1"), ("::1", "", "::1"), ("no-host.invalid", "::1", "::1")],
)
def test_address_of_the_first_node(node, node_address, address, tmp_path, monkeypatch):
    """pytorch's issue 150533: `gethostbyname` finds no node that has only IPv6."""
    write_command(tmp_path, "scontrol", f'[ "$2" = hostnames ] && echo {node} || echo NodeAddr={node_address}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert torch_variables(STEP)["MASTER_ADDR"] == address


def test_node_without_address_is_an_error(tmp_path, monkeypatch):
    write_command(tmp_path, "scontrol", '[ "$2" = hostnames ] && echo no.invalid || echo NodeAddr=no-host.invalid')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"first node of this job, no\.invalid, has no address: set MASTER_ADDR"):
        torch_variables(STEP)


def test_script_prefers_ipv4_addresses(tmp_path):
    """Ray's address is HOST:PORT, and `getent hosts` returns the IPv6 address of a node that has both."""
    write_command(tmp_path, "getent", '[ "$1" = ahostsv4 ] && echo "10.0.0.1 STREAM $2" || echo "fd00::1 $2"')
    script = (ROOT / "slurm/common.sh").read_text()
    function = script[script.index("address_of() {") :].partition("\n}")[0] + "\n}"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{function}\naddress_of node1"], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "10.0.0.1\n"


@pytest.mark.parametrize("name", ["sbatch", "squeue"])
def test_missing_answer_is_not_a_rejection(reason, name):
    with pytest.raises(UserError, match=rf"Slurm does not answer \({name}: {reason}\)"):
        run_slurm(name)


def test_machine_without_sbatch_cannot_submit(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="sbatch is not installed on this machine"):
        check_submission("")
