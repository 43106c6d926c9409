"""Rank of a process from the variables of torchrun and srun."""

import os

import pytest

from megaptm.config import Layout
from megaptm.errors import UserError
from megaptm.run.rank import RankEnvironment, check_world_size, worker_environment

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "node[1-4]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
}


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Put a fake `scontrol` on PATH. As on many clusters, node1 is not a host name, and Slurm knows its address."""
    path = tmp_path / "scontrol"
    path.write_text(
        '#!/bin/sh\nif [ "$2" = hostnames ]; then printf "no-such-host.invalid\\nnode2\\n"; '
        'else echo "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.1 State=IDLE"; fi\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_single_process_by_default():
    assert worker_environment({}) is None


def test_rank_from_torchrun_variables():
    assert worker_environment(dict(TORCHRUN)) == RankEnvironment(rank=3, world=8, local_rank=1)


def test_rank_from_srun_variables(scontrol):
    environ = dict(SRUN)
    assert worker_environment(environ) == RankEnvironment(rank=5, world=8, local_rank=1)
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert 12000 <= int(environ["MASTER_PORT"]) < 32000
    assert worker_environment(environ) == RankEnvironment(rank=5, world=8, local_rank=1)


def test_port_differs_between_job_steps(scontrol):
    first, second = dict(SRUN), {**SRUN, "SLURM_STEP_ID": "3"}
    worker_environment(first), worker_environment(second)
    assert first["MASTER_PORT"] != second["MASTER_PORT"]


def test_master_address_in_the_environment_wins(scontrol):
    environ = {**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"}
    worker_environment(environ)
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.0.0.1", "4242")


def test_batch_script_is_not_a_rank():
    batch = {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")}
    assert worker_environment({**batch, "SLURM_PROCID": "0"}) is None


def test_incomplete_environment_is_refused():
    with pytest.raises(UserError, match="WORLD_SIZE is not set"):
        worker_environment({"RANK": "0"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RANK", "a", "an integer, 0 to 1"),
        ("RANK", "2", "an integer, 0 to 1"),
        ("RANK", "-1", "an integer, 0 to 1"),
        ("WORLD_SIZE", "2.0", "an integer, 0 or more"),
        ("LOCAL_RANK", "gpu0", "an integer, 0 or more"),
        ("MASTER_PORT", "99999", "an integer, 0 to 65,535"),
        ("MASTER_PORT", "http", "an integer, 0 to 65,535"),
    ],
)
def test_invalid_variable_is_refused(name, value, expected):
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1", name: value}
    with pytest.raises(
        UserError, match=rf"^{name} \('{value}'\) must be {expected}: correct or unset this variable\.$"
    ):
        worker_environment(environ)


def test_missing_scontrol_is_refused(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="set MASTER_ADDR and MASTER_PORT"):
        worker_environment(dict(SRUN))


def test_num_processes_must_match_the_layout():
    layout = Layout(data=2, tensor=2)
    check_world_size(RankEnvironment(rank=0, world=4, local_rank=0), layout)
    with pytest.raises(UserError, match="8 processes are more than the 4 the layout needs"):
        check_world_size(RankEnvironment(rank=0, world=8, local_rank=0), layout)
    with pytest.raises(UserError, match="2 processes are fewer than the 4"):
        check_world_size(RankEnvironment(rank=0, world=2, local_rank=0), layout)
