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
    NodeExcludedEvent,
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


def write_logs(run, start, events, *, srun, rank=""):
    """Write what a start of a job leaves: events, srun's log and that of rank 1. Return its log folder."""
    logs = run / "logs" / start
    logs.mkdir(parents=True)
    (logs / "srun.log").write_text(srun)
    (logs / "rank-1.log").write_text(rank)
    with Events(run) as journal:
        for event in events:
            journal.write(event)
    return logs


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
    logs = write_logs(tmp_path, "7.0", events, srun="")
    done = CliRunner().invoke(main, [str(logs)])
    assert done.exit_code == code
    assert ("hung twice" in done.output) == (code == EXIT_HUNG_AGAIN)


def test_failed_rank_is_reported_without_checkpoint(tmp_path):
    srun = "srun: error: node2: task 1: Exited with exit code 2\n"
    logs = write_logs(tmp_path, "7.0", [LAUNCH], srun=srun, rank="error: no\n")
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
        (["--restarts=2"], [LAUNCH, LOST, RESTART, LOST, RESTART], 1),
        (["--restarts=2", "--stopping"], [LAUNCH], 1),
        (["--restarts=2"], [LAUNCH, LOST, RESTART, LOST, RESTART, SAVED], EXIT_RESTART),
        (["--restarts=2"], [LAUNCH, HANG], EXIT_RESTART),
        (["--restarts=2"], [LAUNCH, LOST, RESTART, LOST, RESTART, HANG], 75),
    ],
)
def test_killed_or_hung_rank_starts_again_within_the_job(tmp_path, words, events, code):
    logs = write_logs(tmp_path, "7.0/start-3", events, srun=KILLED)
    done = CliRunner().invoke(main, [*words, str(logs)])
    assert done.exit_code == code, done.output
    assert (read_events(tmp_path)[-1]["kind"] == "restart") == (code == EXIT_RESTART)


LOST_ON_NODE = WorkerLostEvent(rank=1, code=-9, problem="", node="node2")
EXCLUDED_BEFORE = NodeExcludedEvent(node="node3")


@pytest.mark.parametrize(
    ("words", "events", "code", "excluded"),
    [
        (["--removable=2", "--idle=1"], [LAUNCH], EXIT_RESTART, None),
        (["--removable=2", "--idle=1"], [LAUNCH, LOST_ON_NODE, RESTART], 75, "node2\n"),
        (["--removable=2", "--idle=1"], [LAUNCH, LOST_ON_NODE, LAUNCH], 75, "node2\n"),
        (["--removable=2"], [LAUNCH, LOST_ON_NODE, SAVED, RESTART], EXIT_RESTART, None),
        (["--removable=2", "--idle=1"], [LAUNCH, LOST_ON_NODE, SAVED, EXCLUDED_BEFORE, RESTART], EXIT_RESTART, None),
        (["--removable=2", "--restarts=0"], [LAUNCH, LOST_ON_NODE, RESTART], 1, "node2\n"),
        (["--removable=-1", "--restarts=0"], [LAUNCH, LOST_ON_NODE, RESTART], 1, ""),
        (["--removable=2", "--restarts=0", "--excluded=node1,node2"], [LAUNCH, LOST_ON_NODE, RESTART], 1, ""),
        (["--removable=2", "--restarts=0", "--node-fault-hours=0"], [LAUNCH, LOST_ON_NODE, RESTART], 1, ""),
    ],
)
def test_node_with_two_faults_is_excluded_by_the_next_job(tmp_path, words, events, code, excluded):
    """If an idle node can replace it, the job is requeued, once without a new checkpoint; else it starts again in its
    allocation."""
    logs = write_logs(tmp_path, "7.0/start-2", events, srun=KILLED)
    done = CliRunner().invoke(main, ["--restarts=9", "--node-fault-hours=24", *words, str(logs)])
    assert done.exit_code == code, done.output
    file = logs / "sick-nodes"
    assert (file.read_text() if file.exists() else None) == excluded
    assert (read_events(tmp_path)[-1]["kind"] == "node-excluded") == (excluded == "node2\n")
    assert ("the next start of the job excludes it" in done.output) == (excluded == "node2\n")
    assert ("the job cannot start without it" in done.output) == ("--removable=-1" in words)


