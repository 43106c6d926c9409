"""Started by torchrun, each process finds its place in the run by itself."""

import os
import subprocess
import sys

from megaptm.resilience.events import read_events
from megaptm.track import read_metrics


def test_torchrun_starts_the_processes_of_one_run(tmp_path, real_corpus):
    run = tmp_path / "run"
    overrides = [
        f"run={run}",
        f"data.mix={{{real_corpus('byte-bpe')}: 1}}",
        "train.steps=3",
        "train.log_every=1",
        "train.batch=4",
        "layout.tensor=2",
        "layout.microbatch=4",
        "model.layers=2",
        "model.width=32",
        "model.ffn=64",
        "track.enabled=false",
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617"]
    done = subprocess.run(
        [*torchrun, "-m", "megaptm", "train", "configs/tiny/gpt2.yaml", *overrides],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [record["step"] for record in read_metrics(run) if "loss" in record] == [1, 2, 3]
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["launch", "start", "first-step", "checkpoint", "exit"]


def test_a_wrong_number_of_processes_is_told_once(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", "29618"]
    done = subprocess.run(
        [*torchrun, "-m", "megaptm", "train", "configs/tiny/gpt2.yaml", f"run={tmp_path / 'run'}", "layout.data=2"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        "error: 3 processes are more than the 2 the layout needs (data 2 x tensor 1 x pipeline 1): start 2, or change "
        "layout.data."
    ]
    # torchrun itself says which rank ended first, by a traceback of its own.
    assert done.stderr.count("Traceback") == 1
    assert not (tmp_path / "run").exists()
