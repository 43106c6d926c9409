"""Short form of `make fuzz`: some cases of each kind of file, with a fixed seed."""

import subprocess
import sys

from tests import ROOT


def test_mutated_files_are_rejected_or_harmless():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--short", "--reads", "6", "--commands", "1", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert " 0 failed" in done.stdout
