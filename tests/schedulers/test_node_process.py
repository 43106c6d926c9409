"""Bounded wait for a process on a node."""

import os
import sys
import time

import pytest

from megaptm.schedulers import node_process
from megaptm.schedulers.node_process import run_command

IGNORES_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('out', flush=True); time.sleep(60)"
LEAVES_A_CHILD = "import subprocess, time; subprocess.Popen(['sleep', '40']); print('out', flush=True); time.sleep(60)"
SECONDS = 4.0
"""Enough for a process to start and print on a busy machine."""


@pytest.mark.parametrize("program", [IGNORES_SIGTERM, LEAVES_A_CHILD])
def test_process_that_survives_sigterm_is_not_awaited(program, monkeypatch):
    monkeypatch.setattr(node_process, "END_SECONDS", 0.2)
    started = time.monotonic()
    output = run_command([sys.executable, "-c", program], os.environ, SECONDS)
    assert time.monotonic() - started < 30
    assert output.stdout == "out\n"
    assert output.stderr == f"\nno answer in {SECONDS:.0f} s"
