"""Short form of `make faults`: a few kinds of faults without servers, on two processes."""

import subprocess
import sys

import pytest

from tests import ROOT

KINDS = ("kill while the checkpoint is renamed", "kill the launcher", "EIO while the manifest is renamed")


@pytest.mark.timeout(1800)
def test_run_under_faults_equals_an_undisturbed_one(tmp_path):
    command = ["--processes", "2", "--count", str(len(KINDS)), "--max-seconds", "900"]
    command += ["--journal", str(tmp_path / "faults.jsonl"), "--kinds", *KINDS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"faults: {len(KINDS)}, failed or not compared: 0" in done.stdout
    assert "; nothing differs from the undisturbed run" in done.stdout
