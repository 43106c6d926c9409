"""Slurm's commands where they are silent or absent; what the real ones say is tested with a cluster."""

import os

import pytest

from megaptm.errors import UserError
from megaptm.schedulers.slurm import command
from megaptm.schedulers.slurm.command import ask
from megaptm.schedulers.slurm.environment import variables_of_ranks
from megaptm.schedulers.slurm.jobs import check_slurm, describe, state
from megaptm.schedulers.slurm.nodes import run_on_slurm

STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
STEP |= {"SLURM_JOB_NODELIST": "node1"}


@pytest.fixture(params=["nothing in 0 s", "No such file or directory"])
def reason(request, tmp_path, monkeypatch):
    """Why a command of Slurm has no answer."""
    if request.param.startswith("nothing"):
        for name in ("sbatch", "squeue", "scontrol"):
            (tmp_path / name).write_text("#!/bin/sh\nexec /bin/sleep 60\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.3)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.mark.timeout(30)
def test_nobody_waits_for_a_command_that_says_nothing(reason):
    assert state("7") == ("UNKNOWN", "")
    assert describe("7") == {}
    for asking in (lambda: run_on_slurm("module", [], 1.0), lambda: variables_of_ranks(os.environ)):
        with pytest.raises(UserError, match=reason):
            asking()


def test_what_slurm_did_not_say_is_not_laid_to_it(reason):
    for name in ("sbatch", "squeue"):
        with pytest.raises(UserError, match=rf"Slurm does not answer \({name}: {reason}\)"):
            ask(name)


def test_a_machine_without_sbatch_submits_nothing(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="sbatch is not on this machine"):
        check_slurm("")
