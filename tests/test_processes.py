"""Inspection of zombies and of ended processes."""

import platform
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


FAULTS = """
import ctypes, resource
from megaptm import processes

class Older:
    def __init__(self, found):
        self.found = found
    def mallopt(self, option, value):
        if option == processes.M_MMAP_THRESHOLD and value > 32 << 20:
            return 0
        return self.found.mallopt(option, value)

library, libc = ctypes.CDLL, ctypes.CDLL(None)
if {older}:
    processes.ctypes.CDLL = lambda name: Older(library(name))
processes.keep_freed_memory()
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = libc.malloc(64 << 20)
    ctypes.memset(memory, 1, 64 << 20)
    libc.free(memory)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
@pytest.mark.parametrize("older", [False, True])
def test_freed_memory_is_kept_with_old_glibc(older):
    """Page faults for 64 MiB that is allocated again: 16,384 if the memory was returned to Linux."""
    command = [sys.executable, "-c", FAULTS.format(older=older)]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 10
