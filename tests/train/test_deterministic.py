"""`train.deterministic` is set in the worker processes, and changes no value on a CPU."""

import json
import os
import subprocess
import sys

import pytest

from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.parallel.deterministic import use_deterministic_kernels
from megaptm.run.folder import absolute_paths, prepare_run_folder
from tests.drills.program import arguments, losses

WORKER = """
import json, os, sys, torch
from megaptm.train.run import run_worker
assert run_worker(sys.argv[1]) == 0
print(json.dumps([
    torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
    os.environ.get("CUBLAS_WORKSPACE_CONFIG"), os.environ.get("NCCL_ALGO"),
]))
"""
RANK_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


SHORT = ("train.steps=3", "model.dropout=0.1")


def worker(folder, corpus, *more):
    """Run one process for three steps; return torch's settings at the end, and the losses."""
    path, *overrides = arguments("gpt2", folder, corpus, *SHORT, *more)
    prepare_run_folder(absolute_paths(load_config(path, overrides)))
    environment = {**os.environ, **RANK_VARIABLES, "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), losses(folder)


def test_worker_sets_deterministic_kernels(real_corpus, tmp_path):
    corpus = real_corpus("byte-bpe")
    default_kernels, default_losses = worker(tmp_path / "default", corpus)
    kernels, deterministic_losses = worker(tmp_path / "deterministic", corpus, "train.deterministic=true")
    assert default_kernels == [False, False, None, None]
    assert kernels == [True, False, ":4096:8", "^NVLS,NVLSTree"]
    assert deterministic_losses == default_losses


@pytest.mark.parametrize(("name", "value"), [("CUBLAS_WORKSPACE_CONFIG", ":0:0"), ("NCCL_ALGO", "NVLS,Ring")])
def test_contradicting_environment_is_refused(monkeypatch, name, value):
    for other in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"):
        monkeypatch.setenv(other, "")
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"^{name} is {value}, which train.deterministic does not allow"):
        use_deterministic_kernels()
