"""FlexAttention's kernels for what our masks say are compiled for GPUs, where there is none."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.drill
PATTERNS = ("window of documents", "dilated window, causal", "chunks", "one's own, of documents")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
def test_kernels_of_patterns_are_machine_code_of_both_gpus(guard, tmp_path):
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.cuda.flex", *PATTERNS]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {*found} == {*PATTERNS}
    for kernels in found.values():
        assert {*kernels} == {f"{way} on {gpu}" for way in ("forward", "backward") for gpu in ("A100", "H100")}
        assert all(len(sizes) == 1 and sizes[0] > 10_000 for sizes in kernels.values())
