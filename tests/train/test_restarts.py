"""A run on one machine continues by itself when a rank is killed."""

import os
import signal

import pytest

from megaptm.report.history import History
from megaptm.track import read_metrics
from tests.drills.program import arguments, checkpoints, losses, resumed_at, start, wait_for
from tests.forked import megaptm


def rank_process(run, rank):
    """Return the process id of a rank of a run, once it runs."""
    command = f"--run\0{run}\0".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file, open(f"/proc/{name}/environ", "rb") as environ:
                if command in file.read() and f"RANK={rank}".encode() in environ.read().split(b"\0"):
                    return int(name)
        except OSError:
            continue
    return None


def test_run_continues_after_a_rank_was_killed(real_corpus, tmp_path):
    run = tmp_path / "run"
    shared = ("layout.data=2", "train.steps=40", "checkpoint.every=4", "train.restarts=1")
    program = start("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *shared))
    wait_for(lambda: max(checkpoints(run), default=0) >= 8 if run.exists() else False, program)
    os.kill(wait_for(lambda: rank_process(run, 1), program), signal.SIGKILL)
    _, errors = program.communicate(timeout=200)
    assert program.returncode == 0, errors
    assert "Starting all ranks again from the checkpoint of step " in errors
    [step] = resumed_at(run)
    assert step >= 8
    megaptm("train", *arguments("gpt2", tmp_path / "whole", real_corpus("byte-bpe"), *shared))
    last = {number: values[-1:] for number, values in losses(run).items()}
    assert last == losses(tmp_path / "whole")
    check_effective_time(run)


def check_effective_time(run):
    """Check that the separately measured parts of a run's time add up to its wall time."""
    total = History.read(run).time
    assert total.lost > 0
    assert total.between_jobs > 0
    assert total.unmeasured == pytest.approx(0, abs=0.03 * total.wall), total
    metrics = [record["effective_time"] for record in read_metrics(run) if "effective_time" in record]
    # After the last record of a step, the run validates, saves and ends.
    assert metrics[-1] == pytest.approx(total.effective, rel=0.1)
