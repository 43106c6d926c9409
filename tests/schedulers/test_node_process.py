"""A process is waited for in bounded time, whatever it does."""

import os
import sys
import time

import pytest

from megaptm.schedulers import node_process
from megaptm.schedulers.node_process import finish

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('said', flush=True); time.sleep(60)"
LEAVES_A_CHILD = "import subprocess, time; subprocess.Popen(['sleep', '40']); print('said', flush=True); time.sleep(60)"
SECONDS = 4.0
"""Enough to start and to speak, however much else the machine does."""


@pytest.mark.parametrize("program", [DEAF, LEAVES_A_CHILD])
def test_what_does_not_end_when_it_is_told_is_not_waited_for(program, monkeypatch):
    monkeypatch.setattr(node_process, "END_SECONDS", 0.2)
    begun = time.monotonic()
    output = finish([sys.executable, "-c", program], os.environ, SECONDS)
    assert time.monotonic() - begun < 30
    assert (output.stdout, output.stderr) == ("said\n", f"\nnothing in {SECONDS:.0f} s")
