"""Inspection of zombies and of ended processes."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.processes import command_of, environment_of, everybody, is_alive, parents_alone, survivors


@pytest.fixture
def zombie():
    program = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(program.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    yield process
    program.wait()


def test_zombie_can_be_inspected(zombie):
    assert (command_of(zombie), environment_of(zombie), is_alive(zombie)) == ([], {}, False)
    assert survivors([zombie, zombie.pid], seconds=0.1) == []


def test_ended_process_can_be_inspected(zombie):
    gone = zombie.pid
    psutil.wait_procs([zombie], timeout=0.1)
    assert survivors([gone], seconds=0.1) == []


def test_living_process_is_reported():
    own = psutil.Process()
    assert command_of(own) == own.cmdline()
    assert survivors([own], seconds=0.1) == [own]


def test_forked_child_is_left_out():
    forked = subprocess.Popen(
        [sys.executable, "-c", "import os, time; print(os.fork(), flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    parent = psutil.Process(forked.pid)
    while not (children := parent.children()):
        time.sleep(0.01)
    try:
        alike = [process for process in everybody() if command_of(process) == command_of(parent)]
        assert len(alike) == 2
        assert parents_alone(alike) == [parent]
    finally:
        for process in (parent, *children):
            process.kill()
        forked.communicate()
