"""Slurm's commands that do not answer or are not installed; real answers are tested with a cluster."""

import os

import pytest

from megaptm.errors import UserError
from megaptm.schedulers.slurm import command
from megaptm.schedulers.slurm.command import run_slurm
from megaptm.schedulers.slurm.environment import torch_variables
from megaptm.schedulers.slurm.jobs import check_submission, job_state, slurm_job_fields
from megaptm.schedulers.slurm.nodes import run_on_slurm_nodes

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


@pytest.mark.parametrize("name", ["sbatch", "squeue"])
def test_missing_answer_is_not_a_rejection(reason, name):
    with pytest.raises(UserError, match=rf"Slurm does not answer \({name}: {reason}\)"):
        run_slurm(name)


def test_machine_without_sbatch_cannot_submit(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="sbatch is not installed on this machine"):
        check_submission("")