def test_error_of_the_program_is_no_fault_of_its_node(tmp_path):
    srun = "srun: error: node2: task 1: Exited with exit code 1\n"
    error = "Traceback (most recent call last):\n  File x\nValueError: no\n"
    logs = write_logs(tmp_path, "7.0", [], srun=srun, rank=error)
    assert CliRunner().invoke(main, [str(logs)]).exit_code == 1
    [event] = read_events(tmp_path)
    assert (event["kind"], event["node"]) == ("worker-lost", None)


def run_job(folder, programs):
    """Run a job of two nodes with these programs instead of Python and Slurm's; their bodies are in bash."""
    (folder / "bin").mkdir()
    for name, body in programs.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "MEGAPTM_HOME": str(folder),
        "MEGAPTM_VENV": str(folder),
        "MEGAPTM_CHECK": "no",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "node1,node2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_PARTITION": "main",
    }
    environment.pop("SLURM_RESTART_COUNT", None)
    command = ["bash", "-c", f"source '{COMMON}'; train config.yaml"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


NODES = """case "$*" in
    *--states=down*) ;;
    *--nodes=*) echo "(null) gpu:8 " ;;
    *--states=idle*) printf "%s\n" "(null) gpu:8 node3" "(null) gpu:8 node4" "(null) gpu:4 node5" ;;
    *) printf "%s\n" "(null) gpu:8 node"{1..4} "(null) gpu:4 node5" ;;
esac"""
"""sinfo of a partition in which nodes 1 and 2 run the job, and node 5 has other GPUs."""


@pytest.mark.parametrize(
    ("required", "requeue", "counts"),
    [
        ("(null)", 1, ["--removable=1", "--idle=1"]),
        ("(null)", 0, ["--removable=1"]),
        ("node[1-2]", 1, []),
    ],
)
def test_report_gets_the_nodes_and_following_jobs_exclude_what_it_chose(tmp_path, required, requeue, counts):
    logs, arguments, updates = tmp_path / "logs", tmp_path / "arguments", tmp_path / "updates"
    logs.mkdir()
    job = f" JobState=RUNNING Reason=None Restarts=0 Requeue={requeue} ReqNodeList={required} ExcNodeList=node4 "
    report = f'printf "%s\n" "$@" >{arguments}; echo node2 >{logs}/sick-nodes; exit 1'
    programs = {
        "python": f'case $2 in *.preflight) echo "0 24.0 {logs}" ;; *.failure_report) {report} ;; esac',
        "srun": "exit 137",
        "sinfo": NODES,
        "squeue": "echo 9 afterany:7",
        "scontrol": f'case $1$2 in showjob) echo "{job}" ;; showhostnames) echo $3 ;; *) echo "$@" >>{updates} ;; esac',
    }
    assert run_job(tmp_path, programs).returncode == 137
    words = arguments.read_text().splitlines()
    assert words[2:-1] == ["--restarts=0", "--start=0", "--node-fault-hours=24.0", "--excluded=node4", *counts]
    assert updates.read_text() == "update JobId=9 ExcNodeList=node4,node2\n"


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
        "python": f'case $2 in *.preflight) echo "1 24.0 {logs}" ;; *.failure_report) exit {report_code} ;; esac',
        "srun": f"{WARN if warned else ''}exit {srun_code}",
        "scontrol": f'[[ $1 == show ]] && echo " JobState=RUNNING Reason=None Restarts=0 " || ! touch "{requeued}"',
    }
    done = run_job(tmp_path, programs)
    assert done.returncode == code, done.stderr
    assert requeued.exists() == is_requeued
    assert ("came before the first step" in done.stdout) == (warned and code == 1)
