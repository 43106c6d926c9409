"""What a job says of its end, and whether it goes back to the queue; small programs take the place of Slurm's."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.launch.slurm.failure_report import EXIT_IN_VAIN, main
from megaptm.resilience.events import CheckpointEvent, Events, HangEvent, LaunchEvent

COMMON = Path(__file__).parents[2] / "slurm/common.sh"
LAUNCH = LaunchEvent(command=[], version="1", host="node1", pid=1)
HANG = HangEvent(rank=1, phase="data", step=3, seconds=300.0, problem="rank 1 hangs", stack="")
SAVED = CheckpointEvent(step=4, bytes=1, seconds=0.1)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([LAUNCH], 0),
        ([LAUNCH, HANG], 75),
        ([LAUNCH, HANG, LAUNCH, HANG], EXIT_IN_VAIN),
        ([LAUNCH, HANG, LAUNCH, SAVED, HANG], 75),
        ([LAUNCH, HANG, LAUNCH, HANG, LAUNCH], 0),
    ],
)
def test_a_job_that_hangs_twice_at_one_place_does_not_go_on(tmp_path, events, code):
    logs = tmp_path / "logs/7.0"
    logs.mkdir(parents=True)
    (logs / "srun.log").write_text("")
    with Events(tmp_path) as journal:
        for event in events:
            journal.write(event)
    done = CliRunner().invoke(main, [str(logs)])
    assert (done.exit_code, "hung twice" in done.output) == (code, code == EXIT_IN_VAIN)


@pytest.mark.parametrize(
    ("ended", "account", "code", "goes_on"),
    [(75, 0, 75, True), (75, 70, 1, False), (137, 75, 75, True), (137, 0, 137, False), (75, 1, 75, True)],
)
def test_what_is_made_of_the_end_of_its_processes(tmp_path, ended, account, code, goes_on):
    """All of them leave with 75 when one hangs that can still leave: the job must not go round for ever."""
    logs, requeued = tmp_path / "logs", tmp_path / "requeued"
    logs.mkdir()
    programs = {
        "python": f'case $2 in *.preflight) echo "{logs}" ;; *.failure_report) exit {account} ;; esac',
        "srun": f"exit {ended}",
        "scontrol": f'[[ $1 == show ]] && echo " JobState=RUNNING Reason=None Restarts=0 " || ! touch "{requeued}"',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "MEGAPTM_HOME": str(tmp_path),
        "MEGAPTM_VENV": str(tmp_path),
        "MEGAPTM_CHECK": "no",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
    }
    environment.pop("SLURM_RESTART_COUNT", None)
    command = ["bash", "-c", f"source '{COMMON}'; train config.yaml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, requeued.exists()) == (code, goes_on), done.stderr
