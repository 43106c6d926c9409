"""FlexAttention kernels of attention patterns are compiled for GPUs on a machine without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.drill
PATTERNS = (
    "window of documents",
    "dilated window, causal",
    "chunks",
    "custom, documents",
    "soft cap, causal window of documents",
)


def test_pattern_kernels_compile_for_a100_and_h100(guard, triton_path, tmp_path):
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([*triton_path, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.cuda.flex", *PATTERNS]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sizes_by_pattern = json.loads(done.stdout.splitlines()[-1])
    assert {*sizes_by_pattern} == {*PATTERNS}
    for kernels in sizes_by_pattern.values():
        assert {*kernels} == {f"{way} on {gpu}" for way in ("forward", "backward") for gpu in ("A100", "H100")}
        assert all(len(sizes) == 1 and sizes[0] > 10_000 for sizes in kernels.values())
