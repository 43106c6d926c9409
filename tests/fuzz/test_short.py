"""The short form of `make fuzz`: some cases of every kind of file, the same each time."""

import subprocess
import sys

from tests import ROOT


def test_spoiled_files_end_with_a_sentence_or_do_no_harm():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--short", "--reads", "6", "--commands", "1", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert " 0 failed" in done.stdout
