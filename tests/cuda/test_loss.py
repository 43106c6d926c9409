"""Kernels of the cross-entropy: numbers in triton's interpreter, and code for GPUs, on a machine without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.drill
KERNELS = ("cross_entropy_kernel", "statistics_kernel", "gradient_kernel")


def run_kernels(triton_path, cache, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(cache), **environment}
    environment["PYTHONPATH"] = os.pathsep.join([*triton_path, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.cuda.loss"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_equal_float64(triton_path, tmp_path):
    """In units of the last digit: of float32 for losses, of the logits' format for gradients."""
    errors = run_kernels(triton_path, tmp_path, TRITON_INTERPRET="1")
    assert len(errors) == 24
    assert max(errors.values()) < 4


def test_kernels_compile_for_a100_and_h100(triton_path, tmp_path):
    counts = run_kernels(triton_path, tmp_path)
    assert {*counts} == {f"{kernel} on {gpu}" for kernel in KERNELS for gpu in ("A100", "H100")}
    assert min(count["bytes"] for count in counts.values()) > 10_000
    for gpu in ("A100", "H100"):
        # The loads are those of the logits that the same thread replaces; a further store is that of the loss.
        count = counts[f"cross_entropy_kernel on {gpu}"]
        assert 0 < count["loads"] < count["stores"]
