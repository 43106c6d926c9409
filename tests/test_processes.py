"""A process that has ended but was not waited for has no command line, no environment, and does not live."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.processes import command_of, environment_of, is_alive, survivors


@pytest.fixture
def zombie():
    program = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(program.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    yield process
    program.wait()


def test_a_zombie_is_looked_at_in_peace(zombie):
    assert (command_of(zombie), environment_of(zombie), is_alive(zombie)) == ([], {}, False)
    assert survivors([zombie, zombie.pid], seconds=0.1) == []


def test_one_that_is_gone_is_looked_at_in_peace(zombie):
    gone = zombie.pid
    psutil.wait_procs([zombie], timeout=0.1)
    assert survivors([gone], seconds=0.1) == []


def test_one_that_lives_is_told():
    own = psutil.Process()
    assert command_of(own) == own.cmdline()
    assert survivors([own], seconds=0.1) == [own]
