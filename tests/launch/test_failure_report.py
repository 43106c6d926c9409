"""Report of a job's end, and its requeue; small scripts replace Slurm's commands."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from megaptm.launch.slurm.failure_report import EXIT_HUNG_AGAIN, EXIT_RESTART, EXIT_UNSAVED, main
from megaptm.resilience.events import (
    CheckpointEvent,
    Events,
    HangEvent,
    LaunchEvent,
    RestartEvent,
    WorkerLostEvent,
    read_events,
)

COMMON = Path(__file__).parents[2] / "slurm/common.sh"
LAUNCH = LaunchEvent(command=[], version="1", host="node1", pid=1)
HANG = HangEvent(rank=1, phase="data", step=3, seconds=300.0, problem="rank 1 hangs", stack="")
SAVED = CheckpointEvent(step=4, bytes=1, seconds=0.1)
WARN = "trap 'signaled=yes' USR1; sleep 0.2; kill -USR1 $PPID; until [[ $signaled ]]; do sleep 0.05; done; "
"""srun that signals its parent, the job script, and waits until the signal is passed on."""


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([LAUNCH], EXIT_UNSAVED),
        ([LAUNCH, SAVED], 0),
        ([LAUNCH, SAVED, LAUNCH], EXIT_UNSAVED),
        ([LAUNCH, HANG], 75),
        ([LAUNCH, HANG, LAUNCH, HANG], EXIT_HUNG_AGAIN),
        ([LAUNCH, HANG, LAUNCH, SAVED, HANG], 75),
        ([LAUNCH, HANG, LAUNCH, HANG, LAUNCH, SAVED], 0),
    ],
)
def test_exit_code_after_hangs_and_checkpoints(tmp_path, events, code):
    logs = tmp_path / "logs/7.0"
    logs.mkdir(parents=True)
    (logs / "srun.log").write_text("")
    with Events(tmp_path) as journal:
        for event in events:
            journal.write(event)
    done = CliRunner().invoke(main, [str(logs)])
    assert done.exit_code == code
    assert ("hung twice" in done.output) == (code == EXIT_HUNG_AGAIN)


def test_failed_rank_is_reported_without_checkpoint(tmp_path):
    logs = tmp_path / "logs/7.0"
    logs.mkdir(parents=True)
    (logs / "srun.log").write_text("srun: error: node2: task 1: Exited with exit code 2\n")
    (logs / "rank-1.log").write_text("error: no\n")
    with Events(tmp_path) as journal:
        journal.write(LAUNCH)
    done = CliRunner().invoke(main, ["--restarts=1", str(logs)])
    assert done.exit_code == 1
    assert "On node2, rank 1" in done.output


KILLED = "srun: error: node2: task 1: Killed\n"
LOST = WorkerLostEvent(rank=1, code=-9, problem="")
RESTART = RestartEvent(start=2)


@pytest.mark.parametrize(
    ("words", "events", "code"),
    [
        (["--restarts=2"], [LAUNCH], EXIT_RESTART),
        (["--restarts=2", "--start=2"], [LAUNCH], 1),
        (["--restarts=2", "--stopping"], [LAUNCH], 1),
        (["--restarts=9"], [LAUNCH, LOST, RESTART, LOST, RESTART], 1),
        (["--restarts=9"], [LAUNCH, LOST, RESTART, LOST, SAVED, RESTART], EXIT_RESTART),
        (["--restarts=2"], [LAUNCH, HANG], EXIT_RESTART),
        (["--restarts=2", "--start=2"], [LAUNCH, HANG], 75),
    ],
)
def test_killed_or_hung_rank_starts_again_within_the_job(tmp_path, words, events, code):
    logs = tmp_path / "logs/7.0/start-3"
    logs.mkdir(parents=True)
    (logs / "srun.log").write_text(KILLED)
    (logs / "rank-1.log").write_text("")
    with Events(tmp_path) as journal:
        for event in events:
            journal.write(event)
    done = CliRunner().invoke(main, [*words, str(logs)])
    assert done.exit_code == code, done.output
    assert (read_events(tmp_path)[-1]["kind"] == "restart") == (code == EXIT_RESTART)


@pytest.mark.parametrize(
    ("warned", "srun_code", "report_code", "code", "is_requeued"),
    [
        (False, 75, 0, 75, True),
        (False, 75, 70, 1, False),
        (False, 137, 75, 75, True),
        (False, 137, 0, 137, False),
        (False, 75, 1, 75, True),
        (False, 75, EXIT_UNSAVED, 75, True),
        (True, 75, EXIT_UNSAVED, 1, False),
        (True, 75, 0, 75, True),
        (True, 138, 0, 1, False),
        (False, "$((MEGAPTM_START ? 0 : 137))", 72, 0, False),
        (False, "$((MEGAPTM_START ? 75 : 137))", "$((MEGAPTM_START ? 0 : 72))", 75, True),
    ],
)
def test_job_exit_code_and_requeue(tmp_path, warned, srun_code, report_code, code, is_requeued):
    """All processes exit with 75 after a hang, or after a warning before the first step: the job must not be requeued
    forever."""
    logs, requeued = tmp_path / "logs", tmp_path / "requeued"
    logs.mkdir()
    programs = {
        "python": f'case $2 in *.preflight) echo "1 {logs}" ;; *.failure_report) exit {report_code} ;; esac',
        "srun": f"{WARN if warned else ''}exit {srun_code}",
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
    assert done.returncode == code, done.stderr
    assert requeued.exists() == is_requeued
    assert ("came before the first step" in done.stdout) == (warned and code == 1)
